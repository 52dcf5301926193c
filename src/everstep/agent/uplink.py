"""The way to the controller: found again and again, slower each time, until it takes too long."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

from everstep.controller.job import RunDir
from everstep.errors import AuthError, ConfigError, WireError
from everstep.wire.auth import Token
from everstep.wire.channel import Channel, connect
from everstep.wire.codec import Codec
from everstep.wire.messages import FromController, ToController
from everstep.wire.terms import Terms, describe

log = logging.getLogger(__name__)

Link = Channel[ToController, FromController]

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

_SENDS: Codec[ToController] = Codec(ToController)
_RECEIVES: Codec[FromController] = Codec(FromController)


class Uplink:
    def __init__(
        self, address: tuple[str, int] | None, run_dir: Path | None, token: Token | None, patience_s: float
    ) -> None:
        self._address = address
        self._run_dir = run_dir
        self._terms = Terms(_SENDS, _RECEIVES, token)
        self._patience_s = patience_s
        self._cut_until = 0.0
        self._pause_s = 0.0
        self._trouble = ""
        self._trusted = False

    def cut(self, for_s: float) -> None:
        """Make no connection for so long."""
        self._cut_until = asyncio.get_running_loop().time() + for_s

    def welcomed(self) -> None:
        """This controller wants us. Until then a connection that is made is no reason to hurry to the next one."""
        self._trusted = True
        self._pause_s = FIRST_PAUSE_S

    async def connect(self) -> Link:
        """The next connection; a ConfigError if there is none in ``patience_s``."""
        self._trouble = "not tried"
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._connect()
        except TimeoutError:
            raise ConfigError(
                f"no controller at {self._place()} for {self._patience_s:g} s ({self._trouble}): "
                "start it, or give its address with --controller"
            ) from None

    async def _connect(self) -> Link:
        loop = asyncio.get_running_loop()
        while True:
            # Not all agents of a job at the same moments.
            await asyncio.sleep(max(self._pause_s * random.uniform(0.5, 1.0), self._cut_until - loop.time()))
            self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            try:
                if (address := self._find()) is not None:
                    return await connect(address, self._terms)
                self._trouble = "nobody has said yet where it listens"
            except (OSError, WireError) as error:
                # One that let us in before will again: meanwhile somebody else may have its port.
                if isinstance(error, AuthError) and not self._trusted:
                    raise
                self._trouble = str(error)

    def _find(self) -> tuple[str, int] | None:
        """A restarted controller may be elsewhere."""
        found = RunDir(self._run_dir).address() if self._run_dir is not None else None
        return (found.host, found.port) if found is not None else self._address

    def _place(self) -> str:
        address = self._find()
        return describe(address) if address is not None else str(self._run_dir)
