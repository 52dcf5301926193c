"""The board: what a worker stamped last can be read whatever has become of the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everstep.agent.board import NO_LIMIT_S, SIZE_BYTES, BoardReader, BoardWriter
from everstep.agent.shm import SharedDirectory
from everstep.errors import BoardError
from everstep.types import NodeId, WorkerId, WorkerPhase

if TYPE_CHECKING:
    from tests.agent.conftest import Until

# Stamps as fast as it can from one thread and beats from another. All fields of a stamp follow from its step.
HAMMER = """
import sys, threading
from pathlib import Path
from everstep.agent.board import BoardWriter
from everstep.types import WorkerPhase
board = BoardWriter(Path(sys.argv[1]))
def beat():
    while True: board.beat()
threading.Thread(target=beat, daemon=True).start()
phases = list(WorkerPhase)
step = 0
while True:
    step += 1
    board.stamp(phases[step % 10], step=step, version=step * 3, generation=step * 7, attempt=step % 1000)
"""


@pytest.fixture
def board(tmp_path: Path) -> Iterator[BoardReader]:
    with SharedDirectory("job", NodeId("n"), tmp_path) as directory:
        board = BoardReader.create(directory, WorkerId(7))
        yield board
        board.close()


@pytest.fixture
def writer(board: BoardReader) -> Iterator[BoardWriter]:
    writer = BoardWriter(board.path)
    yield writer
    writer.close()


@pytest.fixture
def hammer(board: BoardReader, until: Until) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", HAMMER, board.path])
    until(lambda: board.read().moves > 1000)
    yield process
    process.kill()
    process.wait()


def test_a_new_board_says_that_nothing_has_run(board: BoardReader) -> None:
    sample = board.read()
    assert (sample.worker, sample.pid, sample.phase) == (7, 0, WorkerPhase.SPAWNED)
    assert (sample.step, sample.version, sample.moves, sample.heartbeat) == (-1, -1, 0, 0)
    assert sample.phase_start_ns <= time.monotonic_ns()


def test_a_stamp_is_read_back(board: BoardReader, writer: BoardWriter) -> None:
    before_ns = time.monotonic_ns()
    writer.stamp(WorkerPhase.BACKWARD, step=2**40, version=5, generation=3, attempt=2)
    sample = board.read()
    assert (sample.phase, sample.step, sample.version) == (WorkerPhase.BACKWARD, 2**40, 5)
    assert (sample.generation, sample.attempt, sample.pid) == (3, 2, os.getpid())
    assert before_ns <= sample.phase_start_ns == sample.moved_ns <= time.monotonic_ns()


def test_what_a_stamp_does_not_name_stays(board: BoardReader, writer: BoardWriter) -> None:
    writer.stamp(WorkerPhase.FORWARD, step=4, version=4, generation=2, attempt=1)
    writer.stamp(WorkerPhase.BACKWARD)
    sample = board.read()
    assert (sample.step, sample.version, sample.generation, sample.attempt) == (4, 4, 2, 1)


def test_waiting_and_long_are_moves_within_a_phase(board: BoardReader, writer: BoardWriter) -> None:
    writer.stamp(WorkerPhase.FORWARD, step=1)
    entered = board.read()
    writer.waiting(True)
    writer.long(600.0)
    inside = board.read()
    assert (inside.waiting, inside.limit_s, inside.moves) == (True, 600.0, entered.moves + 2)
    assert inside.phase_start_ns == entered.phase_start_ns < inside.moved_ns
    writer.waiting(False)
    writer.long(NO_LIMIT_S)
    after = board.read()
    assert (after.waiting, after.limit_s, after.moves) == (False, NO_LIMIT_S, entered.moves + 4)


def test_a_heartbeat_is_not_a_move(board: BoardReader, writer: BoardWriter) -> None:
    writer.beat()
    writer.beat()
    assert (board.read().heartbeat, board.read().moves) == (2, 0)


def test_no_read_is_torn_and_no_count_goes_back_while_two_threads_write(
    board: BoardReader, hammer: subprocess.Popen[bytes]
) -> None:
    last = board.read()
    for _ in range(50_000):
        sample = board.read()
        assert sample.version == sample.step * 3 == sample.moves * 3
        assert sample.generation == sample.step * 7
        assert sample.attempt == sample.step % 1000
        assert sample.phase == sample.step % 10
        assert sample.moves >= last.moves
        assert sample.heartbeat >= last.heartbeat
        last = sample
    assert hammer.poll() is None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_board_of_a_killed_or_stopped_writer_is_readable_and_stands_still(
    board: BoardReader, hammer: subprocess.Popen[bytes], how: signal.Signals
) -> None:
    for _ in range(20 if how == signal.SIGSTOP else 1):  # somewhere else in the stamp each time
        hammer.send_signal(how)
        os.waitid(os.P_PID, hammer.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        sample = board.read()
        assert sample.pid == hammer.pid
        assert board.read() == sample
        if how == signal.SIGSTOP:
            hammer.send_signal(signal.SIGCONT)


def test_a_stamp_that_was_cut_off_leaves_the_one_before(board: BoardReader, writer: BoardWriter) -> None:
    for step in (1, 2):
        writer.stamp(WorkerPhase.FORWARD, step=step)
        with board.path.open("r+b") as file:  # the start of the next stamp, which goes into the other slot
            file.seek(320 if step == 2 else 192)
            file.write(b"\xff" * 20)
        assert board.read().step == step


def test_a_board_that_others_write_to_is_an_error(board: BoardReader) -> None:
    board.path.write_bytes(b"\0" * SIZE_BYTES)
    with pytest.raises(BoardError, match="no complete stamp"):
        board.read()


@pytest.mark.parametrize("content", [b"", b"\0" * SIZE_BYTES, b"x" * 4096])
def test_a_file_that_is_no_board_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BoardError, match="is no board"):
        BoardWriter(path)
