"""The record of a checkpoint: a line of `checkpoints.jsonl`, a part of the status, the timeline of a report.

docs/operations.md explains each key to users.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

import msgspec

from everstep.observe.lines import Lines, read_lines


class Fate(enum.StrEnum):
    """How far a checkpoint came."""

    COMMITTED = "committed"  # durable on storage, all of it
    SEALED = "sealed"  # complete in memory, and not persisted: it was overtaken, or storage failed
    INCOMPLETE = "incomplete"  # not every rank has sealed it
    SKIPPED = "skipped"  # both slots were busy: storage is slower than the interval


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """Written once, when its fate is known."""

    step: int
    generation: int
    attempt: int
    """Distinguishes runs that share a checkpoint directory."""
    fate: Fate
    reason: str
    """Why it was not committed; empty otherwise."""
    time_s: float
    """When the first rank began to copy (k0), in seconds since 1970."""
    k0_s: float
    """The longest that a rank was held up by the copy to memory."""
    sealed_s: float | None
    """When the last rank had sealed it."""
    k1_s: float | None
    """From the order to persist to the durable COMMIT."""
    committed_s: float | None
    bytes: int
    """Over all ranks."""
    every: int
    """t: steps between two checkpoints when this one was taken."""
    why: str
    """Where t comes from: what was asked for, or the measured k0, k1, φ, M and q that auto set it with."""


_DECODER = msgspec.json.Decoder(CheckpointRecord)


def encode(record: CheckpointRecord) -> bytes:
    """One line."""
    return msgspec.json.encode(record) + b"\n"


def scan_checkpoints(path: Path) -> Lines[CheckpointRecord]:
    """What can be read of the records of a run, whatever state its file is in."""
    return read_lines(path, _DECODER.decode)


def read_checkpoints(path: Path) -> list[CheckpointRecord]:
    """All records of a run, oldest first. A last line that is still being written is left out."""
    return scan_checkpoints(path).whole()
