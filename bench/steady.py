"""What protection costs in a run without failures: `python -m bench.steady`.

The same model and data under plain DDP, under plain DDP with one more all-reduce of a single number before the update
(the barrier alone), and under everstep: in turns of a few steps, on the same cores, in one run. Whoever has no turn is
stopped, with every process that belongs to it. A row is the median over the rounds of the ratio within a round, with
its 95 % interval. The batch is chosen so that a step takes about as long as the row says.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.floor import free_port
from bench.table import interval, median

WAIT_S = 60.0
WARM_STEPS = 2
"""At the beginning of a turn; not counted."""
PLAIN, BARRIER, EVERSTEP = KINDS = ("plain", "barrier", "everstep")
ROWS = ((2, 0.050, 10), (2, 0.005, 50), (4, 0.005, 50))
"""Ranks, seconds of a step, steps in a turn."""
TURN = struct.Struct("<III")
"""Kind, steps, batch."""


class Team:
    """The ranks that train in one way, and every process around them."""

    def __init__(self, kind: str, ranks: int, work: str, listener: socket.socket, folder: Path) -> None:
        self.kind = kind
        words = (str(listener.getsockname()[1]), work)
        self.launched = [*_everstep(ranks, words, folder)] if kind == EVERSTEP else [*_plain(ranks, words)]
        self._ranks = sorted((_accept(listener) for _ in range(ranks)), key=lambda accepted: accepted[0])
        self._running = True

    def turn(self, kind: str, steps: int, batch: int) -> list[float]:
        """The seconds of each step, as the first rank has them."""
        self.be(running=True)
        for _, line in self._ranks:
            line.sendall(TURN.pack(KINDS.index(kind), steps + WARM_STEPS, batch))
        every = [_receive(line, 8 * (steps + WARM_STEPS)) for _, line in self._ranks]
        self.be(running=False)
        return list(struct.unpack(f"<{steps + WARM_STEPS}d", every[0]))[WARM_STEPS:]

    def be(self, *, running: bool) -> None:
        """From the outermost process inwards when they stop, so that nobody looks at one that stands still."""
        if running == self._running:
            return
        self._running = running
        family = [each for root in self.launched for each in (root, *root.children(recursive=True))]
        for process in reversed(family) if running else family:
            process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)

    def close(self) -> None:
        self.be(running=True)
        for _, line in self._ranks:
            line.close()
        for process in self.launched:
            process.wait(WAIT_S)


def _plain(ranks: int, words: Sequence[str]) -> Iterator[psutil.Popen]:
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    env = {**os.environ, **store, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for rank in range(ranks):
        command = [sys.executable, "-m", "bench.turns", "plain", *words]
        yield psutil.Popen(command, env={**env, "RANK": str(rank)})


def _everstep(ranks: int, words: Sequence[str], folder: Path) -> Iterator[psutil.Popen]:
    command = [sys.executable, "-m", "everstep.cli", "run", "--nproc", str(ranks), "--run-dir", str(folder / "run")]
    with (folder / "output").open("wb") as out:
        yield psutil.Popen([*command, "-m", "bench.turns", "everstep", *words], stdout=out, stderr=out)


def _accept(listener: socket.socket) -> tuple[int, socket.socket]:
    line, _ = listener.accept()
    line.settimeout(WAIT_S)
    return _receive(line, 1)[0], line


def _receive(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise RuntimeError("a rank has ended; its output says why")
        data += part
    return data


@contextmanager
def teams(ranks: int, work: str) -> Iterator[tuple[Team, Team]]:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        plain = Team(PLAIN, ranks, work, listener, Path(folder))
        plain.be(running=False)
        protected = Team(EVERSTEP, ranks, work, listener, Path(folder))
        time.sleep(1)  # its standby has been started and has come to rest
        protected.be(running=False)
        try:
            yield plain, protected
        finally:
            plain.close()
            protected.close()


# ── the measurement ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Round:
    """Median seconds of a step in a turn of each."""

    plain: float
    barrier: float
    everstep: float


def measure(ranks: int, step_s: float, steps: int, repeat: int, work: str = "bench.workload:Small") -> list[Round]:
    """``work`` is ``module:name`` of a class like `Workload`."""
    found = []
    with teams(ranks, work) as (plain, protected):
        batch = calibrate(plain, step_s)
        for _ in range(repeat):
            times = {kind: (protected if kind == EVERSTEP else plain).turn(kind, steps, batch) for kind in KINDS}
            found.append(Round(*(median(times[kind]) for kind in KINDS)))
    return found


def calibrate(team: Team, step_s: float) -> int:
    """The batch for steps of about this length."""
    few, many = 8, 520
    low, high = (median(team.turn(PLAIN, 20, batch)) for batch in (few, many))
    return max(1, few + round((step_s - low) / max(1e-6, (high - low) / (many - few))))


def print_head() -> None:
    print(f"{'':12} {'ms, median of a step':>27}   {'ratio to plain (95 %)':>25}")
    print(f"ranks  steps {'plain':>9}{'+barrier':>9}{'everstep':>9}   {'barrier alone':>22}   {'everstep':>22}")


def print_row(ranks: int, rounds: Sequence[Round], steps: int) -> None:
    plain, barrier, ours = ([getattr(each, kind) for each in rounds] for kind in KINDS)
    whole = [each.everstep / each.plain for each in rounds]
    alone = [each.barrier / each.plain for each in rounds]
    cells = "".join(f"{1000 * median(seconds):9.2f}" for seconds in (plain, barrier, ours))
    print(f"{ranks:5} {len(rounds) * steps:6} {cells}   {_ratio(alone)}   {_ratio(whole)}", flush=True)


def _ratio(ratios: Sequence[float]) -> str:
    low, high = interval(ratios)
    return f"{median(ratios):.3f} ({low:.3f} … {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=40, help="rounds in each row")
    parser.add_argument("--row", type=int, choices=range(len(ROWS)), action="append", help="only this one")
    options = parser.parse_args()
    print_head()
    for row in options.row or range(len(ROWS)):
        ranks, step_s, steps = ROWS[row]
        print_row(ranks, measure(ranks, step_s, steps, options.repeat), steps)


if __name__ == "__main__":
    main()
