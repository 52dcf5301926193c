"""The agent's side of the persister: starts it, again if it has died, gives it orders and hears its receipts."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from everstep.checkpoint.persister import PACKET_BYTES, RECEIPTS, WRITES, Write
from everstep.wire.messages import Receipt

log = logging.getLogger(__name__)

PERSISTER = (sys.executable, "-P", "-m", "everstep.checkpoint.persister")  # -P: no module of the user's instead of ours
TRIES = 2
"""A persister that dies of the same order twice would die of it forever."""
_GO_S = 2.0
"""A killed process that is still there waits for its storage; it is left to the kernel."""


class Persister:
    """Made inside the event loop. ``command`` begins the command line of the process."""

    def __init__(self, command: Sequence[str] = PERSISTER) -> None:
        self._command = command
        self._process: _Process | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Ahead of the first order, so that the time of this one is that of its work. What stands against it is said by
        the order, which tries again."""
        if self._process is None and not self._closed:
            with suppress(OSError):
                self._process = _Process(self._command)

    async def persist(self, order: Write) -> Receipt:
        """When it is durable, or cannot be. Orders wait for each other, and may be given again."""
        async with self._one_at_a_time:
            for _ in range(TRIES):
                if self._closed:
                    return Receipt(order.rank, order.checkpoint, error="the agent is ending")
                if self._process is None:
                    try:
                        self._process = _Process(self._command)
                    except OSError as error:  # no memory for a process, no more files: storage is not worth the node
                        return Receipt(
                            order.rank, order.checkpoint, error=f"the persister cannot be started: {error.strerror}"
                        )
                receipt = await self._process.ask(order)
                if receipt is not None:
                    return receipt
                process, self._process = self._process, None
                log.warning("the persister has ended (%s) at the share of rank %s", await process.end(), order.rank)
            return Receipt(order.rank, order.checkpoint, error=f"the persister died {TRIES} times while it wrote it")

    async def close(self, wait_s: float = 0.0) -> None:
        """Let it finish what it is at for so long, then kill it. Orders that wait get a receipt with an error."""
        self._closed = True
        if self._process is None:
            return
        self._process.hang_up()
        if not await self._idle(wait_s):
            self._process.kill()  # who waits for its receipt sees that, and reaps it
            await self._idle(_GO_S)
        if self._process is not None:
            process, self._process = self._process, None
            await process.end()

    async def _idle(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s), self._one_at_a_time:
                return True
        except TimeoutError:
            return False


class _Process:
    def __init__(self, command: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs, ExitStack() as undo:
            undo.callback(self._control.close)
            self._popen = subprocess.Popen(
                [*command, "--control", str(theirs.fileno()), "--agent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the agent
            )
            undo.pop_all()
        self.pid = self._popen.pid

    async def ask(self, order: Write) -> Receipt | None:
        """None: it has died."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._control, WRITES.encode(order))
            while packet := await loop.sock_recv(self._control, PACKET_BYTES):
                receipt = RECEIPTS.decode(packet)
                if (receipt.rank, receipt.checkpoint) == (order.rank, order.checkpoint):
                    return receipt  # another one is for somebody who was cancelled
        except (BrokenPipeError, ConnectionResetError):
            pass
        return None

    def hang_up(self) -> None:
        """It ends when it has answered."""
        self._control.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        self._popen.kill()

    async def end(self) -> str:
        """It is gone when this returns, unless its storage does not let it go; how it ended."""
        self._control.close()
        self._popen.kill()
        try:
            code = await asyncio.to_thread(self._popen.wait, _GO_S)
        except subprocess.TimeoutExpired:
            return "it is killed and does not go: its storage does not answer"
        return f"signal {-code}" if code < 0 else f"exit code {code}"
