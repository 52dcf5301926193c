"""What belongs into the picture of one recovery: which lanes, from when to when, the steps and stages in between."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from everstep.core.events import JobPhase
from everstep.observe.records import Decision, Failure, Outcome, Recovery
from everstep.observe.report.run import Run
from everstep.observe.report.words import COMMITTED, FORWARD, READY, STEP_PHASES
from everstep.observe.timeline import Lane, Span

SAMPLE = 3
"""Healthy devices that are shown beside those involved."""
MOST_INVOLVED = 8
"""Failed ones with their replacements; the others are in the picture of all devices."""
AFTERWARDS = 0.35
"""Of the length of step T: so much of the next one is seen."""
AT_ONCE_S = 1.0
"""Two agents tell of two failures at once; what ended earlier belongs to an earlier recovery."""
BEFORE = 0.3
"""Of the recovery, where no step is known that it interrupted."""


class Part(enum.Enum):
    """Of a device in a recovery."""

    SURVIVOR = "survivor"
    DONOR = "donor"
    FAILED = "failed"
    NEWCOMER = "replacement"


@dataclass(frozen=True, slots=True)
class Actor:
    lane: Lane
    part: Part
    failure: Failure | None = None
    """Of one that failed."""
    failed_s: float | None = None
    standby: bool = False
    """Of a replacement: it stood by before."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the times of a recovery's record, where it was spent."""

    name: str
    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class StepSpan:
    """A step, or an attempt at one, over all devices."""

    step: int
    again: bool
    start_s: float
    end_s: float
    barrier_s: float | None
    """The first device was through the barrier."""
    passed: bool
    """False: devices came to the barrier, and nobody is known to have passed it."""
    updated_s: float | None
    """The last device had updated its parameters."""


@dataclass(frozen=True, slots=True)
class Scene:
    recovery: Recovery
    actors: tuple[Actor, ...]
    hidden: int
    """Devices that are not shown."""
    start_s: float
    end_s: float
    failed_s: float
    """Time 0 of the picture."""
    verdict_s: float
    over_s: float
    resume_s: float | None
    """Step T begins."""
    stages: tuple[Stage, ...]
    steps: tuple[StepSpan, ...]
    step: int
    """i, the step in which the failure was."""

    @property
    def rolled_back(self) -> bool:
        """Steps before i are done again: the parameters were newer than those that all went on with."""
        return self.recovery.step is not None and self.recovery.target < self.recovery.step

    @property
    def updated(self) -> StepSpan | None:
        """The attempt at step i whose update counts."""
        return next((span for span in self.steps if span.step == self.step and span.updated_s is not None), None)

    @property
    def failed(self) -> Iterator[tuple[Actor, Failure, float]]:
        """Who failed, why, and when."""
        for actor in self.actors:
            if actor.failure is not None and actor.failed_s is not None:
                yield actor, actor.failure, actor.failed_s

    def events(self) -> Iterator[float]:
        """Every time at which something is seen to happen."""
        yield from (self.failed_s, self.verdict_s, self.over_s)
        for stage in self.stages:
            yield from (stage.start_s, stage.end_s)
        for actor in self.actors:
            for span in actor.lane.spans:
                yield span.start_s
                if span.end_s is not None:
                    yield span.end_s


def set_scene(run: Run, recovery: Recovery) -> Scene:
    lanes = {lane.worker: lane for lane in run.lanes}
    failed_s = failed_at(recovery.failures[0] if recovery.failures else None, lanes, recovery, first=True)
    actors, hidden = _cast(recovery, lanes)
    over_s = recovery.time - recovery.t_detect_s + recovery.t_total_s
    step = _step(recovery)
    start_s = min(_start(actors, recovery, step, failed_s), recovery.time - recovery.t_detect_s)
    lanes_of = [actor.lane for actor in actors if actor.part is not Part.FAILED]
    if not any(actor.part in (Part.SURVIVOR, Part.DONOR) for actor in actors):
        lanes_of = [actor.lane for actor in actors]
    steps = tuple(_steps(lanes_of, start_s, over_s, recovery, min(step, recovery.target)))
    end_s = _end(steps, recovery, over_s)
    stages = tuple(_stages(run, recovery, over_s))
    return Scene(
        recovery,
        tuple(_within(actor, start_s, end_s) for actor in actors),
        hidden,
        start_s,
        end_s,
        failed_s,
        recovery.time,
        over_s,
        next((stage.start_s for stage in reversed(stages) if stage.name == "first step"), None),
        stages,
        tuple(span for span in steps if start_s - AT_ONCE_S / 1e3 <= span.start_s < end_s),
        step,
    )


