"""Blackouts: every process of a job is killed at one moment, and the same command goes on from its last commit.

\b
    python -m everstep.chaos.blackouts --times 50 --seed 7

Each training is switched off a few times at moments that the seed chooses, then let end, and compared with its clean
run, bit for bit. What fails is kept.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click
import psutil

from everstep.agent.environment import RUN_DIR
from everstep.chaos.exact.variants import RECIPES, worlds
from everstep.chaos.trial import Ended, Trial, clean, finish, start
from everstep.checkpoint import catalog
from everstep.checkpoint.store import open_store

STEPS = 24
EACH = 5
"""Blackouts of one training."""
VARIANTS = ("mlp-static", "conv-carry", "gpt-accumulate", "hsdp-carry", "tp-dp", "fsdp", "mlp-unused")
"""One after the other, with as few ranks as they take."""
SPREAD_S = 0.1
"""So long after a commit, at most: some steps, and the next checkpoints in all their stages."""
START_S = 2.0
"""So long after the start, at most: the job comes up, and loads."""
PATIENCE_S = 20.0
"""So long a commit is awaited: it may be left out while both slots are busy."""
LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Blackout:
    """What it left."""

    committed: int
    """The newest step on storage; 0: none."""
    training: bool
    """It came after a commit of this life of the job, and not while it started."""


def family(run_dir: Path) -> list[psutil.Process]:
    """Every live process of this run: they carry the name of its directory."""
    mark = str(run_dir)
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if mark in " ".join(process.cmdline()) or process.environ().get(RUN_DIR) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


class Training:
    """One trial in a folder of its own, through blackouts to its end."""

    def __init__(self, trial: Trial, folder: Path, dice: random.Random) -> None:
        last = trial.recipe.steps - 1
        # Whatever the moment, the job is not over: a rank stands still in the last step.
        self._held = replace(trial, faults=(f"hang rank=1 step={last} phase=forward times=100",))
        self._trial = trial
        self._folder = folder
        self._dice = dice
        self._last = last - 1
        self._store = open_store(str(folder / "run" / "checkpoints"))
        self.wrong: list[str] = []
        (folder / "out").mkdir(parents=True)

    def black_out(self) -> Blackout:
        """Start it, or let it go on, and kill all of it. Behind a commit, unless the dice say that none is awaited."""
        before = self._newest()
        target = self._dice.randint(min(before + (before == 0), self._last), self._last)
        process = start(self._held, self._folder)
        if target > before:
            self._wait_for(target, process)
        time.sleep(self._dice.uniform(0, SPREAD_S if target > before else START_S))
        while those := family(self._folder / "run"):  # what they start meanwhile too
            for each in those:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait()
        self._look_back(before)
        return Blackout(self._newest(), target > before)

    def end(self) -> Ended:
        """Let it come to its end."""
        before = self._newest()
        ended = finish(self._trial, self._folder, start(self._trial, self._folder))
        self._look_back(before)
        if before and not self._resumed():
            self.wrong.append(f"the last life did not go on from the commit of step {before}")
        return ended

    def _wait_for(self, target: int, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._newest() < target and process.poll() is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)  # nobody calls: a file appears

    def _newest(self) -> int:
        return max((each.checkpoint.step for each in catalog.find(self._store) if each.commit), default=0)

    def _look_back(self, before: int) -> None:
        """At a life that is over: it has begun where the one before was, and storage has no damage."""
        if any(step != before for step in self._resumed()):
            self.wrong.append(f"the job went on from step {self._resumed()} and not from the commit of step {before}")
        damaged = [each for each in catalog.find(self._store) if each.condition is catalog.Condition.BAD]
        self.wrong += [f"{each.directory} is damaged: {each.reason}" for each in damaged]

    def _resumed(self) -> list[int]:
        text = (self._folder / "output.txt").read_text(errors="replace")
        return [int(step) for step in re.findall(r"goes on from the checkpoint of step (\d+)", text)]


def trials(dice: random.Random) -> Iterator[tuple[str, Trial]]:
    """Without an end."""
    while True:
        for name in dice.sample(VARIANTS, len(VARIANTS)):
            recipe = replace(RECIPES[name], steps=STEPS)
            yield name, Trial(recipe, worlds(name)[0], 0, (), ("--checkpoint-every", str(dice.choice((1, 2, 3)))))


@click.command(help=__doc__)
@click.option("--times", type=click.IntRange(min=0), default=50, show_default=True, help="Blackouts in all.")
@click.option("--seed", default=0, show_default=True, help="Of the moments, and of the order.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where it works.")
def main(times: int, seed: int, out: Path) -> None:
    dice = random.Random(seed)
    root = out.absolute() / f"blackouts-{seed}"
    failures, resumed, starting = 0, 0, 0
    for number, (name, trial) in enumerate(trials(dice)):
        if not (count := min(EACH, times)):
            break
        times -= count
        folder = root / f"training-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        training = Training(trial, folder, dice)
        blackouts = [training.black_out() for _ in range(count)]
        wrong = training.end().against(clean(trial, root / "clean")) + training.wrong
        resumed += sum(each.committed > 0 for each in blackouts)
        starting += sum(not each.training for each in blackouts)
        steps = ", ".join(f"{each.committed}{'' if each.training else ' (starting)'}" for each in blackouts)
        head = f"{number:5}  {name} on {trial.ranks}, {count} blackouts, last commits {steps}"
        if wrong:
            failures += 1
            click.echo("\n".join([f"{head}: FAILED", *(f"    {line}" for line in wrong), f"    kept: {folder}"]))
        else:
            click.echo(f"{head}: equal")
            shutil.rmtree(folder)
    click.echo(f"{resumed} blackouts with a commit to go on from, {starting} of them while the job started")
    click.echo(f"{failures} trainings did not end on the bits of their clean run")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
