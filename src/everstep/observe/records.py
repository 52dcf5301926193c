"""The record of a recovery: a line of `recoveries.jsonl`, a part of the status, a sentence in the log.

docs/operations.md explains each key to users.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

import msgspec

from everstep.observe.lines import Lines, read_lines


class Decision(enum.StrEnum):
    """How the job went on."""

    REDO = "redo"  # the step was dropped and ran again
    FINISH = "finish"  # its update counted; all went on with the next one
    ROLLBACK = "rollback"  # all loaded a checkpoint
    RESTART = "restart"  # all began with the script


class Outcome(enum.StrEnum):
    """How the recovery ended."""

    RECOVERED = "recovered"  # step T committed, or all have left the loop together
    DONE = "done"  # the job ended well before a step committed: its script has no protect()
    FAILED = "failed"  # the job failed inside it
    INTERRUPTED = "interrupted"  # a person ended the job inside it


@dataclass(frozen=True, slots=True)
class Replacement:
    """Who took the rank of a failed worker."""

    worker: int
    node: str
    standby: bool
    """Else a process that was started for it."""


@dataclass(frozen=True, slots=True)
class Donor:
    """Who gave its state to which newcomer."""

    worker: int
    rank: int
    to: int
    """A worker too."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One reason why a recovery began, or began again. If nobody is to blame, it names no worker."""

    cause: str
    """Name of a `Cause`."""
    evidence: str
    worker: int | None
    rank: int | None
    node: str | None
    phase: str | None
    """Name of the `WorkerPhase` in which it was last seen; None if nobody saw it."""
    step: int | None
    replaced_by: Replacement | None = None
    false_alarm: bool = False

    @property
    def sentence(self) -> str:
        """``rank 2 (killed by SIGKILL in COMMITTED of step 7) → standby 4``."""
        text = one_line(self.evidence)
        if self.rank is None:
            return text
        alarm = ", a false alarm" if self.false_alarm else ""
        after = self.replaced_by
        who = "" if after is None else f" → {'standby' if after.standby else 'new worker'} {after.worker}"
        return f"rank {self.rank} ({text}{alarm}){who}"


@dataclass(frozen=True, slots=True)
class Recovery:
    """From the first failure until the job goes on, or ends. What is known of the first failure stands on top too.

    Seconds are of the wall clock of the controller, and summed over the generations that it took.
    """

    number: int
    """Counts the recoveries of the run from 0: the record is this line of the file."""
    time: float
    """Of the first verdict, in seconds since 1970."""
    generation: int
    """The one that the job went on with."""
    generations: tuple[int, ...]
    """All that were begun; more than one if somebody failed in the recovery."""
    cause: str
    evidence: str
    rank: int | None
    node: str | None
    phase: str | None
    step: int | None
    false_alarm: bool
    target: int
    """T: the step that all went on with."""
    decision: Decision | None
    """The newest; None if the job ended before there was one."""
    reason: str
    """Why so, or why the job ended."""
    replaced_by: Replacement | None
    donors: tuple[Donor, ...]
    bytes: int
    t_detect_s: float
    t_stop_s: float
    t_decide_s: float
    t_settle_s: float
    t_script_s: float
    t_reset_s: float
    t_restore_s: float
    t_first_step_s: float
    t_total_s: float
    steps_redone: int
    outcome: Outcome
    failures: tuple[Failure, ...]

    @property
    def sentence(self) -> str:
        """For the log of a person."""
        who = "; ".join(failure.sentence for failure in self.failures)
        spent = ", ".join(f"{name} {getattr(self, f't_{name}_s'):.2f}" for name in _SHOWN)
        return f"{_HOW[self.outcome].format(self.t_total_s)}: {who}; {self._result} ({spent})"

    @property
    def _result(self) -> str:
        if self.outcome in (Outcome.FAILED, Outcome.INTERRUPTED):
            return abridged(self.reason)
        if self.decision is Decision.RESTART:
            return "all started again" + (f" and loaded step {self.target}" if self.target else "")
        if self.decision is Decision.ROLLBACK:
            return f"all go back to step {self.target}"
        return f"all {'redo' if self.decision is Decision.REDO else 'go on with'} step {self.target}"


_HOW = {
    Outcome.RECOVERED: "recovered in {:.2f} s",
    Outcome.DONE: "the job is done, {:.2f} s after",
    Outcome.FAILED: "not recovered, the job failed after {:.2f} s",
    Outcome.INTERRUPTED: "not recovered, the job was interrupted after {:.2f} s",
}
_SHOWN = ("detect", "stop", "decide", "settle", "reset", "restore", "first_step")
"""They add up to the total. The script runs while the survivors settle."""

_DECODER = msgspec.json.Decoder(Recovery)


def encode(recovery: Recovery) -> bytes:
    """One line."""
    return msgspec.json.encode(recovery) + b"\n"


def shown(recovery: Recovery | None) -> object:
    """As a part of another JSON document."""
    return None if recovery is None else msgspec.to_builtins(recovery)


def abridged(text: str) -> str:
    """Of several lines how they begin and end: of a traceback what was raised."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" )")]
    return " … ".join(lines if len(lines) < 2 else (lines[0], lines[-1]))


def scan_recoveries(path: Path) -> Lines[Recovery]:
    """What can be read of the records of a run, whatever state its file is in."""
    return read_lines(path, _DECODER.decode)


def read_recoveries(path: Path) -> list[Recovery]:
    """All records of a run, oldest first. A last line that is still being written is left out."""
    return scan_recoveries(path).whole()


def one_line(text: str) -> str:
    """Of a traceback its last line, else the first one of the text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0].rstrip(":")
