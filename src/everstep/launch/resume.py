"""What a job begins with: its checkpoint directory, its number in it, and the checkpoint that it goes on from.

Reads the directory, and claims the number; everything that can be wrong is said before the first process starts.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from everstep.checkpoint import catalog, names
from everstep.checkpoint.catalog import Found
from everstep.checkpoint.store import Store, open_store
from everstep.controller.cadence import OFF, Every
from everstep.controller.job import CheckpointPlan, Job, RunDir
from everstep.core.events import Checkpoint
from everstep.core.planner import REMEMBERED
from everstep.errors import ConfigError

log = logging.getLogger(__name__)

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for."""

    every: str
    keep: int
    keep_every: int
    grace_s: float
    directory: Path | None = None
    """``--checkpoint-dir``"""
    resume: str | None = None

    def check(self, run_dir: Path | None) -> None:
        """What can be told before there is a run directory."""
        Every.read(self.every)
        if self.resume is not None and _directory(self.resume) is None and not (run_dir or self.directory):
            raise ConfigError(f"--resume {self.resume}: of which run? give --run-dir, --checkpoint-dir or --resume DIR")


@dataclass(frozen=True, slots=True)
class Beginning:
    job: Job
    note: str = ""
    """For people."""


def begin(job: Job, run: RunDir, wish: Wish) -> Beginning:
    """The job with all that it has to know of checkpoints."""
    again = run.used
    if again and run.running:
        raise ConfigError(f"{run.path} belongs to a job that is running; give --run-dir another directory")
    where, only = _place(run, wish)
    resume = wish.resume or (LATEST if again else None)
    store = open_store(str(where))
    chosen: list[Checkpoint] = []
    if resume is not None:
        chosen = _choose(store, resume, only, f"{run.path} already holds a run" if wish.resume is None else "")
    taking = wish.every != OFF
    plan = CheckpointPlan(
        directory=str(where) if taking or chosen else "",
        every=wish.every,
        keep=wish.keep,
        keep_every=wish.keep_every,
        attempt=_claim(store, where) if taking else 0,
        grace_s=wish.grace_s,
    )
    job = replace(job, config=replace(job.config, resume=tuple(chosen)), checkpoints=plan)
    note = f"goes on from the checkpoint of step {chosen[0].step} in {where}" if chosen else ""
    if note and taking and where.parent.resolve() != run.path.resolve() and wish.directory is None:
        note += f"; new ones go there too, and of all {wish.keep} stay"
    return Beginning(job, note)


def hold(plan: CheckpointPlan) -> int | None:
    """Until this process ends no other job saves there: each would remove what is the other's. The lock, if any."""
    if not plan.attempt:
        return None
    descriptor = os.open(Path(plan.directory) / names.ATTEMPTS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"another job that is running saves its checkpoints to {plan.directory}: give --checkpoint-dir another "
            "directory; to go on from one of its checkpoints, copy that one there first"
        ) from None
    except OSError as error:  # a network file system that has no locks
        log.warning("%s cannot be locked (%s): no other job may save there", plan.directory, error.strerror)
    return descriptor


def _directory(resume: str) -> Path | None:
    """``--resume`` names a directory, unless it is a step or a word."""
    return None if resume == LATEST or resume.isdecimal() else Path(resume)


def _place(run: RunDir, wish: Wish) -> tuple[Path, Checkpoint | None]:
    """Where checkpoints are, and the only one that is meant, if one is."""
    named = _directory(wish.resume) if wish.resume is not None else None
    if named is None:
        return (wish.directory or run.path / names.DEFAULT).absolute(), None
    store, only = catalog.locate(named)
    root = Path(store.where).absolute()
    if wish.directory is not None and wish.directory.absolute() != root:
        raise ConfigError(f"--resume {named} and --checkpoint-dir {wish.directory}: a job has one checkpoint directory")
    return root, only


def _choose(store: Store, resume: str, only: Checkpoint | None, before: str) -> list[Checkpoint]:
    """The one to load, then those that it may fall back to."""
    good = list(catalog.good(store))
    if not good:
        what = f"{before}, and there is" if before else f"--resume {resume}: there is"
        advice = "; give --run-dir another directory" if before else ""
        raise ConfigError(f"{what} no good checkpoint in {store.where} to go on from{advice}")
    wanted = [each for each in good if _is_meant(each, resume, only)]
    if not wanted:
        steps = ", ".join(str(step) for step in sorted({each.checkpoint.step for each in good}))
        raise ConfigError(f"--resume {resume}: no good checkpoint in {store.where} is that; there are steps {steps}")
    first = wanted[0].checkpoint
    return [first, *islice(_older(good, first), REMEMBERED - 1)]


def _is_meant(found: Found, resume: str, only: Checkpoint | None) -> bool:
    if resume.isdecimal():
        return found.checkpoint.step == int(resume)
    return only is None or found.checkpoint == only


def _older(good: Sequence[Found], first: Checkpoint) -> list[Checkpoint]:
    """One of a later step is not what the chosen one has come from."""
    every = [each.checkpoint for each in good]
    return [other for other in every if other.age < first.age and other.step <= first.step]


def _claim(store: Store, where: Path) -> int:
    try:
        return catalog.claim_attempt(store)
    except OSError as error:
        raise ConfigError(
            f"checkpoint directory {where}: {error.strerror}; give --checkpoint-dir another one, "
            f"or --checkpoint-every {OFF}"
        ) from None
