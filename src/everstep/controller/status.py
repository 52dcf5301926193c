"""The job as people and tools see it: `everstep status`, the live view. Reads the machine, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.core.machine import Machine
from everstep.core.membership import Worker
from everstep.core.watch import Sighting
from everstep.observe.log import RecoveryLog
from everstep.observe.progress import Progress
from everstep.observe.records import shown
from everstep.types import WorkerId


def status(
    name: str,
    machine: Machine,
    sightings: Mapping[WorkerId, Sighting],
    failures: list[tuple[float, str]],
    recoveries: RecoveryLog,
    reason: str,
) -> dict[str, Any]:
    """The documented JSON of `everstep status --json`."""
    members = machine.members
    return {
        "job": name,
        "state": machine.phase.name,
        "generation": machine.generation,
        "target": machine.target,
        "reason": reason,
        "ranks": machine.config.ranks,
        "workers": [_worker(members.workers[worker], sightings.get(worker)) for worker in members.seated()],
        "standbys": [_standby(members.workers[worker], sightings.get(worker)) for worker in sorted(members.pool)],
        "nodes": [
            {"node": node.id, "free": list(node.free), "present": node.present, "troubles": node.troubles}
            for node in sorted(members.nodes.values(), key=lambda node: node.id)
        ],
        "failures": [{"time": time_s, "text": text} for time_s, text in failures],
        "recoveries": recoveries.count,
        "last_recovery": shown(recoveries.last),
    }


def progress(made: Progress, now_s: float) -> dict[str, Any]:
    """How the job gets on."""
    return {
        "steps": made.completed,
        "steps_per_s": round(made.steps_per_s(), 3),
        "elapsed_s": round(made.elapsed_s(now_s), 3),
        "productive_s": round(made.productive_s, 3),
        "goodput": round(made.goodput(now_s), 4),
    }


def _standby(worker: Worker, seen: Sighting | None) -> dict[str, Any]:
    phase = worker.stage if seen is None else seen.phase
    return {"worker": worker.id, "pid": seen.pid if seen else 0, "node": worker.node, "phase": phase.name}


def _worker(worker: Worker, seen: Sighting | None) -> dict[str, Any]:
    facts = {"step": 0, "version": 0, "age_s": 0.0}
    if seen is not None:
        facts = {"step": max(seen.version, 0), "version": seen.version, "age_s": round(seen.moved_ago_s, 3)}
    return {"rank": worker.rank, **_standby(worker, seen), "device": worker.device, **facts}
