"""The record of a digest that a rank has taken of its state: a line of `digests.jsonl`, what a report audits.

docs/operations.md explains each key to users.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from everstep.observe.lines import Lines, read_lines
from everstep.types import Moment


@dataclass(frozen=True, slots=True)
class DigestRecord:
    """Two ranks that have the same shard at the same version have the same digest."""

    time_s: float
    """When the controller heard of it, in seconds since 1970."""
    moment: Moment
    generation: int
    version: int
    """So many updates are in the state."""
    rank: int
    worker: int
    shard: int
    digest: str
    """xxh3-128 over the names and the digests of all tensors, and over the values beside them."""


_DECODER = msgspec.json.Decoder(DigestRecord)


def encode(record: DigestRecord) -> bytes:
    """One line."""
    return msgspec.json.encode(record) + b"\n"


def scan_digests(path: Path) -> Lines[DigestRecord]:
    """What can be read of the records of a run, whatever state its file is in."""
    return read_lines(path, _DECODER.decode)
