"""What the ends of a connection agree on, and the sockets beneath: addresses, options, names for logs."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from everstep.wire.auth import Token
from everstep.wire.codec import Codec
from everstep.wire.framing import MAX_FRAME_BYTES

Out = TypeVar("Out")
In = TypeVar("In")

Address = tuple[str, int] | Path
"""Host and port of a TCP socket, or the path of a Unix socket."""

CHUNK_BYTES = 64 * 1024
"""How much is read at once."""

SILENCE_S = 10
"""A peer that acknowledges nothing for so long is gone. Longer than a hiccup, shorter than any lease."""


@dataclass(frozen=True, slots=True)
class Terms(Generic[Out, In]):
    """One end's view: what it may say, what it takes, and the limits that keep the other end harmless."""

    sends: Codec[Out]
    receives: Codec[In]
    token: Token | None
    handshake_s: float = 5.0
    """For connecting, and again for proving the token."""
    send_s: float = 5.0
    """How long a thread waits for a peer that does not read."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    max_backlog_bytes: int = 4 * MAX_FRAME_BYTES
    """What may wait in memory for a peer that does not read."""


def tune(sock: socket.socket) -> None:
    """Small messages leave at once, and a peer whose machine is gone is noticed without traffic."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)


def peer_name(sock: socket.socket) -> str:
    """The other end, as a log should call it."""
    if sock.family == socket.AF_UNIX:
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"pid {pid} of user {uid}"
    try:
        host, port = sock.getpeername()[:2]
    except OSError:  # it was reset between accept and here
        return "a peer that is gone"
    return f"{host}:{port}"


def describe(address: Address) -> str:
    return str(address) if isinstance(address, Path) else f"{address[0]}:{address[1]}"
