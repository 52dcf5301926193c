"""The ring: each note is taken out once and whole, whatever becomes of who wrote it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everstep.agent.ring import CAPACITY, SIZE_BYTES, RingReader, RingWriter
from everstep.agent.shm import SharedDirectory
from everstep.errors import BoardError
from everstep.types import Mark, NodeId, WorkerId

if TYPE_CHECKING:
    from tests.agent.conftest import Until

# Notes as fast as it can from two threads. All fields of a note follow from its step.
HAMMER = """
import sys, threading
from pathlib import Path
from everstep.agent.ring import RingWriter
ring = RingWriter(Path(sys.argv[1]))
def hammer(first):
    step = first
    while True:
        ring.note(step % 9, step, step % 1000, step % 7)
        step += 2
threading.Thread(target=hammer, args=(0,), daemon=True).start()
hammer(1)
"""


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingReader]:
    with SharedDirectory("job", NodeId("n"), tmp_path) as directory:
        ring = RingReader.create(directory, WorkerId(7))
        yield ring
        ring.close()


@pytest.fixture
def writer(ring: RingReader) -> Iterator[RingWriter]:
    writer = RingWriter(ring.path)
    yield writer
    writer.close()


@pytest.fixture
def hammer(ring: RingReader, until: Until) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", HAMMER, ring.path])
    until(lambda: len(ring.take()) > 1)
    yield process
    process.kill()
    process.wait()


def test_a_new_ring_says_that_the_worker_was_started(ring: RingReader) -> None:
    assert [note.mark for note in ring.take()] == [Mark.SPAWNED]


def test_notes_are_taken_in_order_and_once(ring: RingReader, writer: RingWriter) -> None:
    ring.take()
    writer.note(Mark.FORWARD, 2**40, 70_000, 3)
    writer.note(Mark.BACKWARD, 2**40, 1, 3)
    forward, backward = ring.take()
    assert forward[1:] == (2**40, 3, 0xFFFF, Mark.FORWARD)
    assert backward[1:] == (2**40, 3, 1, Mark.BACKWARD)
    assert forward.at_ns <= backward.at_ns
    assert ring.take() == []


def test_what_was_overwritten_is_a_gap_and_the_newest_are_there(ring: RingReader, writer: RingWriter) -> None:
    started = ring.take()[0]
    for step in range(CAPACITY + 5):
        writer.note(Mark.FORWARD, step, 0, 0)
    gap, *rest = ring.take()
    assert (gap.mark, gap.at_ns) == (Mark.END, started.at_ns + 1)
    assert [note.step for note in rest] == list(range(5, CAPACITY + 5))


def test_a_note_that_is_not_whole_waits_until_nobody_is_left_to_complete_it(
    ring: RingReader, writer: RingWriter
) -> None:
    for step in range(3):
        writer.note(Mark.FORWARD, step, 0, 0)
    with ring.path.open("r+b") as file:  # the note of step 1, as an older lap has left a part of it
        file.seek(128 + 2 * 32 + 8)
        file.write(b"\xff")
    assert [note.step for note in ring.take()] == [-1, 0]
    assert [(note.mark, note.step) for note in ring.take(final=True)] == [(Mark.END, -1), (Mark.FORWARD, 2)]


def test_no_note_is_torn_while_two_threads_write(ring: RingReader, hammer: subprocess.Popen[bytes]) -> None:
    last = {0: -1, 1: -1}
    seen = 0
    while seen < 50_000:
        for note in ring.take():
            if note.mark == Mark.END:
                continue  # we were too slow
            seen += 1
            assert (note.mark, note.attempt, note.generation) == (note.step % 9, note.step % 1000, note.step % 7)
            assert note.step > last[note.step % 2]
            last[note.step % 2] = note.step
    assert hammer.poll() is None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_ring_of_a_killed_or_stopped_writer_has_all_up_to_then(
    ring: RingReader, hammer: subprocess.Popen[bytes], how: signal.Signals
) -> None:
    hammer.send_signal(how)
    os.waitid(os.P_PID, hammer.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    notes = [note for note in ring.take() if note.mark != Mark.END]
    assert all(note.attempt == note.step % 1000 for note in notes if note.step >= 0)
    assert ring.take() == []


@pytest.mark.parametrize("content", [b"", b"\0" * SIZE_BYTES])
def test_a_file_that_is_no_ring_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BoardError, match="is no ring"):
        RingWriter(path)
