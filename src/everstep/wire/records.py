"""A file of records, each with its length and a checksum. Knows nothing of what is in them.

    magic, then records: length u32 · xxh3-64 of the body u64 · body

Appended without fsync: a record survives the death of the process that wrote it, not that of its machine. A torn last
record is what a kill leaves; it is cut off. Anything else that does not fit is damage, and named.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Self

import xxhash

from everstep.errors import ConfigError

_HEAD = struct.Struct("<IQ")


class RecordFile:
    """The end of such a file, open for writing. ``kind`` is what a person calls it."""

    def __init__(self, path: Path, end: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, end, os.SEEK_SET)
        self.size_bytes = end

    @classmethod
    def create(cls, path: Path, magic: bytes) -> Self:
        file = cls(path, 0)
        file._write(magic)
        return file

    @classmethod
    def reopen(cls, path: Path, magic: bytes, kind: str) -> tuple[Self, list[tuple[int, bytes]]]:
        """All records so far, and the file ready for the next one."""
        records, end = scan(path, magic, kind)
        return cls(path, end), records

    def append(self, *bodies: bytes) -> None:
        """On their way to the disk when this returns."""
        self._write(b"".join(_HEAD.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body for body in bodies))

    def copy_from(self, path: Path, start: int) -> None:
        """Whole records of another such file, from there to its end."""
        with path.open("rb") as file:
            file.seek(start)
            self._write(file.read())

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        if os.write(self._fd, data) != len(data):
            raise OSError(f"{len(data)} bytes could not be written whole: is the disk of the run directory full?")
        self.size_bytes += len(data)


def scan(path: Path, magic: bytes, kind: str) -> tuple[list[tuple[int, bytes]], int]:
    """The place and the body of each record, and where the last whole one ends; also while others write."""
    data = path.read_bytes()
    if not data.startswith(magic):
        raise ConfigError(f"{path} is not {kind} of this version of everstep")
    records: list[tuple[int, bytes]] = []
    at = len(magic)
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
        records.append((at, body))
        at = end
    return records, at