# ── who ──────────────────────────────────────────────────────────────────────────────────────────────────


def _cast(recovery: Recovery, lanes: dict[int, Lane]) -> tuple[list[Actor], int]:
    """Healthy ones by rank, then each failed one with its replacement below it."""
    failures = [failure for failure in recovery.failures if failure.worker is not None]
    shown = failures[:MOST_INVOLVED]
    troubled = {failure.worker for failure in failures}
    troubled |= {failure.replaced_by.worker for failure in failures if failure.replaced_by}
    donors = {donor.worker for donor in recovery.donors}
    healthy = [lane for lane in _present(recovery, lanes) if lane.worker not in troubled]
    giving = [lane for lane in healthy if lane.worker in donors][:MOST_INVOLVED]
    sample = [lane for lane in healthy if lane.worker not in donors][: max(0, SAMPLE - len(giving))]
    actors = [
        Actor(lane, Part.DONOR if lane.worker in donors else Part.SURVIVOR)
        for lane in sorted([*giving, *sample], key=lambda lane: (lane.rank or 0, lane.worker))
    ]
    seen: set[int] = set()
    for index, failure in enumerate(shown):
        assert failure.worker is not None
        failed_s = failed_at(failure, lanes, recovery, first=index == 0)
        lane = lanes.get(failure.worker) or Lane(failure.worker, failure.rank, failure.node or "", ())
        if lane.worker in seen:  # a replacement that failed too has its lane already
            actors = [
                replace(actor, part=Part.FAILED, failure=failure, failed_s=failed_s)
                if actor.lane.worker == lane.worker
                else actor
                for actor in actors
            ]
        else:
            actors.append(Actor(lane, Part.FAILED, failure, failed_s))
        seen.add(lane.worker)
        after = failure.replaced_by
        if after is not None and after.worker not in seen:
            lane = lanes.get(after.worker) or Lane(after.worker, failure.rank, after.node, ())
            actors.append(Actor(lane, Part.NEWCOMER, standby=after.standby))
            seen.add(after.worker)
    return actors, max(0, len(healthy) - len(giving) - len(sample)) + len(failures) - len(shown)


def _present(recovery: Recovery, lanes: dict[int, Lane]) -> list[Lane]:
    """Who had which rank when it began, by rank."""
    began_s = recovery.time - recovery.t_detect_s
    newcomers = {failure.replaced_by.worker for failure in recovery.failures if failure.replaced_by}
    dead = {worker for worker, lane in lanes.items() if lane.end_s is not None and lane.end_s < began_s}
    holders: dict[int, Lane] = {}
    for worker, lane in sorted(lanes.items(), key=lambda item: (item[0] in dead, item[0])):
        gone = lane.end_s is not None and lane.end_s < began_s - AT_ONCE_S
        later = bool(lane.spans) and lane.spans[0].start_s > recovery.time
        if lane.rank is not None and worker not in newcomers and not gone and not later:
            holders.setdefault(lane.rank, lane)  # the elder: who comes later has its rank from a later recovery
    return [lane for _, lane in sorted(holders.items())]


def failed_at(failure: Failure | None, lanes: dict[int, Lane], recovery: Recovery, *, first: bool) -> float:
    """A death is where its lane ends; what only stood still has failed when it was last seen to move."""
    lane = lanes.get(failure.worker) if failure is not None and failure.worker is not None else None
    died = failure is not None and failure.cause in ("EXIT", "EXCEPTION")
    if lane is not None and lane.end_s is not None and (died or not first):
        return min(lane.end_s, recovery.time) if first else lane.end_s
    return recovery.time - recovery.t_detect_s if first else recovery.time


# ── when ─────────────────────────────────────────────────────────────────────────────────────────────────


def _step(recovery: Recovery) -> int:
    if recovery.step is not None and recovery.target in (recovery.step, recovery.step + 1):
        return recovery.step
    return recovery.target - 1 if recovery.decision is Decision.FINISH else recovery.target


def _start(actors: Sequence[Actor], recovery: Recovery, step: int, failed_s: float) -> float:
    """Where step i, or the one that was interrupted, began."""
    wanted = step if recovery.step is None else recovery.step
    begun = [
        span.start_s
        for actor in actors
        for span in actor.lane.spans
        if span.phase in STEP_PHASES and span.start_s <= failed_s and span.step == wanted
    ]
    newest = [time for time in begun if time > failed_s - 3 * recovery.t_total_s - 60]
    return min(newest, default=failed_s - BEFORE * recovery.t_total_s)


