"""Reads the directory of a run, whatever is there: an empty one, half-written files, another version, a run under way.

What cannot be read is left out, and said in `Run.remarks`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from everstep.controller import journal
from everstep.controller.job import RunDir
from everstep.core.machine import EXIT_DONE, EXIT_INTERRUPTED
from everstep.errors import ConfigError
from everstep.launch.client import Result
from everstep.observe.checkpoints import CheckpointRecord
from everstep.observe.records import Recovery
from everstep.observe.report.run import Run, State
from everstep.observe.report.story import Story, tell
from everstep.observe.timeline import Lane

CHECKPOINTS = "checkpoints.jsonl"

_T = TypeVar("_T")


def read(path: Path) -> Run:
    """ConfigError: there is no such directory."""
    if not path.is_dir():
        raise ConfigError(f"{path} is no directory: give the directory of a run, for example one of ./runs")
    run = RunDir(path)
    remarks: list[str] = []
    job = _attempt(remarks, run.read_job)
    story = _attempt(remarks, lambda: tell(journal.read(run.journal))) or Story()
    lanes = _attempt(remarks, lambda: _read_lanes(path)) or ()
    result = _attempt(remarks, lambda: Result.read(run))
    recoveries = _read_lines(run.recoveries, Recovery, remarks)
    checkpoints = _read_lines(path / CHECKPOINTS, CheckpointRecord, remarks)
    state = _state(run, result)
    if state is not State.EMPTY and not lanes:
        remarks.append("No timeline was recorded: the pictures show what the controller knows, and no phases of steps.")
    return Run(
        name=path.resolve().name,
        state=state,
        reason=result.reason if result else "",
        program=" ".join(job.argv) if job else "",
        ranks=story.ranks or (job.config.ranks if job else 0),
        lanes=lanes,
        recoveries=recoveries,
        checkpoints=checkpoints,
        seats=tuple(story.seats),
        turns=tuple(story.turns),
        messages=tuple(story.messages),
        steps=max([story.steps, *(span.step for lane in lanes for span in lane.spans[-1:])]),
        last_s=time.time() if state is State.RUNNING else _newest(story, lanes, recoveries),
        remarks=(*_about(state), *remarks),
    )


def _attempt(remarks: list[str], read: Callable[[], _T]) -> _T | None:
    """None if it is not there, or cannot be read."""
    try:
        return read()
    except FileNotFoundError:
        return None
    except (ConfigError, OSError, msgspec.DecodeError) as error:
        remarks.append(f"{error}.")
        return None


def _read_lanes(path: Path) -> tuple[Lane, ...]:
    return ()


def _read_lines(path: Path, kind: type[_T], remarks: list[str]) -> tuple[_T, ...]:
    """Of a file with a record in each line those that can be read. A last line without an end is being written."""
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    found: list[_T] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError as error:
            remarks.append(f"Line {number} of {path.name} is of another version of everstep, or damaged: {error}.")
    return tuple(found)


def _state(run: RunDir, result: Result | None) -> State:
    if result is not None:
        ends = {EXIT_DONE: State.DONE, EXIT_INTERRUPTED: State.INTERRUPTED}
        return ends.get(result.code, State.FAILED)
    if not any(run.path.iterdir()):
        return State.EMPTY
    return State.RUNNING if _locked(run.path / "lock") else State.CUT_OFF


def _locked(path: Path) -> bool:
    """Whoever supervises the run holds it as long as the run lives."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _about(state: State) -> tuple[str, ...]:
    said = {
        State.EMPTY: "Nothing is recorded in this directory.",
        State.RUNNING: "This run is still going on: what is drawn here is as far as it has come.",
        State.CUT_OFF: "This run has no result: it was killed, or its directory was copied while it ran.",
    }
    return (said[state],) if state in said else ()


def _newest(story: Story, lanes: tuple[Lane, ...], recoveries: tuple[Recovery, ...]) -> float | None:
    known = [story.last_s] if story.last_s is not None else []
    known += [span.end_s or span.start_s for lane in lanes for span in lane.spans[-1:]]
    known += [recovery.time + recovery.t_total_s - recovery.t_detect_s for recovery in recoveries]
    return max(known, default=None)
