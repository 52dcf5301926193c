"""What pictures show, as tables: for those who do not see them, and for exact values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everstep.observe.checkpoints import CheckpointRecord
from everstep.observe.records import Recovery, one_line
from everstep.observe.report import words
from everstep.observe.report.consistency import UNKNOWN, failure_places
from everstep.observe.report.markup import Markup, tag
from everstep.observe.report.parts import CLASSES
from everstep.observe.report.run import Run
from everstep.observe.report.scene import recovered, set_scene, stage_times
from everstep.observe.report.steps import typical_step
from everstep.observe.report.waste import plan_of
from everstep.observe.report.words import STEP_PHASES

LONG = 20
"""Characters; a cell with more may be broken into lines."""


@dataclass(frozen=True, slots=True)
class Table:
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Markup]]

    def html(self) -> Markup:
        """Every first cell names its row."""
        head = tag("tr", (tag("th", name, scope="col") for name in self.head))
        body = (tag("tr", (_cell(index, cell) for index, cell in enumerate(row))) for row in self.rows)
        table = tag("table", tag("caption", self.caption), tag("thead", head), tag("tbody", body))
        return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=self.caption)


def _cell(index: int, cell: str | Markup) -> Markup:
    if index == 0:
        return tag("th", cell, scope="row")
    return tag("td", cell, class_="long" if len(cell) > LONG else None)


def recoveries_table(recoveries: Sequence[Recovery], pictured: Iterable[int]) -> Table:
    """All recoveries, each with its picture if it has one."""
    linked = set(pictured)
    head = ["#", "failed", "cause", "decision", "T", *(name for name, _ in _STAGES), "total", "state from", "outcome"]
    return Table("Recoveries", head, [_row(recovery, recovery.number in linked) for recovery in recoveries])


_STAGES = (
    ("detect", "t_detect_s"),
    ("stop", "t_stop_s"),
    ("decide", "t_decide_s"),
    ("settle", "t_settle_s"),
    ("reset", "t_reset_s"),
    ("restore", "t_restore_s"),
    ("first step", "t_first_step_s"),
)


def _row(recovery: Recovery, linked: bool) -> list[str | Markup]:
    number = str(recovery.number)
    failed = "; ".join(
        f"rank {failure.rank} in {words.phase(failure.phase)}"
        + (f" of step {failure.step}" if failure.step is not None else "")
        if failure.rank is not None
        else "nobody to blame"
        for failure in recovery.failures
    )
    donors = ", ".join(f"rank {donor.rank}" for donor in recovery.donors)
    return [
        tag("a", number, href=f"#recovery-{number}") if linked else number,
        failed,
        "; ".join(dict.fromkeys(words.cause(failure.cause) for failure in recovery.failures)),
        recovery.decision.value if recovery.decision else "–",
        str(recovery.target),
        *(words.duration(seconds) for _, seconds in stage_times(recovery)),
        words.duration(recovery.t_total_s),
        f"{donors}, {words.size(recovery.bytes)}" if donors else "–",
        recovery.outcome.value,
    ]


def recovery_table(run: Run, recovery: Recovery) -> Table:
    """Each block of the failure timeline."""
    scene = set_scene(run, recovery)
    rows: list[list[str | Markup]] = []
    for actor in scene.actors:
        name = f"Device {actor.lane.worker} (rank {actor.lane.rank}, {actor.part.value})"
        for span in actor.lane.spans:
            if span.phase in CLASSES:
                end_s = scene.end_s if span.end_s is None else span.end_s
                step = str(span.step) if span.phase in STEP_PHASES else ""
                times = (span.start_s - scene.failed_s, end_s - scene.failed_s, end_s - span.start_s)
                rows.append([name, words.phase(span.phase), step, *map(words.exact, times)])
        if actor.failed_s is not None and actor.failure is not None:
            at = words.exact(actor.failed_s - scene.failed_s)
            rows.append([name, f"Failure: {one_line(actor.failure.evidence)}", "", at, "", ""])
    for stage in scene.stages:
        times = (stage.start_s - scene.failed_s, stage.end_s - scene.failed_s, stage.end_s - stage.start_s)
        rows.append(["Controller", stage.name, "", *map(words.exact, times)])
    head = ["who", "what", "step", "from", "to", "took"]
    return Table(f"Recovery {recovery.number}, times since the failure", head, rows)


def consistency_table(run: Run) -> Table:
    """The phases of a step, and the failures in each."""
    step = typical_step(run.lanes)
    counts = dict.fromkeys(STEP_PHASES, 0)
    for place in failure_places(run, step or UNKNOWN):
        counts[place.failure.phase or ""] += 1
    rows = [
        [
            words.phase(phase),
            words.exact(step.lengths[phase]) if step is not None else "–",
            "Update Parameters" if phase == "COMMITTED" else "Consistent Parameters",
            str(counts[phase]),
        ]
        for phase in STEP_PHASES
    ]
    return Table("A typical step and the failures in it", ["phase", "median", "parameters", "failures"], rows)


def times_table(recoveries: Sequence[Recovery]) -> Table:
    done = [recovery for recovery in recoveries if recovered(recovery)]
    rows = [
        [str(one.number), *(words.exact(seconds) for _, seconds in stage_times(one)), words.exact(one.t_total_s)]
        for one in done
    ]
    return Table("Where the time of each recovery went", ["#", *(name for name, _ in _STAGES), "total"], rows)


def checkpoints_table(records: Sequence[CheckpointRecord], began_s: float | None) -> Table:
    first = began_s if began_s is not None else (records[0].time_s if records else 0.0)
    rows = [
        [
            str(record.step),
            words.exact(record.time_s - first),
            record.fate.value + (f": {record.reason}" if record.reason else ""),
            words.exact(record.k0_s),
            "–" if record.k1_s is None else words.exact(record.k1_s),
            words.size(record.bytes),
            str(record.every),
        ]
        for record in records
    ]
    head = ["step", "began", "came to be", "k₀", "k₁", "size", "t, in steps"]
    return Table("Checkpoints, times since the first step", head, rows)


def waste_table(run: Run) -> Table | None:
    made = plan_of(run)
    if made is None:
        return None
    rows = [
        [row.name, words.duration(row.t_s), words.duration(row.waste_s), words.share(row.share)]
        for row in made.intervals
    ]
    return Table("F(t): what checkpoints and fallbacks cost", ["interval", "t", "waste", "of the run"], rows)
