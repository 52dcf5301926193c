"""What ``with step:`` costs with nothing inside: `python -m bench.step`.

With a board it is stamped, and the control thread's heartbeat takes its share of the interpreter; with a ring each
phase is noted for the flight recorder too.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.agent.board import BoardReader, BoardWriter
from everstep.agent.ring import RingReader, RingWriter
from everstep.agent.shm import ROOT, SharedDirectory
from everstep.types import NodeId, WorkerId
from everstep.worker.control import BEAT_S
from everstep.worker.step import PlainLoop, steps
from everstep.worker.track import NoBoard, Track

STEPS = 200_000


def main() -> None:
    print(f"with step: pass, µs, {STEPS} steps   median     p99")
    print_row("unprotected", Track(NoBoard()))
    with (
        tempfile.TemporaryDirectory(dir=ROOT) as folder,
        SharedDirectory("bench", NodeId("here"), root=Path(folder)) as shared,
        beating_board(shared) as board,
    ):
        print_row("with a board", Track(board))
        RingReader.create(shared, WorkerId(0)).close()
        print_row("with a board and a ring", Track(board, RingWriter(shared.path / "ring-0")))


def print_row(name: str, track: Track) -> None:
    times_us = sorted(measure(track))
    p99_us = times_us[len(times_us) * 99 // 100]
    print(f"{name:38} {statistics.median(times_us):6.2f}  {p99_us:6.2f}")


def measure(track: Track) -> Iterator[float]:
    """From one turn of the loop to the next, so the loop itself is in it."""
    before_ns = time.perf_counter_ns()
    for step in steps(PlainLoop(track), track, STEPS):
        with step:
            pass
        now_ns = time.perf_counter_ns()
        yield (now_ns - before_ns) / 1000
        before_ns = now_ns


@contextmanager
def beating_board(shared: SharedDirectory) -> Iterator[BoardWriter]:
    reader = BoardReader.create(shared, WorkerId(0))
    board = BoardWriter(reader.path)
    end = threading.Event()

    def beat() -> None:
        while not end.wait(BEAT_S):
            board.beat()

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        yield board
    finally:
        end.set()
        heart.join()
        board.close()
        reader.close()


if __name__ == "__main__":
    main()
