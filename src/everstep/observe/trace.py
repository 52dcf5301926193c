"""A recorded run as Chrome trace events, which Perfetto and chrome://tracing open.

A process for the controller and one for each rank; in it a thread for each worker that had the rank. Flows lead from
a worker that failed to what the controller did about it, and on to its replacement.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from everstep.core.events import JobPhase
from everstep.observe.flight import read_lanes
from everstep.observe.history import PhaseSpan, read_history
from everstep.observe.records import Recovery, read_recoveries
from everstep.observe.timeline import Lane, Span
from everstep.types import WorkerPhase

Event = dict[str, Any]

CONTROLLER = 1
JOB, RECOVERIES = 1, 2
"""Threads of the controller. None is 0: Perfetto takes that for the thread whose number is that of its process."""
_FIRST_RANK = CONTROLLER + 1
_EDGE_US = 1.0
"""A flow belongs to the slice in which it begins or ends, so it stays this far from its edge."""
_STEP = {phase.name for phase in WorkerPhase if WorkerPhase.FORWARD <= phase <= WorkerPhase.COMMITTED}
_NO_ANSWER = (JobPhase.RUNNING, JobPhase.ENDING)
"""Phases in which the controller does nothing about a failure."""


class Track(NamedTuple):
    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Times in microseconds since the beginning of the trace."""

    track: Track
    name: str
    start: float
    end: float
    args: Event

    @property
    def event(self) -> Event:
        pid, tid = self.track
        duration = self.end - self.start
        return {
            "ph": "X", "name": self.name, "pid": pid, "tid": tid, "ts": self.start, "dur": duration, "args": self.args
        }  # fmt: skip

    def near(self, at: float) -> float:
        """The moment inside of it that is closest to this one."""
        edge = min(_EDGE_US, (self.end - self.start) / 2)
        return min(max(at, self.start + edge), self.end - edge)


def trace(run_dir: Path) -> Event:
    """What is there of a run, also of one that is under way."""
    lanes = read_lanes(run_dir)
    phases = read_history(run_dir / "journal").phases
    return render(lanes, phases, read_recoveries(run_dir / "recoveries.jsonl"))


def write_trace(run_dir: Path, path: Path) -> int:
    """The number of events."""
    document = trace(run_dir)
    path.write_bytes(msgspec.json.encode(document))
    return len(document["traceEvents"])


def render(lanes: Sequence[Lane], phases: Sequence[PhaseSpan], recoveries: Sequence[Recovery]) -> Event:
    drawing = _Drawing(lanes, phases)
    events = [*drawing.names(), *drawing.slices(), *drawing.recoveries(recoveries), *drawing.counters()]
    return {
        "traceEvents": sorted(events, key=lambda event: event.get("ts", -1.0)),
        "displayTimeUnit": "ms",
        "otherData": {"begin": drawing.begin_s, "clock": "seconds since 1970, by the clock of the controller"},
    }


