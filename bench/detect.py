"""How long until a failure is known, and until its replacement is out of init(): `python -m bench.detect`.

A real job of two ranks on one machine is harmed again and again. The clock starts when the harm is done and stops at
the journal record of the verdict, and where init() has returned with a rank (all by the wall clock of one machine).
Nothing is protected, so all ranks start again: one takes the standby, if there is one, the others are forked. With
the default of 50 repetitions it takes about 20 minutes on a machine that does nothing else. ``--idle-minutes`` instead
leaves the job alone while other processes use up all cores, and counts the false alarms, which must be none.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.jobs import Job, wait_for
from bench.table import median, percentile
from everstep.core.events import DeviceSick, Event, Exited, NodeLost, Verdict
from everstep.launch.client import Snapshot
from everstep.wire.messages import Inject

SCRIPT = Path(__file__).parent / "forever.py"
FAILURES = Exited | Verdict | NodeLost | DeviceSick
COLUMNS = ("median", "p90", "max")
DEVICES = 200
"""A sick one is not used again, so there is one for each repetition, and some more."""


class Harmed(Job):
    """Two ranks, and what is done to them."""

    def __init__(self, root: Path, *options: str, pause_s: float) -> None:
        self.marks = root / "marks"
        self.marks.mkdir()
        self.devices = root / "devices"
        self.devices.mkdir()
        for number in range(DEVICES):
            self.describe(f"d{number:03}", healthy=True)
        self.frozen: list[psutil.Process] = []
        options = tuple(option.format(devices=self.devices) for option in options)
        super().__init__(root, 2, (str(SCRIPT), str(self.marks), str(pause_s)), *options)

    def describe(self, device: str, *, healthy: bool) -> None:
        """For the plugin `file`."""
        part = self.devices / "part"
        part.write_text(json.dumps({"healthy": healthy}))
        part.replace(self.devices / f"{device}.json")

    def thaw(self) -> None:
        while self.frozen:
            self.frozen.pop().resume()

    def anew(self, before: Snapshot) -> Snapshot | None:
        """All ranks train, and each has another process."""
        now = self.training(False)
        return now if not {row.worker for row in now.workers} & {row.worker for row in before.workers} else None

    def returned_at(self, generation: int, rank: int) -> float:
        """When init() was left, which the script writes down."""
        return float((self.marks / f"init-{generation}-{rank}").read_text())

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


TWO_NODES = ("--standby", "0", "--local-nodes", "2", "--no-zygote")
"""The zygote of an agent that has come anew would still import torch when the next one is harmed."""

ROWS: dict[str, tuple[tuple[str, ...], Callable[[Harmed, Snapshot], float]]] = {
    "process died (SIGKILL)": (("--standby", "1"), harm_process(signal.SIGKILL)),
    "process died, no standby": (("--standby", "0"), harm_process(signal.SIGKILL)),
    "exception in user code": (("--standby", "1"), harm_by_chaos("raise rank=1")),
    "agent died": (TWO_NODES, kill_agent),
    "agent silent (SIGSTOP)": (TWO_NODES, freeze_agent),
    "frozen (SIGSTOP)": (("--standby", "1"), harm_process(signal.SIGSTOP)),
    "frozen (GIL held)": (("--standby", "1"), harm_by_chaos("gil rank=1")),
    "main thread hangs": (("--standby", "1"), harm_by_chaos("hang rank=1")),
    "device sick (polled at 4 Hz)": (("--standby", "1", "--devices", "file:{devices}"), harm_device),
}


def measure(name: str, repetitions: int) -> None:
    options, harm = ROWS[name]
    known: list[float] = []
    standby: list[float] = []
    forked: list[float] = []
    with job(*options) as running:
        for _ in range(repetitions):
            now = running.training("1" in options[:2])
            before = len(running.records())
            at = harm(running, now)
            seen = running.known_at(before, lambda event: isinstance(event, FAILURES))
            known.append(seen - at)
            running.thaw()
            after = wait_for(lambda now=now: running.anew(now))  # type: ignore[misc]
            waited = {row.worker for row in now.standbys}
            for row in after.workers if "--no-zygote" not in options else ():
                took = running.returned_at(after.generation, row.rank) - seen
                (standby if row.worker in waited else forked).append(took)
    print(f"{name:28}  {table(known)}  {table(standby)}  {table(forked)}", flush=True)


def table(seconds: list[float]) -> str:
    """Milliseconds."""
    if not seconds:
        return " ".join(f"{'-':>8}" for _ in COLUMNS)
    shown = (median(seconds), percentile(seconds, 0.9), max(seconds))
    return " ".join(f"{1000 * value:8.1f}" for value in shown)


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
    parser.add_argument("--repetitions", type=int, default=50, help="of each row; a row of 50 takes 1 to 5 minutes")
    parser.add_argument("--row", choices=list(ROWS), action="append", help="only this one; repeatable")
    parser.add_argument("--idle-minutes", type=float, default=0.0, help="count false alarms for so long instead")
    options = parser.parse_args()
    if options.idle_minutes:
        sys.exit(1 if idle(options.idle_minutes) else 0)
    heads = ("harm to verdict", "verdict to init(), standby", "verdict to init(), forked")
    print(f"{'milliseconds':28}  {'  '.join(f'{head:>26}' for head in heads)}")
    print(f"{'':28}  {'  '.join([' '.join(f'{column:>8}' for column in COLUMNS)] * len(heads))}", flush=True)
    for name in options.row or ROWS:
        measure(name, options.repetitions)


if __name__ == "__main__":
    main()
