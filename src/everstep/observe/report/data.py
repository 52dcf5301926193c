"""What the failure timeline of a recovery shows, as plain values for JSON: docs/api.md describes them."""

from __future__ import annotations

from typing import Any

import msgspec

from everstep.observe.report.scene import Actor, Scene


def plain(scene: Scene) -> dict[str, Any]:
    return {
        "recovery": scene.recovery.number,
        "start_s": scene.start_s,
        "end_s": scene.end_s,
        "failed_s": scene.failed_s,
        "lanes": [_lane(actor) for actor in scene.actors],
        "hidden": scene.hidden,
        "stages": msgspec.to_builtins(scene.stages),
        "steps": msgspec.to_builtins(scene.steps),
    }


def _lane(actor: Actor) -> dict[str, Any]:
    lane = actor.lane
    return {
        "worker": lane.worker,
        "rank": lane.rank,
        "node": lane.node,
        "part": actor.part.value,
        "failed_s": actor.failed_s,
        "spans": msgspec.to_builtins(lane.spans),
    }