class _Drawing:
    def __init__(self, lanes: Sequence[Lane], phases: Sequence[PhaseSpan]) -> None:
        self._lanes = lanes
        moments = [*_moments(lanes), *_moments_of(phases)]
        self.begin_s = min(moments, default=0.0)
        self._end_s = max(moments, default=0.0)
        self._last_rank = max((lane.rank for lane in lanes if lane.rank is not None), default=-1)
        self._phases = [self._phase(span) for span in phases]
        self._answers = [
            slice_ for slice_, span in zip(self._phases, phases, strict=True) if span.phase not in _NO_ANSWER
        ]
        self._of_worker = {lane.worker: [self._span(lane, span) for span in lane.spans] for lane in lanes}

    def _us(self, time_s: float) -> float:
        return round((time_s - self.begin_s) * 1e6, 3)

    def _track(self, lane: Lane) -> Track:
        """Those that never had a rank share the last process."""
        rank = self._last_rank + 1 if lane.rank is None else lane.rank
        return Track(_FIRST_RANK + rank, lane.worker + 1)

    def _phase(self, span: PhaseSpan) -> Slice:
        end = self._us(self._end_s if span.end_s is None else span.end_s)
        generation = {"generation": span.generation}
        return Slice(Track(CONTROLLER, JOB), span.phase.name, self._us(span.start_s), end, generation)

    def _span(self, lane: Lane, span: Span) -> Slice:
        """The last one of a worker ends with it."""
        end_s = span.end_s
        if end_s is None:
            end_s = max(span.start_s, self._end_s if lane.end_s is None else lane.end_s)
        args = {"step": span.step, "attempt": span.attempt, "generation": span.generation, "version": span.step}
        return Slice(self._track(lane), span.phase, self._us(span.start_s), self._us(end_s), args)

    # ── tracks ───────────────────────────────────────────────────────────────────────────────────────────

    def names(self) -> Iterator[Event]:
        yield from _name_process(CONTROLLER, "Controller")
        yield _name_thread(Track(CONTROLLER, JOB), "job")
        yield _name_thread(Track(CONTROLLER, RECOVERIES), "recoveries")
        processes = {self._track(lane).pid: lane.rank for lane in self._lanes}
        for pid, rank in sorted(processes.items()):
            yield from _name_process(pid, "standbys" if rank is None else f"rank {rank}")
        for lane in self._lanes:
            yield _name_thread(self._track(lane), f"worker {lane.worker} on {lane.node}")

    def slices(self) -> Iterator[Event]:
        for slice_ in self._phases:
            yield slice_.event
        for lane in self._lanes:
            found = self._of_worker[lane.worker]
            yield from (step.event for step in _steps(found))
            yield from (slice_.event for slice_ in found)
            if lane.end and lane.end_s is not None:
                pid, tid = self._track(lane)
                at = self._us(lane.end_s)
                yield {"ph": "i", "s": "t", "name": lane.end, "pid": pid, "tid": tid, "ts": at}

    def counters(self) -> Iterator[Event]:
        """How many workers were alive."""
        changes = [(lane.spans[0].start_s, 1) for lane in self._lanes if lane.spans]
        changes += [(lane.end_s, -1) for lane in self._lanes if lane.spans and lane.end_s is not None]
        alive = 0
        for at_s, change in sorted(changes):
            alive += change
            counter = {"ph": "C", "name": "workers", "pid": CONTROLLER, "ts": self._us(at_s)}
            yield {**counter, "args": {"alive": alive}}

    # ── recoveries ───────────────────────────────────────────────────────────────────────────────────────

    def recoveries(self, records: Iterable[Recovery]) -> Iterator[Event]:
        flows = itertools.count(1)
        last = 0.0
        for record in records:
            start = max(last, self._us(record.time))
            last = max(start, self._us(record.time + record.t_total_s - record.t_detect_s))
            args = {"sentence": record.sentence, **msgspec.to_builtins(record)}
            name = f"recovery {record.number}: {record.cause}"
            yield Slice(Track(CONTROLLER, RECOVERIES), name, start, last, args).event
            for failure in record.failures:
                if failure.worker is not None and failure.replaced_by is not None:
                    yield from self._flow(next(flows), failure.worker, failure.replaced_by.worker, record)

    def _flow(self, number: int, failed: int, replacement: int, record: Recovery) -> Iterator[Event]:
        """Nothing, if one of the three was not recorded."""
        lane = next((lane for lane in self._lanes if lane.worker == failed), None)
        known_us = self._us(record.time)
        end_us = self._us(lane.end_s) if lane is not None and lane.end_s is not None else known_us
        # A process that hangs is killed after the verdict: it failed when that was made.
        first = record.failures[0].worker == failed
        at = min(end_us, known_us) if first else end_us
        begun = [slice_ for slice_ in self._of_worker.get(failed, ()) if slice_.start <= at]
        answer = next((slice_ for slice_ in self._answers if slice_.end >= max(at, known_us)), None)
        if not begun or answer is None:
            return
        slices = self._of_worker.get(replacement, ())
        came = next((slice_ for slice_ in slices if slice_.start >= answer.start), None)
        if came is None:
            return
        source, decided = begun[-1].near(at), answer.near(at)
        stations = (("s", begun[-1], source), ("t", answer, decided), ("f", came, came.near(decided)))
        for kind, slice_, moment in stations:
            pid, tid = slice_.track
            flow = {"ph": kind, "cat": "recovery", "name": "replaced", "id": number, "pid": pid, "tid": tid}
            yield {**flow, "ts": moment, **({"bp": "e"} if kind == "f" else {})}


def _steps(slices: Sequence[Slice]) -> Iterator[Slice]:
    """One around the phases of each step."""
    for (in_step, args), group in itertools.groupby(slices, lambda slice_: (slice_.name in _STEP, slice_.args)):
        found = list(group)
        if in_step:
            yield Slice(found[0].track, f"step {args['step']}", found[0].start, found[-1].end, args)


def _moments(lanes: Iterable[Lane]) -> Iterator[float]:
    for lane in lanes:
        for span in lane.spans:
            yield span.start_s
            yield span.end_s if span.end_s is not None else span.start_s
        if lane.end_s is not None:
            yield lane.end_s


def _moments_of(phases: Iterable[PhaseSpan]) -> Iterator[float]:
    for span in phases:
        yield span.start_s
        yield span.end_s if span.end_s is not None else span.start_s


def _name_process(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}


def _name_thread(track: Track, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": track.pid, "tid": track.tid, "args": {"name": name}}
