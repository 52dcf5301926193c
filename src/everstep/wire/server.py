"""Accepts connections, lets nobody in without the handshake, and hands each to the owner's handler.

Whatever a peer sends ends at most its own connection, with a reason in the log. Knows no message.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic

from everstep.errors import ConfigError, WireError
from everstep.wire.auth import Side, require_token
from everstep.wire.channel import Channel
from everstep.wire.terms import Address, In, Out, Terms, describe

MAX_STRANGERS = 512
"""Connections that may be in the handshake at once, for ``handshake_s`` each; one more has to try again."""

BACKLOG = 4096
"""After a controller restart every agent calls at once."""

ACCEPT_PAUSE_S = 1.0

log = logging.getLogger(__name__)


class Server(Generic[Out, In]):
    """Made by `serve`. Every connection and its handler end with it."""

    def __init__(
        self,
        listener: socket.socket,
        address: Address,
        terms: Terms[Out, In],
        handler: Callable[[Channel[Out, In]], Awaitable[None]],
        max_strangers: int,
    ) -> None:
        self.address = address
        """Where it listens, with the port that the kernel chose."""
        self._listener = listener
        self._terms = terms
        self._handler = handler
        self._max_strangers = max_strangers
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._resume()

    def _accept(self) -> None:
        """One at a time, so that a crowd at the door does not keep the loop from those inside."""
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it went away before we looked
            return
        except OSError as error:  # out of descriptors: trying again at once would only burn the processor
            log.error("cannot accept on %s: %s", describe(self.address), error.strerror)
            self._loop.remove_reader(self._listener)
            self._loop.call_later(ACCEPT_PAUSE_S, self._resume)
            return
        task = self._loop.create_task(self._serve(Channel(sock, self._terms)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    async def _serve(self, channel: Channel[Out, In]) -> None:
        try:
            await self._admit(channel)
            await self._handler(channel)
        except WireError as error:
            log.warning("connection from %s closed: %s", channel.peer, error)
        except Exception:  # the supervisor of handlers: a bug that one peer found must not end the others
            log.exception("connection from %s closed: its handler failed", channel.peer)
        finally:
            channel.close("the server is done with it")
            await channel.wait_closed()

    async def _admit(self, channel: Channel[Out, In]) -> None:
        if self._strangers >= self._max_strangers:
            raise WireError(f"{self._strangers} other connections are still in the handshake")
        self._strangers += 1
        try:
            await channel.shake_hands(Side.SERVER)
        finally:
            self._strangers -= 1

    async def close(self) -> None:
        """Nobody new, and an end to everybody who is here."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            if isinstance(self.address, Path):
                self.address.unlink(missing_ok=True)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Server[Out, In]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def serve(
    address: Address,
    terms: Terms[Out, In],
    handler: Callable[[Channel[Out, In]], Awaitable[None]],
    *,
    max_strangers: int = MAX_STRANGERS,
) -> Server[Out, In]:
    """Listen on an address; port 0 lets the kernel choose. A connection ends when its handler returns."""
    if not isinstance(address, Path):
        require_token(address[0], terms.token)
    listener = listen(address)
    actual = address if isinstance(address, Path) else listener.getsockname()[:2]
    return Server(listener, actual, terms, handler, max_strangers)


def listen(address: Address) -> socket.socket:
    """A socket that listens, without waiting for anybody; a ConfigError says why there is none."""
    sock = socket.socket(_family(address), socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if isinstance(address, Path):
            _bind_path(sock, address)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restarted controller takes its port
            sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {describe(address)}: {error.strerror or error}") from error
    return sock


def _family(address: Address) -> int:
    if isinstance(address, Path):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def _bind_path(sock: socket.socket, path: Path) -> None:
    if path.is_socket():
        path.unlink()  # left behind by a process that was killed
    sock.bind(str(path))
    path.chmod(0o600)  # before listening: nobody can have connected
