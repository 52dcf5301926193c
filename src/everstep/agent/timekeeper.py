"""Asks the controller for the time, now and then a few times in a row. What follows from it is `observe.clocks`'s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from everstep.observe.clocks import Exchange, estimate
from everstep.observe.notes import Clock
from everstep.wire.messages import AskTime, Time

EVERY_S = 30.0
IN_A_ROW, PAUSE_S = 5, 0.1
"""The shortest of some round trips is the one in which nobody was busy with something else."""


class Timekeeper:
    def __init__(self, ask: Callable[[AskTime], None], found: Callable[[Clock], None]) -> None:
        self._ask = ask
        self._found = found
        self._exchanges: list[Exchange] = []

    async def run(self) -> None:
        """Until it is cancelled. While the controller is away nothing comes of it."""
        while True:
            self._exchanges.clear()
            for _ in range(IN_A_ROW):
                self._ask(AskTime(time.monotonic_ns()))
                await asyncio.sleep(PAUSE_S)
            if self._exchanges:
                self._found(estimate(self._exchanges, time.monotonic_ns(), time.time()))
            await asyncio.sleep(EVERY_S)

    def hear(self, answer: Time) -> None:
        self._exchanges.append(Exchange(answer.sent_ns, answer.wall_s, time.monotonic_ns()))
