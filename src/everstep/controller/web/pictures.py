"""The pictures of the live page: drawn by a process of their own when somebody asks, one at a time, and kept.

A picture is drawn again when the records it shows have become more, and not before it has stood for some time.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from everstep.observe.ledger import Ledger

WIDE, NARROW = 1120, 360
"""For a screen and for a phone, in pixels."""

DRAW_S = 30.0
STAND_S = 2.0
"""And fifty times as long as it took to draw, so that drawing takes a small share of one core at most."""
IDLE_SHARE = 50
FRESH_S = 30.0
"""The pictures of the whole run change a little with every step."""
SETTLE_S = 8.0
"""So long after a recovery its picture may still grow: the steps that follow are part of it."""
KEPT = 64

RUN_PICTURES = ("consistency", "checkpoints", "checkpoint-interval", "recovery-times")
OF_A_RECOVERY = re.compile(r"(?:recovery|lanes)-(0|[1-9][0-9]*)", re.ASCII)
"""A picture of it, and the same as JSON."""


class DrawError(Exception):
    """The picture could not be drawn; the text says why."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    svg: bytes
    stamp: object
    at_s: float
    took_s: float


class Pictures:
    def __init__(self, run_dir: Path, ledger: Ledger, now_s: Callable[[], float]) -> None:
        self._run_dir = run_dir
        self._ledger = ledger
        self._now_s = now_s
        self._drawn: OrderedDict[tuple[str, int], _Drawn] = OrderedDict()
        self._drawing = asyncio.Lock()

    def known(self, name: str) -> bool:
        if name in RUN_PICTURES:
            return True
        self._ledger.refresh()
        found = OF_A_RECOVERY.fullmatch(name)
        return found is not None and int(found[1]) < self._ledger.counts[0]

    async def get(self, name: str, width: int) -> bytes:
        """A `DrawError` says why there is none."""
        async with self._drawing:
            begun_s, stamp, found = time.monotonic(), self._stamp(name), self._drawn.get((name, width))
            if found is None or (found.stamp != stamp and begun_s - found.at_s >= _stands_s(found)):
                svg = await self._draw(name, width)
                now_s = time.monotonic()
                found = self._drawn[name, width] = _Drawn(svg, stamp, now_s, now_s - begun_s)
            self._drawn.move_to_end((name, width))
            if len(self._drawn) > KEPT:
                self._drawn.popitem(last=False)
            return found.svg

    def _stamp(self, name: str) -> object:
        """As long as it is the same, so is the picture."""
        self._ledger.refresh()
        if name in RUN_PICTURES:
            return self._ledger.counts, self._now_s() // FRESH_S
        number = int(name.rpartition("-")[2])
        ends = (record.time + record.t_total_s for record in self._ledger.recoveries if record.number == number)
        return self._now_s() - next(ends, 0.0) > SETTLE_S

    async def _draw(self, name: str, width: int) -> bytes:
        command = (sys.executable, "-P", "-m", "everstep.launch.draw", str(self._run_dir), name, str(width))
        pipe = asyncio.subprocess.PIPE
        nothing = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdin=nothing, stdout=pipe, stderr=pipe)
        try:
            async with asyncio.timeout(DRAW_S):
                svg, words = await process.communicate()
        except TimeoutError:
            raise DrawError(f"not drawn within {DRAW_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()  # or its pipes would stay open
        if process.returncode:
            raise DrawError(words.decode(errors="replace").strip().rpartition("\n")[2])
        return svg


def _stands_s(drawn: _Drawn) -> float:
    return max(STAND_S, drawn.took_s * IDLE_SHARE)
