"""What the live page costs the controller, by the number of devices: `python -m bench.page`.

A look is what happens four times a second while somebody listens: the status is built, compared with the one before,
and the change, in which every rank has moved, is written for all listeners. A scrape is one answer to Prometheus.
Nobody listens, nobody scrapes: neither happens.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.core import DEVICES, Job
from bench.table import median
from everstep.controller.outlook import Outlook
from everstep.controller.status import progress, status
from everstep.controller.web import shapes
from everstep.controller.web.feed import IDLE_SHARE, PACE_S, event
from everstep.core.watch import Sighting
from everstep.observe.ledger import Ledger
from everstep.observe.log import RecoveryLog
from everstep.observe.metrics import Metrics
from everstep.observe.progress import Progress
from everstep.types import WorkerId, WorkerPhase

NODES = (1, 16, 128, 1024)
TIMES = 20


class Shown:
    """A job that trains, and what its controller knows of it."""

    def __init__(self, nodes: int, root: Path) -> None:
        job = Job(nodes)
        job.run()
        self.machine = job.machine
        self._sightings: dict[WorkerId, Sighting] = {}
        self._progress = Progress(time.time())
        self._log = RecoveryLog(root / f"recoveries-{nodes}.jsonl")
        ledger = Ledger(root / f"recoveries-{nodes}.jsonl", root / f"checkpoints-{nodes}.jsonl")
        outlook = Outlook("bench", self.machine, self._progress, ledger, self.status)
        self.metrics = Metrics(outlook)
        self._version = 0
        self.move()

    def move(self) -> None:
        """All ranks are in the next step."""
        self._version += 1
        phase = WorkerPhase.FORWARD if self._version % 2 else WorkerPhase.BACKWARD
        generation = self.machine.generation
        for rank, worker in self.machine.members.seats.items():
            self._sightings[worker] = Sighting(
                worker, rank, phase, self._version, generation, 1, self._version, moved_ago_s=0.01, cpu_s=0.0
            )

    def status(self) -> dict[str, object]:
        shown = status("bench", self.machine, self._sightings, [], self._log, "")
        return shown | {"progress": progress(self._progress, time.time())}


def spent_s(act: Callable[[], object], before: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        before()
        begin = time.perf_counter()
        act()
        times.append(time.perf_counter() - begin)
    return median(times)


def main() -> None:
    print(f"{'devices':>8} {'look':>10} {'of a core':>10} {'told':>10} {'scrape':>10}")
    with tempfile.TemporaryDirectory() as root:
        for nodes in NODES:
            shown = Shown(nodes, Path(root))
            last = shown.status()
            told = b""

            def look(shown: Shown = shown) -> None:
                nonlocal last, told
                new = shown.status()
                told = event("change", shapes.change(last, new))
                last = new

            look_s = spent_s(look, shown.move)
            share = look_s / max(PACE_S, look_s * IDLE_SHARE)
            scrape_s = spent_s(shown.metrics.text, shown.move)
            figures = f"{look_s * 1e3:7.2f} ms {share:10.2%} {len(told) / 1e3:7.1f} kB {scrape_s * 1e3:7.2f} ms"
            print(f"{nodes * DEVICES:8} {figures}")


if __name__ == "__main__":
    main()
