"""The output of a worker: whole in its file, by lines with its rank on the terminal, to the last one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everstep.agent.logs import LINE_BYTES, WorkerLog
from everstep.types import Rank, WorkerId

if TYPE_CHECKING:
    from tests.agent.conftest import Run

WORKER = WorkerId(5)


def shown(run: Run, folder: Path, script: str) -> list[str]:
    """Run the script to its end and return the lines that were shown."""
    lines: list[str] = []

    async def collect() -> None:
        log = WorkerLog(WORKER, folder, lines.append, Rank(2))
        with log.output() as fd:
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=fd, stderr=fd)
        await process.wait()
        log.finish()
        log.finish()

    run(collect())
    return lines


def test_lines_come_with_their_rank_and_the_file_has_them_raw(run: Run, tmp_path: Path) -> None:
    lines = shown(run, tmp_path, "import sys; print('one'); print(); print('two', file=sys.stderr)")
    assert sorted(lines) == ["[rank 2] ", "[rank 2] one", "[rank 2] two"]
    assert sorted((tmp_path / "w5-r2.log").read_text().splitlines()) == ["", "one", "two"]


def test_the_last_words_of_a_killed_worker_are_shown(run: Run, tmp_path: Path) -> None:
    script = f"import os, sys; os.write(1, b'x\\n' * 9999 + b'last words'); os.kill(os.getpid(), {signal.SIGKILL})"
    lines = shown(run, tmp_path, script)
    assert len(lines) == 10_000
    assert lines[-1] == "[rank 2] last words"


def test_a_descendant_that_keeps_the_pipe_open_does_not_hold_up_the_end(run: Run, tmp_path: Path) -> None:
    script = (
        "import os, signal\n"
        "if (child := os.fork()) == 0: signal.pause()\n"
        "print(child, flush=True); os._exit(0)"
    )  # fmt: skip
    [line] = shown(run, tmp_path, script)
    os.kill(int(line.split()[-1]), signal.SIGKILL)


def test_a_descendant_that_writes_for_ever_does_not_hold_up_the_end(run: Run, tmp_path: Path) -> None:
    script = (
        "import os\n"
        "os.write(1, b'%d\\n' % os.getpid())\n"
        "if os.fork() == 0:\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"
        "    while True: os.write(1, b'noise\\n' * 1000)\n"
        "os._exit(0)"
    )
    assert shown(run, tmp_path, script)  # the writer is ended by SIGPIPE


def test_a_standby_that_gets_a_rank_is_named_so_from_then_on(run: Run, tmp_path: Path) -> None:
    lines: list[str] = []

    async def assign() -> None:
        first = asyncio.Event()

        def show(line: str) -> None:
            lines.append(line)
            first.set()

        log = WorkerLog(WORKER, tmp_path, show)
        assert log.path == tmp_path / "w5-standby.log"
        with log.output() as fd:
            os.write(fd, b"before\n")
            await first.wait()
            log.assign(Rank(3))
            os.write(fd, b"after\n")
        log.finish()

    run(assign())
    assert lines == ["[standby 5] before", "[rank 3] after"]
    assert [path.name for path in tmp_path.iterdir()] == ["w5-r3.log"]
    assert (tmp_path / "w5-r3.log").read_text() == "before\nafter\n"


def test_a_line_without_an_end_is_shown_in_pieces_and_kept_whole(run: Run, tmp_path: Path) -> None:
    size = 50 * LINE_BYTES + 7
    lines = shown(run, tmp_path, f"import sys; sys.stdout.write('y' * {size})")
    assert max(map(len, lines)) == len("[rank 2] ") + LINE_BYTES
    assert sum(line.count("y") for line in lines) == size
    assert (tmp_path / "w5-r2.log").stat().st_size == size


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (b"\xff\x00\x07\x9b caf\xc3\xa9\n", "\\xff\\x00\\x07\\x9b café"),
        (b"\x1b[31mred\x1b[0m\ttab\n", "\x1b[31mred\x1b[0m\ttab"),
        (b" 1%\r 2%\r100%\r\n", "100%"),
        ("\x85\u2028".encode() + b"one line\n", "\\x85\u2028one line"),
    ],
)
def test_garbage_is_made_harmless(run: Run, tmp_path: Path, written: bytes, line: str) -> None:
    assert shown(run, tmp_path, f"import os; os.write(1, {written!r})") == [f"[rank 2] {line}"]
    assert (tmp_path / "w5-r2.log").read_bytes() == written


def test_a_full_disk_is_told_once_and_the_lines_are_still_shown(run: Run, tmp_path: Path) -> None:
    (tmp_path / "w5-r2.log").symlink_to("/dev/full")
    full, *lines = shown(run, tmp_path, "print('a', flush=True); print('b', flush=True)")
    assert full == f"[rank 2] (no longer written to {tmp_path}/w5-r2.log: No space left on device)"
    assert lines == ["[rank 2] a", "[rank 2] b"]
