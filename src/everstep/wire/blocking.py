"""The same connection for plain threads: the control thread of a worker. Needs no event loop.

As with `Channel`, the reader owns the connection's fate and what is sent on a closed one is dropped.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Generic

from everstep.errors import WireError
from everstep.wire.auth import Handshake, Side, refusal
from everstep.wire.framing import MAX_STRANGER_FRAME_BYTES, FrameDecoder, encode_frame
from everstep.wire.terms import CHUNK_BYTES, Address, In, Out, Terms, peer_name, tune


class BlockingChannel(Generic[Out, In]):
    """One thread receives, any thread sends, any thread closes. A context manager."""

    def __init__(self, sock: socket.socket, terms: Terms[Out, In]) -> None:
        tune(sock)
        sock.setblocking(False)
        self.peer = peer_name(sock)
        self.closed: str | None = None
        """Why it ended; None while it is open."""
        self._sock = sock
        self._terms = terms
        self._decoder = FrameDecoder(MAX_STRANGER_FRAME_BYTES)
        self._error: WireError | None = None
        self._make_locks()
        _channels.add(self)

    def _make_locks(self) -> None:
        # Held while a direction uses the descriptor, so that its number is not given away under it.
        self._receiving = threading.Lock()
        self._sending = threading.Lock()
        self._ending = threading.Lock()

    @classmethod
    def connect(cls, address: Address, terms: Terms[Out, In]) -> BlockingChannel[Out, In]:
        """A channel to a server. OSError: it cannot be reached now; AuthError: it never will be."""
        sock = _connect(address, terms.handshake_s)
        channel = cls(sock, terms)
        channel.shake_hands(Side.CLIENT)
        return channel

    def shake_hands(self, side: Side) -> None:
        """Before anything else, within ``handshake_s``. The peer is told why it is refused."""
        deadline = time.monotonic() + self._terms.handshake_s
        try:
            self._prove(Handshake(side, self._terms.token), deadline)
        except WireError as error:
            self._write(encode_frame(refusal(str(error))), deadline)
            self.close(str(error))
            raise
        self._decoder.limit_bytes = self._terms.max_frame_bytes

    def _prove(self, handshake: Handshake, deadline: float) -> None:
        reply = handshake.opening()
        while True:
            if reply is not None:
                self._write(encode_frame(reply), deadline)
            if handshake.done:
                return
            try:
                payload = self._next_payload(deadline)
            except TimeoutError:
                raise WireError(f"no complete handshake within {self._terms.handshake_s:g} s") from None
            if payload is None:
                raise WireError(f"the handshake was not completed: {self.closed}")
            reply = handshake.receive(payload)

    def send(self, message: Out) -> None:
        """Waits up to ``send_s`` for a peer that does not read, then gives the connection up."""
        frame = encode_frame(self._terms.sends.encode(message), self._terms.max_frame_bytes)
        self._write(frame, time.monotonic() + self._terms.send_s)

    def _write(self, frame: bytes, deadline: float) -> None:
        rest = memoryview(frame)
        with self._sending:
            while rest and self.closed is None:
                try:
                    rest = rest[self._sock.send(rest) :]
                except BlockingIOError:
                    if not _wait(self._sock, select.POLLOUT, deadline):
                        reason = f"the peer does not read: a message did not leave within {self._terms.send_s:g} s"
                        self._end(reason, WireError(reason))
                except OSError:
                    return  # the reader will find the end, after the last words of the peer

    def recv(self, timeout_s: float) -> In | None:
        """The next message, or None at the end; a TimeoutError changes nothing."""
        try:
            payload = self._next_payload(time.monotonic() + timeout_s)
            if payload is not None:
                return self._terms.receives.decode(payload)
        except WireError as error:
            self._end(str(error), error)
        if self._error is not None:
            raise self._error
        return None

    def _next_payload(self, deadline: float) -> bytes | None:
        with self._receiving:
            while self.closed is None:
                payload = self._decoder.take()
                if payload is not None:
                    return payload
                if not _wait(self._sock, select.POLLIN, deadline):
                    raise TimeoutError("no message in time")
                try:
                    data = self._sock.recv(CHUNK_BYTES)
                except OSError as error:
                    self._end(f"connection lost: {error.strerror}")
                    break
                self._decoder.feed(data)
                if not data and self.closed is None:
                    self._decoder.finish()
                    self._end("end of stream")
        return None

    def close(self, reason: str = "closed") -> None:
        """A recv or send that waits in another thread returns. The first reason stays."""
        self._end(reason)
        with self._receiving, self._sending:
            self._sock.close()

    def _end(self, reason: str, error: WireError | None = None) -> None:
        """Nothing moves any more; the descriptor is still ours."""
        with self._ending:
            if self.closed is not None:
                return
            self.closed, self._error = reason, error
            with contextlib.suppress(OSError):  # the peer was faster
                self._sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> BlockingChannel[Out, In]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget_in_child(self) -> None:
        """No shutdown: it would end the parent's connection. New locks: the parent may hold the old."""
        self._make_locks()
        self.closed = "this process is a fork of the one that was connected"
        self._sock.close()


def _connect(address: Address, timeout_s: float) -> socket.socket:
    if not isinstance(address, Path):
        return socket.create_connection(address, timeout_s)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout_s)
        sock.connect(str(address))
    except OSError:
        sock.close()
        raise
    return sock


def _wait(sock: socket.socket, event: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


_channels: weakref.WeakSet[BlockingChannel[Any, Any]] = weakref.WeakSet()


def _forget_channels_in_child() -> None:
    """A data loader process that kept our socket would outlive us, and the peer would never see the end."""
    for channel in list(_channels):
        channel._forget_in_child()


os.register_at_fork(after_in_child=_forget_channels_in_child)
