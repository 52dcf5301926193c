"""Walks through the matrix of failures with real jobs, each compared with its clean run, bit for bit.

\b
    python -m everstep.chaos.matrix --minutes 60 --seed 7
    python -m everstep.chaos.matrix --minutes 60 --variants hsdp,tp-dp
    python -m everstep.chaos.matrix --seed 7 --only 42

The trials are the same for a seed and a choice of variants, in the same order. What fails is kept, with the command
that repeats it.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import click

from everstep.chaos.cells import Cell, Plan, Planned, parts
from everstep.chaos.exact.variants import chosen
from everstep.chaos.trial import Ended, clean, run

SHOWN = 12
"""Cells without a strike that are named in the report; the rest is counted."""


@dataclass(slots=True)
class Coverage:
    """What was walked through so far."""

    variants: list[str]
    runs: int = 0
    strikes: int = 0
    recoveries: int = 0
    cells: Counter[Cell] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    """Seconds of a recovery from its detection on, and its trial."""

    def add(self, planned: Planned, ended: Ended, wrong: list[str]) -> None:
        self.runs += 1
        self.strikes += len(ended.struck)
        self.recoveries += len(ended.recoveries)
        took = (recovery.t_total_s - recovery.t_detect_s for recovery in ended.recoveries)
        self.slowest = max([self.slowest, *((seconds, planned.number) for seconds in took)])
        if wrong:
            self.failures.append(f"trial {planned.number}: {wrong[0]}")
        else:
            self.cells.update(planned.struck(ended.struck))

    def lines(self) -> Iterator[str]:
        counts = f"{self.strikes} faults struck, {self.recoveries} recoveries"
        yield f"{self.runs} runs, {counts}, {len(self.failures)} failures"
        yield "  slowest recovery, from its detection on: {:.1f} s, in trial {}".format(*self.slowest)
        for part, cells in parts(self.variants).items():
            missed = [cell for cell in cells if not self.cells[cell]]
            yield f"  {part:14} {len(cells) - len(missed):4} of {len(cells):3} cells"
            yield from (f"{'':17} not: {', '.join(cell[1:])}" for cell in missed[:SHOWN])
            if len(missed) > SHOWN:
                yield f"{'':17} and {len(missed) - SHOWN} more"


class Matrix:
    """Runs the trials of a seed, some at a time, and tells of each."""

    def __init__(self, seed: int, variants: str, folder: Path) -> None:
        self.folder = folder
        self.names = chosen(variants)
        self.coverage = Coverage(self.names)
        self._again = f"--seed {seed}" + (f" --variants {variants}" if variants else "")

    def run(self, trials: Iterable[Planned], jobs: int, until_s: float) -> None:
        """Until the time is over; what runs then is still awaited."""
        coming = iter(trials)
        with ThreadPoolExecutor(jobs) as pool:
            running: set[Future[None]] = set()
            while True:
                while len(running) < jobs and time.monotonic() < until_s and (planned := next(coming, None)):
                    running.add(pool.submit(self._one, planned))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()

    def _one(self, planned: Planned) -> None:
        folder = self.folder / f"trial-{planned.number}"
        shutil.rmtree(folder, ignore_errors=True)
        wanted = clean(planned.trial, self.folder / "clean")
        begin = time.monotonic()
        ended = run(planned.trial, folder)
        # Without a replica it ends and says so, or goes back to a checkpoint if one was taken in time.
        wrong = ended.against(wanted) if planned.survives or not ended.code else ended.without_replica()
        self.coverage.add(planned, ended, wrong)
        struck = f"{len(ended.struck)} of {len(planned.trial.faults)} faults"
        who = f"{planned.variant} on {planned.trial.ranks}"
        head = f"{planned.number:5}  {who}, {struck}, {time.monotonic() - begin:.1f} s"
        if not wrong:
            click.echo(f"{head}: equal")
            shutil.rmtree(folder)
            return
        lines = [f"{head}: FAILED", *(f"    {sentence}" for sentence in wrong[:SHOWN])]
        lines.append(f"    again: python -m everstep.chaos.matrix {self._again} --only {planned.number}")
        lines += [f"    by hand: {planned.trial}", f"    kept: {folder}"]
        click.echo("\n".join(lines))


@click.command(help=__doc__)
@click.option("--minutes", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Then no more begins.")
@click.option("--seed", default=0, show_default=True, help="Of the order.")
@click.option("--variants", default="", help="Those that begin so, with commas between: hsdp,tp-dp. All without it.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Trials at a time.")
@click.option("--only", type=click.IntRange(min=0), help="This trial of the seed alone.")
@click.option("--times", type=click.IntRange(min=1), default=1, help="With --only: how often.", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where it works.")
def main(minutes: float, seed: int, variants: str, jobs: int, only: int | None, times: int, out: Path) -> None:
    try:
        matrix = Matrix(seed, variants, out.absolute() / f"chaos-{seed}")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--variants") from None
    trials: Iterator[Planned] = iter(Plan(seed, matrix.names))
    until_s = time.monotonic() + 60 * minutes
    if only is not None:
        trials, jobs, until_s = itertools.repeat(next(itertools.islice(trials, only, None)), times), 1, float("inf")
    matrix.run(trials, jobs, until_s)
    for line in (*matrix.coverage.lines(), *matrix.coverage.failures):
        click.echo(line)
    sys.exit(1 if matrix.coverage.failures else 0)


if __name__ == "__main__":
    main()
