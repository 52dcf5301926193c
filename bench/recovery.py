"""How long a job stands still when a device dies, beside its floor: `python -m bench.recovery`.

Four ranks train 2.1 million parameters with AdamW; again and again one of them, at a random moment, gets kill -9. A
recovery counts from the kill to the first commit behind it (both by the wall clock of one machine). Its stages are
those of `recoveries.jsonl`, but for the detection, which is counted from the kill here; they add up to the total,
without the newcomer's script, which runs beside. With fewer than 100 kills p99 is the slowest. The floor
(`bench.floor`) is measured in the same run, behind each row.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench import floor
from bench.jobs import Job, job, wait_for
from bench.table import median, percentile
from bench.workload import LAYERS, WIDTH
from everstep.launch.client import Snapshot
from everstep.observe.records import Recovery

RANKS = 4
STEPS_BETWEEN = 5
STAGES = ("stop", "decide", "settle", "script", "reset", "restore", "first_step")
STEP_S = 0.1
"""A kill comes within so long at random, which is longer than a step."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One kill, and what became of it."""

    killed_at: float
    record: Recovery

    @property
    def detect_s(self) -> float:
        return self.record.time - self.killed_at

    @property
    def total_s(self) -> float:
        return self.detect_s + self.record.t_total_s - self.record.t_detect_s

    def seconds(self, stage: str) -> float:
        if stage == "detect":
            return self.detect_s
        return self.total_s if stage == "total" else float(getattr(self.record, f"t_{stage}_s"))


def losses(repeat: int, standby: bool, dice: random.Random) -> list[Loss]:
    found = []
    program = ("-m", "bench.endless", str(WIDTH), str(LAYERS))
    with job(RANKS, program, "--standby", str(int(standby))) as running:
        version = STEPS_BETWEEN
        for _ in range(repeat):
            now = running.training(standby, version)
            found.append(lose(running, now, dice))
            version = found[-1].record.target + STEPS_BETWEEN
    return found


def lose(running: Job, now: Snapshot, dice: random.Random) -> Loss:
    pid = dice.choice(now.workers).pid
    assert pid is not None
    known = len(running.recoveries())
    time.sleep(dice.uniform(0, STEP_S))
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)
    record = wait_for(lambda: next(iter(running.recoveries()[known:]), None), pause_s=0.02)
    return Loss(killed_at, record)


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────


def print_rows(name: str, lost: Sequence[Loss], floors: Sequence[floor.Floor]) -> None:
    phases = Counter(loss.record.phase for loss in lost)
    print(f"\n{name}: {len(lost)} kills, in {', '.join(f'{phase} {count}' for phase, count in phases.items())}")
    print(f"{'':12} {'median':>8} {'p99':>8}   milliseconds")
    for stage in ("detect", *STAGES, "total"):
        print_row(stage, [loss.seconds(stage) for loss in lost])
    for part in ("regroup", "copy", "step", "total"):
        print_row(f"floor {part}", [getattr(each, f"{part}_s") for each in floors])
    ratio = median([loss.total_s for loss in lost]) / median([each.total_s for each in floors])
    print(f"{'total/floor':12} {ratio:8.2f}", flush=True)


def print_row(name: str, seconds: Sequence[float]) -> None:
    print(f"{name:12} {1000 * median(seconds):8.1f} {1000 * percentile(seconds, 0.99):8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=50, help="kills in each of the two rows")
    parser.add_argument("--row", choices=("standby", "fork"), action="append", help="only this one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    for row in options.row or ("standby", "fork"):
        lost = losses(options.repeat, row == "standby", dice)
        floors = floor.measure(RANKS, lost[0].record.bytes, max(10, options.repeat // 2))
        print_rows(row, lost, floors)


if __name__ == "__main__":
    main()
