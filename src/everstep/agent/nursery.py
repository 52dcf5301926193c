"""Where workers come from: a zygote that is always there, because a new one is started when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from everstep.agent.spawner import Spawner
from everstep.errors import SpawnError

log = logging.getLogger(__name__)


class Nursery:
    def __init__(self, preload: Sequence[str], *, fresh: bool, guarded: Path, env: Mapping[str, str]) -> None:
        self._preload = preload
        self._fresh = fresh
        self._guarded = guarded
        self._env = env
        self._closed = False
        self._starting = asyncio.create_task(self._start())

    async def spawner(self) -> Spawner:
        """As soon as there is one; after a failure it is tried again."""
        if self._starting.done() and self._starting.exception() is not None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def close(self) -> None:
        """Kill all workers; their exits have been told when this returns."""
        self._closed = True
        if not self._starting.done():
            self._starting.cancel()
        with suppress(SpawnError, asyncio.CancelledError):
            await (await self._starting).close()

    async def _start(self) -> Spawner:
        spawner = await Spawner.start(preload=self._preload, fresh=self._fresh, guarded=[self._guarded], env=self._env)
        if len(spawner.threads) > 1 and not self._fresh:
            log.warning(
                "importing %s started threads (%s), and workers forked from there may hang: use --no-zygote",
                ", ".join(self._preload),
                ", ".join(spawner.threads),
            )
        spawner.lost.add_done_callback(lambda lost: self._on_lost(spawner, lost.result()))
        return spawner

    def _on_lost(self, spawner: Spawner, error: SpawnError) -> None:
        log.error("%s; starting another", error)
        if not self._closed:
            self._starting = asyncio.create_task(self._replace(spawner))

    async def _replace(self, lost: Spawner) -> Spawner:
        await lost.close()
        return await self._start()
