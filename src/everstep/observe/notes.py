"""Notes of the flight recorder, and the entries of `flight/<node>.flight`. Knows neither who writes nor who reads.

A file holds what the agents of one node have written, one agent after the other. Each begins with `Opened`, and its
times are CLOCK_MONOTONIC of that node; `Clock` says what the controller's clock showed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from everstep.types import NodeId
from everstep.wire.codec import Codec

MAGIC = b"everstep flight 1\n"
KIND = "a flight record"
FOLDER = "flight"

NOTE = struct.Struct("<qqIHBx")
"""As a `Note` is in rings and files."""
MOST_ATTEMPTS = 0xFFFF


class Note(NamedTuple):
    """From then on a worker was there."""

    at_ns: int
    step: int
    generation: int
    attempt: int
    mark: int
    """A `Mark`."""


def pack(note: Iterable[int]) -> bytes:
    return NOTE.pack(*note)


def unpack(data: bytes) -> list[Note]:
    """Many of them, one behind the other."""
    return [Note._make(fields) for fields in NOTE.iter_unpack(data)]


def marks(data: bytes) -> bytes:
    """Those of many notes."""
    return data[NOTE.size - 2 :: NOTE.size]


@dataclass(frozen=True, slots=True)
class Opened:
    """An agent began to write. Its own wall clock has to do until there is a `Clock`."""

    node: str
    host: str
    pid: int
    at_ns: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class Clock:
    """When it was ``at_ns`` here, the controller's clock showed ``wall_s``."""

    at_ns: int
    wall_s: float
    error_s: float
    """It is not further off than this."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Notes of one worker in their order. Those of a failure are kept for ever, samples are thinned out."""

    worker: int
    rank: int | None
    sample: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """The process of a worker has ended."""

    worker: int
    at_ns: int
    how: str


Entry = Opened | Clock | Chunk | Gone
CODEC: Codec[Entry] = Codec(Entry)


def flight_path(run_dir: Path, node: NodeId) -> Path:
    return run_dir / FOLDER / f"{quote(node, safe='')}.flight"
