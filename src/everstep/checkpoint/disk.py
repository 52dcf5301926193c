"""The system calls by which a checkpoint directory is changed, one method each. Tests stop between any two."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


class Disk:
    """The real one."""

    def create(self, path: Path) -> int:
        """A new file, open for writing. FileExistsError: it is not new."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def begin_sync(self, fd: int, offset: int, size_bytes: int) -> None:
        """Have the device at work on this range already: `sync` has less to wait for then."""
        with suppress(OSError):  # it is only a hint
            os.posix_fadvise(fd, offset, size_bytes, os.POSIX_FADV_DONTNEED)  # what is dirty is written, not dropped

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def make_directory(self, path: Path) -> None:
        """Or let it be, if another process has just made it."""
        path.mkdir(exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Makes the names in it durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)


def read_at(fd: int, offset: int, buffer: bytearray | memoryview) -> int:
    """How many bytes there were: fewer than asked for at the end of the file."""
    rest, done = memoryview(buffer).cast("B"), 0
    while rest and (count := os.preadv(fd, [rest], offset + done)):
        rest, done = rest[count:], done + count
    return done
