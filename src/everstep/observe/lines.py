"""Files with one record in each line, as `recoveries.jsonl`: what can be read of one, and what cannot."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from everstep.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lines(Generic[T]):
    """What a file holds."""

    records: list[T]
    """Oldest first."""
    foreign: list[str]
    """A sentence for each line that is damaged, or of another version of everstep."""
    torn: bool = False
    """The last line has no end: it is still being written, or a kill kept it from being finished."""

    def whole(self) -> list[T]:
        """All records; what cannot be read is an error."""
        if self.foreign:
            raise ConfigError(self.foreign[0])
        return self.records


def read_lines(path: Path, decode: Callable[[bytes], T]) -> Lines[T]:
    """A file that is not there yet holds nothing. A last line without its end is left out."""
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return Lines([], [])
    records: list[T] = []
    foreign: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            what = f"line {number} of {path.name}"
            foreign.append(f"{what} is of another version of everstep, or damaged: {error}")
    return Lines(records, foreign, bool(rest))


def append_line(path: Path, line: bytes) -> None:
    """The job goes on without it if it cannot be written."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(line)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