def _end(steps: Sequence[StepSpan], recovery: Recovery, over_s: float) -> float:
    """A part of the step after T, to see that it goes on."""
    target = [span for span in steps if span.step == recovery.target]
    if not target:
        return over_s + AFTERWARDS * recovery.t_first_step_s
    return max(over_s, target[-1].end_s) + AFTERWARDS * (target[-1].end_s - target[-1].start_s)


def _within(actor: Actor, start_s: float, end_s: float) -> Actor:
    """Only what can be seen."""
    last_s = actor.lane.end_s if actor.lane.end_s is not None else end_s
    spans = [
        replace(span, end_s=min(last_s, end_s) if span.end_s is None else span.end_s)
        for span in actor.lane.spans
        if span.start_s < end_s and (last_s if span.end_s is None else span.end_s) > start_s
    ]
    return replace(actor, lane=replace(actor.lane, spans=tuple(spans)))


def _steps(lanes: Iterable[Lane], start_s: float, over_s: float, recovery: Recovery, first: int) -> Iterator[StepSpan]:
    """Attempts at steps, in order. One is over when its last device has updated, or when it was interrupted."""
    found: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for lane in lanes:
        known: dict[int, int] = {}  # a Stop changes the generation, and an update that goes on does not begin again
        for span in lane.spans:
            if span.phase not in STEP_PHASES or span.step < first or (span.end_s or over_s) <= start_s:
                continue
            if span.phase == FORWARD or span.step not in known:
                known[span.step] = span.generation
            last_s = lane.end_s if lane.end_s is not None else over_s
            found[span.step, known[span.step]].append(replace(span, end_s=span.end_s or max(span.start_s, last_s)))
    newest = -1
    for (step, _), spans in sorted(found.items(), key=lambda item: min(span.start_s for span in item[1])):
        ready = [span.start_s for span in spans if span.phase == READY]
        passed = [span.start_s for span in spans if span.phase == COMMITTED]
        yield StepSpan(
            step,
            step <= newest,
            min(span.start_s for span in spans),
            max(span.end_s or span.start_s for span in spans),
            min(passed, default=max(ready, default=None)),
            bool(passed),
            max((span.end_s or span.start_s for span in spans if span.phase == COMMITTED), default=None),
        )
        newest = max(newest, step)


# ── stages ───────────────────────────────────────────────────────────────────────────────────────────────

_STAGES = (
    ("detect", "t_detect_s"),
    ("stop", "t_stop_s"),
    ("decide", "t_decide_s"),
    ("settle", "t_settle_s"),
    ("reset", "t_reset_s"),
    ("restore", "t_restore_s"),
    ("first step", "t_first_step_s"),
)
_PHASES = {
    JobPhase.STARTING: "restart",
    JobPhase.STOPPING: "stop",
    JobPhase.SETTLING: "settle",
    JobPhase.RESETTING: "reset",
    JobPhase.RESTORING: "restore",
    JobPhase.RESUMING: "first step",
}


STAGE_CLASSES = {name: f"stage-{index}" for index, (name, _) in enumerate(_STAGES)} | {"restart": "stage-1"}
"""The look of each in pictures."""


def stage_times(recovery: Recovery) -> list[tuple[str, float]]:
    """The names and seconds that add up to the total."""
    return [(name, getattr(recovery, key)) for name, key in _STAGES]


def _stages(run: Run, recovery: Recovery, over_s: float) -> Iterator[Stage]:
    """The record knows sums over its generations; of more than one, the journal knows the order."""
    phases = [span for span in run.phases if span.generation in recovery.generations and span.phase in _PHASES]
    at = recovery.time - recovery.t_detect_s
    if len(recovery.generations) < 2 or not phases:
        for name, seconds in stage_times(recovery):
            if seconds > 0:
                yield Stage(name, at, at + seconds)
            at += seconds
        return
    yield Stage("detect", at, recovery.time)
    for span in phases:
        yield Stage(_PHASES[span.phase], span.start_s, over_s if span.end_s is None else min(span.end_s, over_s))


def recovered(recovery: Recovery) -> bool:
    return recovery.outcome in (Outcome.RECOVERED, Outcome.DONE)
