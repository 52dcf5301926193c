"""Looks at the boards of a node, 20 times a second, and tells what changed at once and everything twice a second.

It judges nobody. A look says how old the last stamp was at that very moment, so a look that comes late because
this process did not run shows as a gap, which the detector does not count. One that stands still is told more
often: the longer the way from look to look, the later a verdict.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from everstep.agent.worker import LocalWorker
from everstep.core.detector import Sighting
from everstep.types import WorkerId

log = logging.getLogger(__name__)

LOOK_S = 0.05
FULL_S = 0.5
"""Well below the detector's ``gap_s``: two looks further apart than that prove nothing."""
STILL_S = 0.25
"""Without a heartbeat for so long, a worker is told of at every other look, with its CPU time."""
LATE_S = 1.0


class Watch:
    def __init__(self, workers: Mapping[WorkerId, LocalWorker], beat: Callable[[tuple[Sighting, ...]], None]) -> None:
        self._workers = workers
        self._beat = beat
        self._full_at = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            now = loop.time()
            if now - due > LATE_S:
                log.warning("this agent did not run for %.1f s; nobody is judged by that time", now - due)
            self.look(now)
            due = max(due + LOOK_S, loop.time())  # what was missed is not made up for
            await asyncio.sleep(due - loop.time())

    def look(self, now: float) -> None:
        """One look at every board. An empty heartbeat is one too."""
        full = now >= self._full_at
        sightings = [seen for worker in self._workers.values() if (seen := self._look_at(worker, now, full=full))]
        if full:
            self._full_at = now + FULL_S
        if full or sightings:
            self._beat(tuple(sightings))

    def _look_at(self, worker: LocalWorker, now: float, *, full: bool) -> Sighting | None:
        """None if there is nothing to tell of it now."""
        if (seen := worker.look()) is None:
            return None
        last = worker.pulse
        moved = seen.moves != last.moves
        if moved or seen.pulse != last.beats:
            last.moves, last.beats, last.changed_at = seen.moves, seen.pulse, now
        still = seen.pulse > 0 and now - last.changed_at >= STILL_S and now - last.told_at > LOOK_S * 1.5
        if not (moved or full or still):
            return None
        last.told_at = now
        if full or still:
            worker.look_at_cpu()
            seen = replace(seen, cpu_s=worker.cpu_s)
        return seen
