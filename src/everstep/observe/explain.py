"""One recovery in plain sentences: what failed, where everybody was, what was decided and why, what it cost.

Made from its record alone; where the survivors were is told by the journal, if somebody has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from everstep.core.events import Cause, Position
from everstep.observe.records import Decision, Failure, Outcome, Recovery, abridged
from everstep.types import Generation, Rank, WorkerPhase
from everstep.units import write_duration, write_size

Survivors = Mapping[Generation, Mapping[Rank, Position]]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its sentences, each a line."""

    title: str
    lines: tuple[str, ...]


def explain(recovery: Recovery, survivors: Survivors | None = None) -> list[Section]:
    """Sections without a sentence are left out."""
    parts = (
        ("What failed", _failed(recovery)),
        ("Where the others were", _others(recovery, survivors or {})),
        ("What was decided", _decided(recovery)),
        ("Who replaced whom", _replaced(recovery)),
        ("What was copied", _copied(recovery)),
        ("Where the time went", _spent(recovery)),
        ("What was lost", _lost(recovery)),
    )
    sections = [Section(title, tuple(lines)) for title, lines in parts]
    return [section for section in sections if section.lines]


def ranks(numbers: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0–2, 5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    text = ", ".join("–".join(map(str, run)) for run in runs)
    return f"rank{'' if text.isdecimal() else 's'} {text}"


# ── the sections ─────────────────────────────────────────────────────────────────────────────────────────


def _failed(recovery: Recovery) -> Iterator[str]:
    for count, failure in enumerate(recovery.failures):
        first, *rest = [line for line in failure.evidence.splitlines() if line.strip()] or ["no evidence"]
        words = ("Then" if count else "", _who(failure), _cause(failure), _place(failure))
        yield f"{' '.join(filter(None, words))}: {first.strip()}"
        yield from (f"    {line}" for line in rest)
        if failure.false_alarm:
            yield "That was a false alarm: it had moved on before it was killed. It does not count as a failure."
    late = f"{write_duration(recovery.t_detect_s)} after the last sign of life" if recovery.t_detect_s else "at once"
    yield f"It was known {late}."
    if len(recovery.generations) > 1:
        began = ", ".join(map(str, recovery.generations))
        yield f"The recovery began anew with what failed inside it: generations {began}."


def _who(failure: Failure) -> str:
    if failure.rank is None:
        return "" if failure.worker is None else f"worker {failure.worker} on {failure.node}"
    return f"rank {failure.rank} (worker {failure.worker} on {failure.node})"


def _cause(failure: Failure) -> str:
    """As it follows a name."""
    odd = {Cause.DEVICE.name: "had a sick device", Cause.NODE.name: "was on a node that is out of reach"}
    known = {cause.name: cause.value for cause in Cause} | odd
    return known.get(failure.cause, failure.cause)


def _place(failure: Failure) -> str:
    """Nobody may have seen it."""
    if failure.phase is None:
        return ""
    phase = WorkerPhase.__members__.get(failure.phase)
    return failure.phase if phase is None else _where(phase, failure.step)


def _others(recovery: Recovery, survivors: Survivors) -> Iterator[str]:
    for generation in recovery.generations:
        at = survivors.get(Generation(generation), {})
        name = f"Generation {generation}: " if len(recovery.generations) > 1 else ""
        ordered = sorted(at.items(), key=lambda entry: (entry[1].version, entry[1].phase, entry[0]))
        for position, group in groupby(ordered, key=lambda entry: entry[1]):
            yield f"{name}{ranks(rank for rank, _ in group)}: {_where(position.phase, position.version)}"


def _where(phase: WorkerPhase, step: int | None) -> str:
    of_step = "" if step is None else f" of step {step}"
    before = "" if step is None else f", before step {step}"
    return {
        WorkerPhase.SPAWNED: "while it was being started",
        WorkerPhase.STANDBY: "while it waited as a standby",
        WorkerPhase.BUILDING: "in the script, before protect()",
        WorkerPhase.HOLLOW: "at protect(), without state yet",
        WorkerPhase.IDLE: f"between two steps{before}",
        WorkerPhase.FORWARD: f"in Forward{of_step}",
        WorkerPhase.BACKWARD: f"in Backward{of_step}",
        WorkerPhase.READY: f"in the Gradient Synchronization Barrier{of_step}, with complete gradients",
        WorkerPhase.COMMITTED: f"in the Optimizer Step{of_step}, past the barrier",
        WorkerPhase.ENDED: "behind the last step",
    }[phase]


def _decided(recovery: Recovery) -> Iterator[str]:
    how = {
        Decision.REDO: f"To drop step {recovery.target} and run it again.",
        Decision.FINISH: f"To let the update count, and go on with step {recovery.target}.",
        Decision.ROLLBACK: f"To go back to the checkpoint of step {recovery.target}: no replica could heal it.",
        Decision.RESTART: "To start all workers again.",
        None: "Nothing: the job ended before.",
    }
    yield how[recovery.decision]
    if recovery.reason:
        because = "Why the job ended" if recovery.outcome in _ENDED else "Why"
        yield f"{because}: {abridged(recovery.reason)}."


def _replaced(recovery: Recovery) -> Iterator[str]:
    for failure in recovery.failures:
        if failure.rank is None:
            continue
        after = failure.replaced_by
        if after is None:
            yield f"rank {failure.rank}: nobody took it."
            continue
        who = f"standby {after.worker}" if after.standby else f"worker {after.worker}, a new process,"
        where = "the same node" if after.node == failure.node else f"{after.node} instead of {failure.node}"
        yield f"rank {failure.rank}: {who} on {where} took it from worker {failure.worker}."


def _copied(recovery: Recovery) -> Iterator[str]:
    for donor in recovery.donors:
        yield f"rank {donor.rank} (worker {donor.worker}) gave its state to worker {donor.to}."
    if recovery.bytes:
        source = "" if recovery.donors else ", from a checkpoint"
        yield f"{write_size(recovery.bytes)} in all{source}."


def _spent(recovery: Recovery) -> Iterator[str]:
    restart = recovery.decision is Decision.RESTART
    stages = (
        ("detect", recovery.t_detect_s, "from the last sign of life to the verdict"),
        ("stop", recovery.t_stop_s, "until the old processes were gone" if restart else "until all had stopped"),
        ("decide", recovery.t_decide_s, "until each rank had a place" if restart else "until the decision went out"),
        ("settle", recovery.t_settle_s, f"until all were at protect(){_script(recovery)}"),
        ("reset", recovery.t_reset_s, "until all had new groups"),
        ("restore", recovery.t_restore_s, "until newcomers had their state"),
        ("first step", recovery.t_first_step_s, f"until step {recovery.target} had committed"),
        ("total", recovery.t_total_s, ""),
    )
    for name, seconds, what in stages:
        if not seconds and recovery.outcome in _ENDED:
            continue  # it did not come to that
        yield f"{name:<10}  {write_duration(seconds) if seconds else '0':>7}  {what}".rstrip()


def _script(recovery: Recovery) -> str:
    return f"; a newcomer's script took {write_duration(recovery.t_script_s)}" if recovery.t_script_s else ""


def _lost(recovery: Recovery) -> Iterator[str]:
    again = f"{recovery.steps_redone} step{'' if recovery.steps_redone == 1 else 's'} ran again"
    if recovery.outcome in _ENDED:
        yield "The job ended here; what it had saved is what there is."
    elif recovery.decision is Decision.ROLLBACK or (recovery.decision is Decision.RESTART and recovery.target):
        yield f"What came after the checkpoint of step {recovery.target}: {again}."
    elif recovery.decision is Decision.RESTART:
        yield f"All of the training so far: {again}." if recovery.steps_redone else "Nothing: there was no state yet."
    else:
        redone = f"; {again}" if recovery.steps_redone else ", and no step ran again"
        yield f"No completed step{redone}."


_ENDED = (Outcome.FAILED, Outcome.INTERRUPTED)


def headline(recovery: Recovery) -> str:
    """What it was, in a line."""
    how = {
        Outcome.RECOVERED: f"recovered in {write_duration(recovery.t_total_s)}",
        Outcome.DONE: "the job was done before another step",
        Outcome.FAILED: "not recovered: the job failed",
        Outcome.INTERRUPTED: "not recovered: the job was interrupted",
    }
    return f"recovery {recovery.number}, generation {recovery.generation}: {how[recovery.outcome]}"
