"""A connection for asyncio: messages in, messages out, one reason when it ends. Knows no message, no owner.

The reader owns the connection's fate: `recv` says None when it has ended (end of stream, reset, our own
close) and raises a WireError when the peer broke a rule. `send` never waits and never tells: what is sent on
a closed channel is dropped, like what is sent just before a peer dies. It stands on the bare socket, because
an asyncio transport that fails to write drops what it has not read: the last words of a process that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any, Generic

from everstep.errors import WireError
from everstep.wire.auth import Handshake, Side, refusal
from everstep.wire.framing import MAX_STRANGER_FRAME_BYTES, FrameDecoder, encode_frame
from everstep.wire.terms import CHUNK_BYTES, Address, In, Out, Terms, peer_name, tune

LINGER_S = 1.0
"""How long a closed channel tries to deliver what it was given before."""


class Channel(Generic[Out, In]):
    """Made by `connect` or by a server. One task receives; anybody on the event loop sends."""

    def __init__(self, sock: socket.socket, terms: Terms[Out, In]) -> None:
        sock.setblocking(False)
        tune(sock)
        self.peer = peer_name(sock)
        self.closed: str | None = None
        """Why it ended; None while it is open."""
        self._sock = sock
        self._terms = terms
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(MAX_STRANGER_FRAME_BYTES)
        self._readable: asyncio.Future[None] = self._loop.create_future()
        self._outgoing = bytearray()
        self._error: WireError | None = None
        self._released = asyncio.Event()

    # ── the handshake ────────────────────────────────────────────────────────────────────────────────────

    async def shake_hands(self, side: Side) -> None:
        """Before anything else, within ``handshake_s``. The peer is told why it is refused."""
        try:
            await self._prove(Handshake(side, self._terms.token))
        except WireError as error:
            if self.closed is None:
                self._write(encode_frame(refusal(str(error))))
                self._error = error
                self.close(str(error))
            raise
        self._decoder.limit_bytes = self._terms.max_frame_bytes

    async def _prove(self, handshake: Handshake) -> None:
        try:
            async with asyncio.timeout(self._terms.handshake_s):
                await self._exchange(handshake)
        except TimeoutError:
            raise WireError(f"no complete handshake within {self._terms.handshake_s:g} s") from None

    async def _exchange(self, handshake: Handshake) -> None:
        reply = handshake.opening()
        while True:
            if reply is not None:
                self._write(encode_frame(reply))
            if handshake.done:
                return
            payload = await self._next_payload()
            if payload is None:
                raise WireError(f"the handshake was not completed: {self.closed}")
            reply = handshake.receive(payload)

    # ── out ──────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, message: Out) -> None:
        """Hand over to the kernel what it takes and keep the rest, up to ``max_backlog_bytes``."""
        frame = encode_frame(self._terms.sends.encode(message), self._terms.max_frame_bytes)
        if self.closed is not None:
            return
        if len(self._outgoing) + len(frame) > self._terms.max_backlog_bytes:
            self._fail(WireError(f"the peer does not read: {len(self._outgoing)} bytes wait for it"))
            return
        self._write(frame)

    def _write(self, frame: bytes) -> None:
        waiting = bool(self._outgoing)
        self._outgoing += frame if waiting else frame[self._push(frame) :]
        if self._outgoing and not waiting:
            self._loop.add_writer(self._sock, self._flush)

    def _push(self, data: bytes | bytearray) -> int:
        """How much the kernel took. A broken connection takes all: the reader will find the end of it."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _flush(self) -> None:
        del self._outgoing[: self._push(self._outgoing[:CHUNK_BYTES])]
        if not self._outgoing:
            self._loop.remove_writer(self._sock)
            if self.closed is not None:
                self._say_goodbye()

    # ── in ───────────────────────────────────────────────────────────────────────────────────────────────

    async def recv(self) -> In | None:
        """The next message, or None at the end. To be cancelled at will: nothing is lost."""
        try:
            payload = await self._next_payload()
            if payload is not None:
                return self._terms.receives.decode(payload)
        except WireError as error:
            self._fail(error)
        if self._error is not None:
            raise self._error
        return None

    def __aiter__(self) -> Channel[Out, In]:
        return self

    async def __anext__(self) -> In:
        message = await self.recv()
        if message is None:
            raise StopAsyncIteration
        return message

    async def _next_payload(self) -> bytes | None:
        while self.closed is None:
            payload = self._decoder.take()
            if payload is not None:
                return payload
            await self._wait_readable()
            if self.closed is None:
                self._read()
        return None

    async def _wait_readable(self) -> None:
        """Always lets others run, so that a peer that floods us is one among many."""
        self._readable = self._loop.create_future()
        self._loop.add_reader(self._sock, self._wake)
        try:
            await self._readable
        finally:
            if self.closed is None:
                self._loop.remove_reader(self._sock)

    def _wake(self) -> None:
        if not self._readable.done():
            self._readable.set_result(None)

    def _read(self) -> None:
        try:
            data = self._sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:  # reset, or nothing acknowledged for SILENCE_S
            self.close(f"connection lost: {error.strerror}")
            return
        self._decoder.feed(data)
        if not data:
            self._decoder.finish()
            self.close("end of stream")

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────

    def close(self, reason: str) -> None:
        """From now on nothing is received; what was sent has LINGER_S to leave. The first reason stays."""
        if self.closed is not None:
            return
        self.closed = reason
        self._wake()
        self._loop.call_later(LINGER_S, self._release)
        if not self._outgoing:
            self._say_goodbye()

    def _fail(self, error: WireError) -> None:
        if self.closed is None:
            self.closed = str(error)
            self._error = error
            self._wake()
            self._release()

    def _say_goodbye(self) -> None:
        """A socket that is closed with bytes unread sends a reset, and what we said last could be lost."""
        with contextlib.suppress(OSError):  # the peer is gone already
            self._sock.shutdown(socket.SHUT_WR)
        self._loop.add_reader(self._sock, self._discard)

    def _discard(self) -> None:
        try:
            rest = self._sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            rest = b""
        if not rest:
            self._release()

    def _release(self) -> None:
        if not self._released.is_set():
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._outgoing.clear()
            self._sock.close()
            self._released.set()

    async def wait_closed(self) -> None:
        """After a close: until the socket is gone, LINGER_S at most. Cancelled, it is gone at once."""
        try:
            await self._released.wait()
        finally:
            self._release()


async def connect(address: Address, terms: Terms[Out, In]) -> Channel[Out, In]:
    """A channel to a server. OSError: it cannot be reached now; AuthError: it never will be."""
    try:
        async with asyncio.timeout(terms.handshake_s):
            sock = await _open(address)
    except TimeoutError:
        raise TimeoutError(f"no connection within {terms.handshake_s:g} s") from None
    channel = Channel(sock, terms)
    try:
        await channel.shake_hands(Side.CLIENT)
    except BaseException:
        channel.close("the handshake was not completed")
        await channel.wait_closed()
        raise
    return channel


async def _open(address: Address) -> socket.socket:
    if isinstance(address, Path):
        return await _reach(socket.AF_UNIX, str(address))
    places = await asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)
    for family, _, _, _, place in places[:-1]:
        with contextlib.suppress(OSError):
            return await _reach(family, place)
    return await _reach(places[-1][0], places[-1][4])


async def _reach(family: int, place: str | tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock
