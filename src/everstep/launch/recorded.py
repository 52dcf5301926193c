"""What the directory of a run holds, for those who look back: all that can be read, and a sentence for what cannot.

A run may be over, or running, or killed; its files may be half-written, of another version, or not there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from everstep.controller.job import RunDir
from everstep.controller.journal import Record, read
from everstep.core.config import JobConfig
from everstep.errors import ConfigError
from everstep.launch.client import Result
from everstep.observe.checkpoints import CheckpointRecord, scan_checkpoints
from everstep.observe.digests import DigestRecord, scan_digests
from everstep.observe.lines import Lines
from everstep.observe.records import Recovery, scan_recoveries

T = TypeVar("T")


class State(enum.Enum):
    RUNNING = "running"
    OVER = "over"
    KILLED = "killed"  # nobody supervises it, and it has no result


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run as its directory tells it."""

    path: Path
    state: State
    result: Result | None
    recoveries: list[Recovery]
    checkpoints: list[CheckpointRecord]
    digests: list[DigestRecord]
    journal: list[Record]
    """Empty if there is none that can be read."""
    run_s: float | None
    """From the first event until the end, or now; None without a journal."""
    ranks: int | None
    notes: tuple[str, ...]
    """What a reader should know before believing the rest."""


def read_run(path: Path, now_s: float) -> Recorded:
    """A ConfigError if nothing of a run is there at all, or it must not be read."""
    try:
        return _read(RunDir(path), now_s)
    except OSError as error:
        raise ConfigError(f"{error.filename or path} cannot be read: {error.strerror}") from None


def _read(run: RunDir, now_s: float) -> Recorded:
    notes = _missing(run)
    result = _result(run, notes)
    state = State.OVER if run.result.exists() else State.RUNNING if run.running else State.KILLED
    recoveries = _lines(scan_recoveries(run.recoveries), run.recoveries, state, notes)
    checkpoints = _lines(scan_checkpoints(run.checkpoints), run.checkpoints, state, notes)
    digests = _lines(scan_digests(run.digests), run.digests, state, notes)
    journal = _journal(run, notes)
    if state is State.RUNNING:
        notes.append("the job is running: this is what is known so far")
    elif state is State.KILLED:
        notes.append("the run has no result and nobody runs it: it was killed, or these are not all of its files")
    run_s = ranks = None
    if journal:
        last_s = max((journal[-1].time_s, *(checkpoint.time_s for checkpoint in checkpoints[-1:])))
        run_s = max(0.0, (now_s if state is State.RUNNING else last_s) - journal[0].time_s)
        config = journal[0].entry
        ranks = config.ranks if isinstance(config, JobConfig) else None
    return Recorded(run.path, state, result, recoveries, checkpoints, digests, journal, run_s, ranks, tuple(notes))


def _missing(run: RunDir) -> list[str]:
    """The first notes."""
    if not run.path.is_dir():
        what = "it is a file" if run.path.exists() else "there is no such directory"
        raise ConfigError(f"{run.path} is not the directory of a run: {what}")
    job = run.path / "job.json"
    files = (job, run.journal, run.recoveries, run.checkpoints, run.result)
    if not any(file.exists() for file in files):
        names = ", ".join(file.name for file in files)
        raise ConfigError(f"{run.path} is not the directory of a run: it has none of {names}")
    return [] if job.exists() else ["there is no job.json: these are parts of the directory of a run"]


def _result(run: RunDir, notes: list[str]) -> Result | None:
    try:
        return Result.read(run)
    except ConfigError as error:
        notes.append(str(error))
        return None


def _lines(found: Lines[T], path: Path, state: State, notes: list[str]) -> list[T]:
    notes += found.foreign
    if found.torn and state is not State.RUNNING:
        notes.append(f"the last line of {path.name} was never finished: it is left out")
    return found.records


def _journal(run: RunDir, notes: list[str]) -> list[Record]:
    try:
        return list(read(run.journal))
    except FileNotFoundError:
        notes.append("there is no journal: how long the run was, and with how many ranks, is not known")
    except ConfigError as error:
        notes.append(str(error))
    return []
