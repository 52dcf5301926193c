"""What the agent and its zygote say to each other, over a socketpair that keeps the packets apart.

The agent sends SPAWN (with three file descriptors: the Task in a memory file, stdout, stderr) or CLOSE.
The zygote answers with Reports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

SPAWN = b"spawn"
CLOSE = b"close"
REPORT_BYTES = 1 << 16


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One process to start. Bytes, because arguments and environment need not be UTF-8."""

    worker: int
    argv: list[bytes]  # what would follow `python` on a command line
    env: list[tuple[bytes, bytes]]  # all of it
    cwd: bytes
    fresh: bool  # a new interpreter instead of a fork of this one

    @classmethod
    def of(cls, worker: int, argv: Sequence[str], env: Mapping[str, str], cwd: Path, fresh: bool) -> Task:
        pairs = [(os.fsencode(name), os.fsencode(value)) for name, value in env.items()]
        return cls(worker, [os.fsencode(argument) for argument in argv], pairs, os.fsencode(cwd), fresh)

    def to_memory_file(self) -> int:
        """An environment may be larger than a packet, so it travels as a file descriptor."""
        fd = os.memfd_create("everstep-task")
        with open(fd, "wb", closefd=False) as file:
            file.write(msgspec.msgpack.encode(self))
        return fd

    @classmethod
    def from_memory_file(cls, fd: int) -> Task:
        return msgspec.msgpack.decode(os.pread(fd, os.fstat(fd).st_size, 0), type=cls)


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The preload is done, or failed for this reason."""

    threads: list[str]  # should be one: a lock that another thread holds stays locked in every fork
    failure: str | None = None


class Spawned(msgspec.Struct, frozen=True, tag=True):
    """The process runs. Its pidfd comes with this packet, so that its pid cannot mean another process."""

    worker: int
    pid: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The system would not start another process."""

    worker: int
    reason: str


class Exited(msgspec.Struct, frozen=True, tag=True):
    """The process has ended and is reaped: said once for each Spawned."""

    worker: int
    code: int | None
    signal: int | None


Report = Ready | Spawned | Refused | Exited
_DECODER: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def decode_report(packet: bytes) -> Report:
    return _DECODER.decode(packet)
