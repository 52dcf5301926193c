"""The numbers of a run as a whole: goodput, failures by cause and phase, how long recoveries took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median

from everstep.observe.records import Decision, Recovery
from everstep.observe.report import audit, words
from everstep.observe.report.run import Run
from everstep.observe.report.scene import failed_at, recovered
from everstep.observe.report.steps import typical_step
from everstep.observe.report.words import FORWARD


@dataclass(frozen=True, slots=True)
class Goodput:
    """Useful step time over wall time, from the first step to the last one.

    Useful is what is left of the wall time without recoveries (until step T commits; the time that a step usually
    takes is not lost of it), without work that was thrown away, and without copies to memory.
    """

    wall_s: float
    recoveries_s: float
    redone_s: float
    checkpoints_s: float

    @property
    def useful_s(self) -> float:
        return max(0.0, self.wall_s - self.recoveries_s - self.redone_s - self.checkpoints_s)

    @property
    def share(self) -> float:
        return self.useful_s / self.wall_s if self.wall_s > 0 else 0.0


def goodput(run: Run) -> Goodput | None:
    """None as long as no step is known to have run."""
    if run.began_s is None or run.trained_s is None or run.trained_s <= run.began_s:
        return None
    step = typical_step(run.lanes)
    step_s = step.length_s if step is not None else 0.0
    lost_s = redone_s = 0.0
    for recovery in run.recoveries:
        if recovery.time < run.began_s:
            continue
        useful_s = min(step_s, recovery.t_first_step_s) if recovered(recovery) else 0.0
        lost_s += recovery.t_total_s - useful_s
        redone_s += _thrown_away_s(run, recovery, step_s)
    held_up_s = sum(record.k0_s for record in run.checkpoints)
    return Goodput(run.trained_s - run.began_s, lost_s, redone_s, held_up_s)


def _thrown_away_s(run: Run, recovery: Recovery, step_s: float) -> float:
    """The begun step until it failed; after a rollback the steps since the checkpoint too."""
    if recovery.decision in (Decision.FINISH, None) or not recovery.steps_redone:
        return 0.0
    lanes = {lane.worker: lane for lane in run.lanes}
    failed_s = failed_at(recovery.failures[0] if recovery.failures else None, lanes, recovery, first=True)
    starts = [
        span.start_s
        for lane in run.lanes
        for span in lane.spans
        if span.phase == FORWARD and failed_s - 20 * max(step_s, 0.001) < span.start_s <= failed_s
    ]
    begun_s = failed_s - max(starts) if starts else step_s / 2
    return begun_s + (recovery.steps_redone - 1) * step_s


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with its name, and what it means."""

    name: str
    value: str
    note: str


def tiles(run: Run) -> list[Tile]:
    found = [_goodput_tile(run), Tile("steps", f"{run.steps:,}", _steps_note(run))]
    done = sorted(recovery.t_total_s for recovery in run.recoveries if recovered(recovery))
    failures = sum(len(recovery.failures) for recovery in run.recoveries)
    lost = len(run.recoveries) - len(done)
    found.append(Tile("failures", f"{failures:,}", "none" if not failures else _by(run)))
    if run.recoveries:
        value = words.duration(median(done)) if done else "none"
        span = f"{words.duration(done[0])} to {words.duration(done[-1])}" if done else ""
        note = f"median of {len(done)}; {span}" if done else "none was completed"
        found.append(Tile("recovery", value, note + (f"; {lost} not completed" if lost else "")))
        redone = sum(recovery.steps_redone for recovery in run.recoveries)
        found.append(Tile("steps run again", f"{redone:,}", _redone_note(run)))
    if run.checkpoints:
        last = run.checkpoints[-1]
        committed = sum(record.committed_s is not None for record in run.checkpoints)
        note = f"{committed} of {len(run.checkpoints)} on storage; last: step {last.step}, {last.fate.value}"
        found.append(Tile("checkpoints", f"every {last.every}", note))
    found.append(Tile("hash audit", *audit.verdict(run)))
    return found


def _goodput_tile(run: Run) -> Tile:
    made = goodput(run)
    if made is None:
        return Tile("goodput", "–", "no step was seen to run")
    lost = [
        f"{words.duration(seconds)} {what}"
        for seconds, what in (
            (made.recoveries_s, "recoveries"),
            (made.redone_s, "work thrown away"),
            (made.checkpoints_s, "copies to memory"),
        )
        if seconds > 0
    ]
    note = f"useful step time of {words.duration(made.wall_s)}" + (f"; lost: {', '.join(lost)}" if lost else "")
    return Tile("goodput", words.share(made.share), note)


def _steps_note(run: Run) -> str:
    step = typical_step(run.lanes)
    return f"{words.duration(step.length_s)} each, typically" if step is not None else ""


def _redone_note(run: Run) -> str:
    back = [one for one in run.recoveries if one.decision in (Decision.ROLLBACK, Decision.RESTART) and one.steps_redone]
    if back:
        return f"begun and run once more, after {words.plural(len(back), 'return')} to a checkpoint or the start too"
    return "begun, dropped and run once more; none completed was lost"


def _by(run: Run) -> str:
    causes = Counter(failure.cause for recovery in run.recoveries for failure in recovery.failures)
    return ", ".join(f"{count} × {words.cause(cause)}" for cause, count in causes.most_common(3))


def failures_by(run: Run) -> tuple[list[str], list[list[str]]]:
    """Causes in rows, phases in columns: the head, and the rows."""
    counts = Counter((failure.cause, failure.phase) for recovery in run.recoveries for failure in recovery.failures)
    order = list(words.PHASES)
    phases = sorted({phase for _, phase in counts}, key=lambda name: order.index(name) if name in order else len(order))
    causes = sorted(
        {cause for cause, _ in counts}, key=lambda cause: -sum(n for (c, _), n in counts.items() if c == cause)
    )
    head = ["cause", *(words.phase(phase) for phase in phases), "all"]
    rows = []
    for cause in causes:
        row = [counts[cause, phase] for phase in phases]
        rows.append([words.cause(cause), *(str(count) if count else "" for count in row), str(sum(row))])
    return head, rows
