"""Where checkpoints are kept: a handful of operations on named objects. `DirectoryStore` keeps them in a directory.

Names are relative and have at most one folder, the checkpoint: ``step-…/rank-00000.safetensors``. An object appears
whole or not at all. An object store can do all of this too; there the object COMMIT stands for the rename.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, Self

from everstep.checkpoint import names
from everstep.checkpoint.disk import Disk, read_at

Buffer = bytes | bytearray | memoryview

EARLY_BYTES = 16 << 20
"""After so many the device is set to work, so that it writes while the next ones come."""


class Part(Protocol):
    """An object that is being written. Nobody sees it until it is published."""

    def write(self, offset: int, data: Buffer) -> None: ...

    def publish(self) -> None:
        """Durable, and there under its name, when this returns."""

    def discard(self) -> None:
        """Give it up. Does nothing once it is published."""


class Source(Protocol):
    """An object that is being read."""

    @property
    def size_bytes(self) -> int: ...

    def read_into(self, offset: int, buffer: bytearray | memoryview) -> int:
        """How many bytes there were: fewer than asked for at the end of the object."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Store(Protocol):
    """All of them raise OSError; FileNotFoundError is an object that is not there."""

    @property
    def where(self) -> str:
        """For people."""

    def part(self, name: str) -> Part:
        """Begin an object, in whose place there may be one already."""

    def put(self, name: str, data: bytes) -> None:
        """A small object at once; durable when this returns."""

    def source(self, name: str) -> Source: ...

    def read(self, name: str) -> bytes:
        """A small object."""

    def names(self, folder: str = "") -> list[str]:
        """What is in it, sorted. Nothing if it is not there."""

    def claim(self, name: str) -> bool:
        """Make an empty object. False: it is there already; of many that try one gets True."""

    def hide(self, folder: str) -> str:
        """From now on it is not there under its name; returns the name to purge it by."""

    def purge(self, folder: str) -> None:
        """Remove a hidden folder. May take long; what is left over can be purged again."""


class DirectoryStore:
    """A local or shared file system. Every change is one call of the disk, in an order that a crash cannot harm."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root = root
        self._disk = disk or Disk()

    @property
    def where(self) -> str:
        return str(self.root)

    def part(self, name: str) -> FilePart:
        path = self.root / name
        self._make_parents(path)
        return FilePart(path, self._disk)

    def put(self, name: str, data: bytes) -> None:
        part = self.part(name)
        try:
            part.write(0, data)
            part.publish()
        finally:
            part.discard()

    def source(self, name: str) -> FileSource:
        return FileSource(self.root / name)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def names(self, folder: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def claim(self, name: str) -> bool:
        path = self.root / name
        self._make_parents(path)
        try:
            os.close(self._disk.create(path))
        except FileExistsError:
            return False
        self._disk.sync_directory(path.parent)
        return True

    def hide(self, folder: str) -> str:
        hidden = f"{names.TRASH}{folder}"
        while (self.root / hidden).exists():  # half purged, by who died over it
            hidden = f"{names.TRASH}{folder}-{os.urandom(4).hex()}"
        self._disk.rename(self.root / folder, self.root / hidden)
        self._disk.sync_directory(self.root)
        return hidden

    def purge(self, folder: str) -> None:
        self._disk.remove_tree(self.root / folder)

    def _make_parents(self, path: Path) -> None:
        missing = [parent for parent in path.parents if not parent.exists()]
        for directory in reversed(missing):
            self._disk.make_directory(directory)
            self._disk.sync_directory(directory.parent)


class FilePart:
    """A file under another name until it is published.

    The name is its own: of two writers of one object each publishes what it wrote, never a mix.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._part = path.with_name(f"{path.name}.{os.urandom(4).hex()}{names.PART}")
        self._fd = disk.create(self._part)
        self._begun = 0
        """Where the device is set to work up to."""

    def write(self, offset: int, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            done = self._disk.write(self._fd, rest, offset)
            rest, offset = rest[done:], offset + done
        if offset - self._begun >= EARLY_BYTES:
            self._disk.begin_sync(self._fd, self._begun, offset - self._begun)
            self._begun = offset

    def publish(self) -> None:
        self._disk.sync(self._fd)
        self._disk.rename(self._part, self._path)
        self._close()
        self._disk.sync_directory(self._path.parent)

    def discard(self) -> None:
        if self._fd >= 0:
            self._close()
            self._disk.remove(self._part)

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1


class FileSource:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def read_into(self, offset: int, buffer: bytearray | memoryview) -> int:
        return read_at(self._fd, offset, buffer)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_store(where: str) -> Store:
    """What ``--checkpoint-dir`` names."""
    return DirectoryStore(Path(where))
