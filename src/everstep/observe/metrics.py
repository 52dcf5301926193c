"""What Prometheus is told of a job, read at each scrape from what is known anyway. docs/metrics.md explains each name.

Nothing here counts. Knows no HTTP; whoever serves it hands out what `Metrics.text` gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

import everstep
from everstep.core.events import JobPhase
from everstep.core.machine import Machine
from everstep.core.membership import Membership
from everstep.observe.ledger import Ledger
from everstep.observe.phases import STEP, JobPhases
from everstep.observe.progress import Progress
from everstep.observe.tally import STEP_BOUNDS_S, Tally
from everstep.types import WorkerPhase

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily | InfoMetricFamily


class Model(Protocol):
    """Where it is read from."""

    @property
    def name(self) -> str: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def progress(self) -> Progress: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def phases(self) -> JobPhases: ...

    def now_s(self) -> float:
        """Seconds since 1970."""
        ...


class Metrics:
    """Of one job, with a registry of its own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, model: Model) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_JobCollector(model))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _JobCollector(Collector):
    def __init__(self, model: Model) -> None:
        self._model = model

    def collect(self) -> Iterator[Family]:
        model = self._model
        model.ledger.refresh()
        yield InfoMetricFamily("everstep_job", "The job.", {"name": model.name, "version": everstep.__version__})
        yield from _state(model.machine)
        yield from _members(model.machine)
        yield from _progress(model.progress, model.now_s())
        yield from _phases(model.phases.tallies())
        yield from _recoveries(model.ledger)
        yield from _checkpoints(model.ledger, model.now_s())


def _state(machine: Machine) -> Iterator[Family]:
    state = GaugeMetricFamily("everstep_state", "1 for the phase that the job is in.", labels=["state"])
    for phase in JobPhase:
        state.add_metric([phase.name], float(phase is machine.phase))
    yield state
    yield _gauge("generation", "Counts the memberships of the job.", machine.generation)


def _members(machine: Machine) -> Iterator[Family]:
    members = machine.members
    yield _gauge("ranks", "Ranks of the job.", machine.config.ranks)
    yield _gauge("ranks_filled", "Ranks that have a worker.", len(members.seats))
    ready = sum(members.workers[worker].stage is WorkerPhase.STANDBY for worker in members.pool)
    yield _gauge("standbys", "Workers that wait to replace one that fails.", ready)
    yield _gauge("standbys_wanted", "How many there should be.", machine.config.standbys)
    yield _gauge("nodes", "Nodes whose agent is connected.", sum(node.present for node in members.nodes.values()))
    yield _gauge("devices_free", "Devices that nobody uses.", sum(len(node.free) for node in members.nodes.values()))
    yield _gauge("devices_sick", "Devices that are not used again.", len(members.sick))
    if members.coordinates:
        held = replicas(members)
        yield _gauge("shards", "Pieces that the state is cut into.", len(held))
        yield _gauge("replicas_min", "Live copies of the shard that has the fewest.", min(held.values()))


def replicas(members: Membership) -> dict[int, int]:
    """Live holders of each shard."""
    held = dict.fromkeys((coordinate.shard for coordinate in members.coordinates.values()), 0)
    for rank, worker in members.seats.items():
        if rank in members.coordinates and members.workers[worker].stage is WorkerPhase.IDLE:
            held[members.shard_of(rank)] += 1
    return held


def _progress(progress: Progress, now_s: float) -> Iterator[Family]:
    yield _gauge("step", "Steps that the state of the job includes; also the one that runs.", progress.version)
    yield _counter("steps", "Steps that count.", progress.completed)
    yield _gauge("steps_per_second", "Speed of late; 0 while the job does not train.", progress.steps_per_s())
    yield _counter("productive_seconds", "Time in steps that count.", progress.productive_s)
    yield _counter("training_seconds", "Time since the first step began.", progress.training_s(now_s))
    yield _counter("elapsed_seconds", "Time since the job began.", progress.elapsed_s(now_s))
    yield _gauge("goodput_ratio", "Productive over training seconds.", progress.goodput(now_s))
    failures = CounterMetricFamily("everstep_failures", "Failures of workers that had a rank.", labels=["cause"])
    for cause, count in sorted(progress.failures.items()):
        failures.add_metric([cause], count)
    yield failures


def _phases(tallies: Mapping[str, Tally]) -> Iterator[Family]:
    steps = tallies.get(STEP, Tally(STEP_BOUNDS_S))
    yield _histogram("step_seconds", "From the Forward of a step to that of the next one.", steps)
    phases = {name: tally for name, tally in tallies.items() if name != STEP}
    yield _histograms("everstep_phase_seconds", "How long ranks were in a phase of a step.", "phase", phases)


def _recoveries(ledger: Ledger) -> Iterator[Family]:
    labels = ["cause", "decision", "outcome"]
    recoveries = CounterMetricFamily("everstep_recoveries", "Recoveries that are over.", labels=labels)
    for (cause, decision, outcome), count in ledger.outcomes.items():
        recoveries.add_metric([cause, decision or "none", outcome], count)
    yield recoveries
    yield _histogram("recovery_seconds", "From the failure until the job went on.", ledger.recovery_s)
    stages = ledger.stages_s
    yield _histograms("everstep_recovery_stage_seconds", "Time in each stage of a recovery.", "stage", stages)
    yield _counter("steps_redone", "Steps that recoveries made the job do again.", ledger.steps_redone)
    yield _counter("restored_bytes", "What newcomers received.", ledger.restored_bytes)
    yield _counter("false_alarms", "Failures of workers that had moved on.", ledger.false_alarms)


def _checkpoints(ledger: Ledger, now_s: float) -> Iterator[Family]:
    checkpoints = CounterMetricFamily("everstep_checkpoints", "Checkpoints, by how far they came.", labels=["fate"])
    for fate, count in ledger.fates.items():
        checkpoints.add_metric([fate], count)
    yield checkpoints
    yield _histogram("checkpoint_k0_seconds", "How long the copy to memory held up the training.", ledger.k0_s)
    yield _histogram("checkpoint_k1_seconds", "From the order to persist to the durable commit.", ledger.k1_s)
    if (last := ledger.last_committed) is not None:
        yield _gauge("checkpoint_last_committed_step", "Step of the newest durable checkpoint.", last.step)
        age_s = max(0.0, now_s - last.time_s)
        yield _gauge("checkpoint_age_seconds", "Since the state of the newest durable checkpoint was taken.", age_s)
        yield _gauge("checkpoint_bytes", "Size of the newest durable checkpoint.", last.bytes)
        yield _gauge("checkpoint_interval_steps", "Steps between two checkpoints.", last.every)


def _gauge(name: str, text: str, value: float) -> Family:
    return GaugeMetricFamily(f"everstep_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Family:
    return CounterMetricFamily(f"everstep_{name}", text, value)


def _histogram(name: str, text: str, tally: Tally) -> Family:
    return HistogramMetricFamily(f"everstep_{name}", text, _buckets(tally), tally.sum_s)


def _histograms(name: str, text: str, label: str, tallies: Mapping[str, Tally]) -> Family:
    family = HistogramMetricFamily(name, text, labels=[label])
    for value, tally in tallies.items():
        family.add_metric([value], _buckets(tally), tally.sum_s)
    return family


def _buckets(tally: Tally) -> list[tuple[str, float]]:
    return [(_bound(bound_s), count) for bound_s, count in tally.cumulative()]


def _bound(bound_s: float) -> str:
    return "+Inf" if bound_s == float("inf") else str(bound_s)
