"""Every event of a job on disk, in order: what a restarted controller and the replay tool read.

    records as `wire.records` writes them: time f64 · an event or, in the first one, the configuration, as `wire.codec`
    writes it

It has to survive the death of the controller, not that of its machine, which takes the job's agents with it or is
found by them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from everstep.core.config import JobConfig
from everstep.core.events import Event
from everstep.errors import ConfigError, WireError
from everstep.wire.codec import Codec
from everstep.wire.records import RecordFile, scan

MAGIC = b"everstep journal 1\n"
KIND = "a journal"
_TIME = struct.Struct("<d")
_CODEC: Codec[Event | JobConfig] = Codec(Event | JobConfig)


@dataclass(frozen=True, slots=True)
class Record:
    time_s: float
    """Wall clock."""
    entry: Event | JobConfig


class Journal:
    """The end of a journal file, open for writing."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file

    @classmethod
    def create(cls, path: Path, config: JobConfig) -> Self:
        journal = cls(RecordFile.create(path, MAGIC))
        journal.append(config)
        return journal

    @classmethod
    def reopen(cls, path: Path) -> tuple[Self, list[Record]]:
        """All records so far, and the journal ready for the next one."""
        file, found = RecordFile.reopen(path, MAGIC, KIND)
        return cls(file), _records(path, found)

    def append(self, entry: Event | JobConfig) -> float:
        """On its way to the disk when this returns its time: the effects of an event come after it."""
        time_s = time.time()
        self._file.append(_TIME.pack(time_s) + _CODEC.encode(entry))
        return time_s

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Record]:
    """The records of a journal, also of one that is being written."""
    yield from _records(path, scan(path, MAGIC, KIND)[0])


def _records(path: Path, found: list[tuple[int, bytes]]) -> list[Record]:
    records = [_record(path, at, body) for at, body in found]
    if not records or not isinstance(records[0].entry, JobConfig):
        raise ConfigError(f"{path} does not begin with the configuration of a job")
    return records


def _record(path: Path, at: int, body: bytes) -> Record:
    (time_s,) = _TIME.unpack_from(body)
    try:
        return Record(time_s, _CODEC.decode(body[_TIME.size :]))
    except WireError as error:
        raise ConfigError(f"{path} holds an unknown record at byte {at}: {error}") from None
