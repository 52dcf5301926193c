"""How long until a failure is known, and until its replacement is back in init(): `python -m bench.detect`.

A real job of two ranks on one machine is harmed again and again. The clock starts when the harm is done and stops at
the journal record of the verdict (both the wall clock of one machine). ``--idle-minutes`` instead leaves the job alone
while other processes use up both cores, and counts the false alarms, which must be none.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.jobs import Job, wait_for
from everstep.core.events import DeviceSick, Event, Exited, NodeLost, Registered, Verdict
from everstep.launch.client import Snapshot
from everstep.wire.messages import Inject

SCRIPT = Path(__file__).parent / "forever.py"
FAILURES = Exited | Verdict | NodeLost | DeviceSick
DEVICES = 200
"""A sick one is not used again, so there is one for each repetition, and some more."""


class Harmed(Job):
    """Two ranks, and what is done to them."""

    def __init__(self, root: Path, *options: str, pause_s: float) -> None:
        marks = root / "marks"
        marks.mkdir()
        self.devices = root / "devices"
        self.devices.mkdir()
        for number in range(DEVICES):
            self.describe(f"d{number:03}", healthy=True)
        self.frozen: list[psutil.Process] = []
        options = tuple(option.format(devices=self.devices) for option in options)
        super().__init__(root, 2, (str(SCRIPT), str(marks), str(pause_s)), "--preload", "json", *options)

    def describe(self, device: str, *, healthy: bool) -> None:
        """For the plugin `file`."""
        part = self.devices / "part"
        part.write_text(json.dumps({"healthy": healthy}))
        part.replace(self.devices / f"{device}.json")

    def thaw(self) -> None:
        while self.frozen:
            self.frozen.pop().resume()

    def known_at(self, since: int, kind: Callable[[Event], bool]) -> float:
        def look() -> float | None:
            return next(
                (r.time_s for r in self.records()[since:] if isinstance(r.entry, Event) and kind(r.entry)), None
            )

        return wait_for(look)

    def close(self) -> None:
        self.thaw()
        super().close()


@contextmanager
def job(*options: str, pause_s: float = 0.05) -> Iterator[Harmed]:
    with tempfile.TemporaryDirectory() as root:
        running = Harmed(Path(root), *options, pause_s=pause_s)
        try:
            yield running
        finally:
            running.close()


def harm_process(number: signal.Signals) -> Callable[[Harmed, Snapshot], float]:
    def harm(_: Harmed, now: Snapshot) -> float:
        pid = now.workers[1].pid
        assert pid is not None
        at = time.time()
        os.kill(pid, number)
        return at

    return harm


def harm_by_chaos(spec: str) -> Callable[[Harmed, Snapshot], float]:
    def harm(running: Harmed, _: Snapshot) -> float:
        at = time.time()
        running.tell(Inject(spec))
        return at

    return harm


def agent_of_rank_1(running: Harmed, now: Snapshot) -> psutil.Process:
    """Once the node that was lost before it is back."""

    def both_nodes() -> bool | None:
        status = running.status()
        return True if status is not None and len(json.loads(status.raw)["nodes"]) == 2 else None

    wait_for(both_nodes)
    family = psutil.Process(running.process.pid).children(recursive=True)
    return next(process for process in family if {"everstep.agent", now.workers[1].node} <= set(process.cmdline()))


def kill_agent(running: Harmed, now: Snapshot) -> float:
    victim = agent_of_rank_1(running, now)
    at = time.time()
    victim.kill()
    return at


def freeze_agent(running: Harmed, now: Snapshot) -> float:
    """Its connection stands and it says nothing, as when a cable is pulled."""
    victim = agent_of_rank_1(running, now)
    running.frozen.append(victim)
    at = time.time()
    victim.suspend()
    return at


def harm_device(running: Harmed, now: Snapshot) -> float:
    device = json.loads(now.raw)["workers"][1]["device"]
    at = time.time()
    running.describe(device, healthy=False)
    return at


ROWS: dict[str, tuple[tuple[str, ...], Callable[[Harmed, Snapshot], float]]] = {
    "process died (SIGKILL)": (("--standby", "1"), harm_process(signal.SIGKILL)),
    "process died, no standby": (("--standby", "0"), harm_process(signal.SIGKILL)),
    "exception in user code": (("--standby", "1"), harm_by_chaos("raise rank=1")),
    "agent died": (("--standby", "1", "--local-nodes", "2"), kill_agent),
    "agent silent (SIGSTOP)": (("--standby", "1", "--local-nodes", "2"), freeze_agent),
    "frozen (SIGSTOP)": (("--standby", "1"), harm_process(signal.SIGSTOP)),
    "frozen (GIL held)": (("--standby", "1"), harm_by_chaos("gil rank=1")),
    "main thread hangs": (("--standby", "1"), harm_by_chaos("hang rank=1")),
    "device sick (polled at 4 Hz)": (("--standby", "1", "--devices", "file:{devices}"), harm_device),
}


def registered(workers: set[int]) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, Registered) and event.worker in workers


def measure(name: str, repetitions: int) -> None:
    options, harm = ROWS[name]
    known: list[float] = []
    replaced: list[float] = []
    with job(*options) as running:
        for _ in range(repetitions):
            now = running.training("1" in options[:2])
            before = len(running.records())
            at = harm(running, now)
            seen = running.known_at(before, lambda event: isinstance(event, FAILURES))
            known.append(seen - at)
            running.thaw()
            after = running.training(False)
            fresh = {row.worker for row in after.workers} - {row.worker for row in now.workers + now.standbys}
            if fresh:
                replaced.append(running.known_at(before, registered(fresh)) - seen)
    print(f"{name:28} {table(known)}   {table(replaced)}")


def table(seconds: list[float]) -> str:
    if not seconds:
        return f"{'-':>9} {'-':>9} {'-':>9}"
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return " ".join(f"{1000 * value:9.1f}" for value in (statistics.median(ordered), p99, ordered[-1]))


def idle(minutes: float) -> int:
    """False alarms with every core busy with something else."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        with job("--standby", "1") as running:
            start = running.training(standby=False)
            time.sleep(60 * minutes)
            end = wait_for(running.status)
            steps = end.step - start.step
            alarms = len(end.failures)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    print(json.dumps({"minutes": minutes, "steps": steps, "false_alarms": alarms}))
    return alarms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--row", choices=list(ROWS), action="append")
    parser.add_argument("--idle-minutes", type=float, default=0.0)
    options = parser.parse_args()
    if options.idle_minutes:
        sys.exit(1 if idle(options.idle_minutes) else 0)
    print(f"{'milliseconds':28} {'harm to verdict':>29}   {'verdict to init() of a new process':>29}")
    print(f"{'':28} {'median':>9} {'p99':>9} {'max':>9}   {'median':>9} {'p99':>9} {'max':>9}")
    for name in options.row or ROWS:
        measure(name, options.repetitions)


if __name__ == "__main__":
    main()
