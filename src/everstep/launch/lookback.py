"""Everything that is recorded of a run, as the one value that reports draw.

What cannot be read is left out, and said in `Run.remarks`: a directory may be empty, half-written, of another version,
or that of a run under way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from everstep.controller.job import RunDir
from everstep.core.machine import EXIT_DONE, EXIT_INTERRUPTED
from everstep.errors import ConfigError
from everstep.launch import recorded
from everstep.launch.recorded import Recorded, read_run
from everstep.observe.flight import read_lanes
from everstep.observe.history import History, read_history
from everstep.observe.report.run import Run, State
from everstep.observe.timeline import Lane

T = TypeVar("T")


def look_back(path: Path, now_s: float) -> Run:
    """ConfigError: there is no such directory."""
    run = RunDir(path)
    name = path.resolve().name
    try:
        found = read_run(path, now_s)
    except ConfigError as error:
        if not path.is_dir():
            raise
        return Run(name, State.EMPTY, remarks=(_sentence(error),))
    remarks = [_sentence(note) for note in found.notes]
    lanes = _attempt(remarks, lambda: read_lanes(path)) or ()
    history = _attempt(remarks, lambda: read_history(run.journal)) or History()
    job = _attempt(remarks, run.read_job)
    if not any(lane.spans for lane in lanes):
        remarks.append("No phase of a worker was recorded: lanes are empty, and only the controller's times are shown.")
    return Run(
        name=name,
        state=_state(found),
        reason=found.result.reason if found.result else "",
        program=" ".join(job.argv) if job else "",
        ranks=found.ranks or (job.config.ranks if job else 0),
        lanes=lanes,
        recoveries=tuple(found.recoveries),
        checkpoints=tuple(found.checkpoints),
        digests=tuple(found.digests),
        phases=tuple(history.phases),
        last_s=now_s if found.state is recorded.State.RUNNING else _newest(history, lanes, found),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _attempt(remarks: list[str], read: Callable[[], T]) -> T | None:
    """None if it is not there, or cannot be read."""
    try:
        return read()
    except FileNotFoundError:
        return None
    except (ConfigError, OSError) as error:
        remarks.append(_sentence(error))
        return None


def _sentence(said: object) -> str:
    text = str(said)
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def _state(found: Recorded) -> State:
    if found.state is recorded.State.RUNNING:
        return State.RUNNING
    if found.result is None:
        return State.CUT_OFF
    return {EXIT_DONE: State.DONE, EXIT_INTERRUPTED: State.INTERRUPTED}.get(found.result.code, State.FAILED)


def _newest(history: History, lanes: tuple[Lane, ...], found: Recorded) -> float | None:
    known = [span.start_s for span in history.phases[-1:]]
    known += [span.end_s or span.start_s for lane in lanes for span in lane.spans[-1:]]
    known += [recovery.time - recovery.t_detect_s + recovery.t_total_s for recovery in found.recoveries]
    known += [record.committed_s or record.time_s for record in found.checkpoints]
    return max(known, default=None)
