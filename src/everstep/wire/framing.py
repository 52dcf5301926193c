"""Frames: where a message starts and ends in a stream of bytes. Sans-I/O; knows nothing of what is inside.

A frame is a length in 4 bytes, big-endian, and that many bytes. A length of 0 or over the limit is refused
as soon as the length is there, before any room is made for what is announced.
"""

from __future__ import annotations

import struct

from everstep.errors import WireError

HEADER = struct.Struct("!I")

MAX_FRAME_BYTES = 4 * 1024 * 1024
"""The largest message between partners: a rank table of 20,000 rows fits."""

MAX_STRANGER_FRAME_BYTES = 4 * 1024
"""The largest message from somebody who has not proved to know the token."""


def encode_frame(payload: bytes, limit_bytes: int = MAX_FRAME_BYTES) -> bytes:
    _check(len(payload), limit_bytes)
    return HEADER.pack(len(payload)) + payload


class FrameDecoder:
    """Feed it whatever arrives, take out payloads. The cost is linear however the stream is cut."""

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self.limit_bytes = limit_bytes
        """May be changed between two frames: it holds for those not yet taken."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> bytes | None:
        """The next complete payload, or None until more is fed."""
        if len(self._buffer) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._buffer)
        _check(length, self.limit_bytes)
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]  # a bytearray moves its start, not the bytes behind
        return payload

    def finish(self) -> None:
        """The stream has ended: a WireError if that is in the middle of a frame."""
        if self._buffer:
            raise WireError(f"truncated frame: the stream ends {len(self._buffer)} bytes into one")


def _check(length: int, limit_bytes: int) -> None:
    if length == 0:
        raise WireError("empty frame")
    if length > limit_bytes:
        raise WireError(f"oversized frame: {length} bytes, the limit is {limit_bytes}")
