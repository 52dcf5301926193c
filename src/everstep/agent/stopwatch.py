"""Tells the controller how long the workers of this node take in each phase: sums, once a second if there is news.

The notes are those of the flight recorder, so it costs the workers nothing, and the network a kilobyte.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from everstep.observe.phases import PhaseTimes
from everstep.wire.messages import Durations

EVERY_S = 1.0


class Stopwatch:
    def __init__(self, tell: Callable[[Durations], None]) -> None:
        self.times = PhaseTimes()
        self._tell = tell

    async def run(self) -> None:
        """Until it is cancelled. Always all sums: what a controller does not hear it hears with the next ones."""
        pid = os.getpid()
        while True:
            await asyncio.sleep(EVERY_S)
            if self.times.tallies:
                self._tell(Durations(pid, self.times.counts()))
