"""What became of a recovery, in a title and in a sentence or two."""

from __future__ import annotations

from everstep.observe.records import Decision, Recovery
from everstep.observe.report import words
from everstep.observe.report.scene import recovered


def title(recovery: Recovery) -> str:
    failed = recovery.failures[0] if recovery.failures else None
    who = "the job" if failed is None or failed.rank is None else f"rank {failed.rank}"
    where = f" in {words.phase(failed.phase)}" if failed is not None and failed.phase else ""
    step = f" of step {recovery.step}" if recovery.step is not None else ""
    more = f" and {words.plural(len(recovery.failures) - 1, 'more failure')}" if len(recovery.failures) > 1 else ""
    return f"Recovery {recovery.number}: {who} failed{where}{step}{more}"


def summary(recovery: Recovery) -> str:
    """What happened, in a sentence or two."""
    after = {
        Decision.REDO: f"all did step {recovery.target} again",
        Decision.FINISH: f"the others finished their update and all went on with step {recovery.target}",
        Decision.ROLLBACK: f"all went back to a checkpoint of step {recovery.target}",
        Decision.RESTART: "all started again",
        None: "nothing was decided",
    }[recovery.decision]
    seconds = words.duration(recovery.t_total_s)
    if not recovered(recovery):
        return f"Not recovered: the job was {recovery.outcome.value} after {seconds}. {recovery.reason}"
    return f"Recovered in {seconds}: {after}. {recovery.reason[:1].upper()}{recovery.reason[1:]}."
