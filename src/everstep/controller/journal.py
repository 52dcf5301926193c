"""Every event of a job on disk, in order: what a restarted controller and the replay tool read.

    MAGIC, then records: length u32 · xxh3-64 of the body u64 · body
    body: time f64 · an event or, in the first record, the configuration, as `wire.codec` writes it

Appended without fsync: it has to survive the death of the controller, not that of its machine, which takes the
job's agents with it or is found by them. A torn last record is what a kill leaves; it is cut off. Anything else that
does not fit is damage, and named.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import xxhash

from everstep.core.config import JobConfig
from everstep.core.events import Event
from everstep.errors import ConfigError, WireError
from everstep.wire.codec import Codec

MAGIC = b"everstep journal 1\n"
_HEAD = struct.Struct("<IQ")
_TIME = struct.Struct("<d")
_CODEC: Codec[Event | JobConfig] = Codec(Event | JobConfig)


@dataclass(frozen=True, slots=True)
class Record:
    time_s: float
    """Wall clock."""
    entry: Event | JobConfig


class Journal:
    """The end of a journal file, open for writing."""

    def __init__(self, path: Path, end: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, end, os.SEEK_SET)

    @classmethod
    def create(cls, path: Path, config: JobConfig) -> Self:
        journal = cls(path, 0)
        os.write(journal._fd, MAGIC)
        journal.append(config)
        return journal

    @classmethod
    def reopen(cls, path: Path) -> tuple[Self, list[Record]]:
        """All records so far, and the journal ready for the next one."""
        records, end = _scan(path)
        return cls(path, end), records

    def append(self, entry: Event | JobConfig) -> float:
        """On its way to the disk when this returns its time: the effects of an event come after it."""
        time_s = time.time()
        body = _TIME.pack(time_s) + _CODEC.encode(entry)
        data = _HEAD.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body
        if os.write(self._fd, data) != len(data):
            raise OSError(
                f"the journal could not be written whole: is the disk of the run directory full? ({len(data)} bytes)"
            )
        return time_s

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path) -> Iterator[Record]:
    """The records of a journal, also of one that is being written."""
    yield from _scan(path)[0]


def _scan(path: Path) -> tuple[list[Record], int]:
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise ConfigError(f"{path} is not a journal of this version of everstep")
    records: list[Record] = []
    at = len(MAGIC)
    while len(data) - at >= _HEAD.size:
        length, digest = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(body) < length:
            break
        end = at + _HEAD.size + length
        if xxhash.xxh3_64_intdigest(body) != digest:
            if end == len(data):
                break  # torn: the length was written, not all of the body
            raise ConfigError(f"{path} is damaged at byte {at}: the checksum of record {len(records)} is wrong")
        records.append(_record(path, at, body))
        at = end
    if not records or not isinstance(records[0].entry, JobConfig):
        raise ConfigError(f"{path} does not begin with the configuration of a job")
    return records, at


def _record(path: Path, at: int, body: bytes) -> Record:
    (time_s,) = _TIME.unpack_from(body)
    try:
        return Record(time_s, _CODEC.decode(body[_TIME.size :]))
    except WireError as error:
        raise ConfigError(f"{path} holds an unknown record at byte {at}: {error}") from None
