"""Disks that go wrong: one whose process is killed in the middle of a call, one that refuses, one that loses power."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from everstep.checkpoint.disk import Disk


class CrashingDisk(Disk):
    """Before call number ``at``, counted from 0, this process is killed; in the middle of it, if it writes."""

    def __init__(self, at: int) -> None:
        self._left = at

    def _count(self, halfway: Callable[[], object] = lambda: None) -> None:
        if self._left == 0:
            halfway()
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def create(self, path: Path) -> int:
        self._count()
        return super().create(path)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        self._count(lambda: os.pwrite(fd, data[: len(data) // 2], offset))
        return super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._count()
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def make_directory(self, path: Path) -> None:
        self._count()
        super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._count()
        super().sync_directory(path)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        self._count(lambda: next(path.iterdir()).unlink())
        super().remove_tree(path)


class FailingDisk(Disk):
    """Takes so many bytes more; then it is full, or what else the error says. Names cost nothing."""

    def __init__(self, room_bytes: int, error: int) -> None:
        self._room_bytes = room_bytes
        self._error = error

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        if not self._room_bytes:
            raise OSError(self._error, os.strerror(self._error))
        self._room_bytes -= (done := super().write(fd, data[: self._room_bytes], offset))
        return done


class _File:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""


class _Folder:
    def __init__(self) -> None:
        self.names: dict[str, _File | _Folder] = {}
        self.durable: dict[str, _File | _Folder] = {}


class PowerDisk(Disk):
    """Does everything for real, and knows what of it would be there after a loss of power.

    Bytes that were not synced are lost. Names that were not synced are there or not, for each folder by itself.
    """

    def __init__(self, root: Path, begin: Callable[[], object]) -> None:
        """``begin`` is called before each change."""
        self._root = root
        self._begin = begin
        self._top = _Folder()
        self._open: dict[int, _File] = {}

    def outcomes(self, where: Path) -> Iterator[Path]:
        """What may be found after a loss of power now, each in a directory of its own."""
        folders = sorted(self._folders(self._top, Path()), key=lambda pair: pair[0])
        unsure = [folder for _, folder in folders if folder.names != folder.durable]
        for number, kept in enumerate(itertools.product((True, False), repeat=len(unsure))):
            lost = {id(folder) for folder, keep in zip(unsure, kept, strict=True) if not keep}
            self._put(self._top, where / str(number), lost)
            yield where / str(number)

    def _folders(self, folder: _Folder, path: Path) -> Iterator[tuple[Path, _Folder]]:
        """Also those that only a loss of power would bring back."""
        yield path, folder
        known: set[int] = set()
        for name, each in (*folder.names.items(), *folder.durable.items()):
            if isinstance(each, _Folder) and id(each) not in known:
                known.add(id(each))
                yield from self._folders(each, path / name)

    def _put(self, folder: _Folder, where: Path, lost: set[int]) -> None:
        where.mkdir()
        for name, each in (folder.durable if id(folder) in lost else folder.names).items():
            if isinstance(each, _Folder):
                self._put(each, where / name, lost)
            else:
                (where / name).write_bytes(each.durable)

    def _folder(self, path: Path) -> _Folder:
        folder = self._top
        for name in path.relative_to(self._root).parts:
            inner = folder.names[name]
            assert isinstance(inner, _Folder)
            folder = inner
        return folder

    def create(self, path: Path) -> int:
        self._begin()
        fd = super().create(path)
        self._folder(path.parent).names[path.name] = self._open[fd] = _File()
        return fd

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        self._begin()
        done = super().write(fd, data, offset)
        file = self._open[fd].data
        file.extend(bytes(max(0, offset + done - len(file))))
        file[offset : offset + done] = data[:done]
        return done

    def sync(self, fd: int) -> None:
        self._begin()
        super().sync(fd)
        self._open[fd].durable = bytes(self._open[fd].data)

    def rename(self, old: Path, new: Path) -> None:
        self._begin()
        super().rename(old, new)
        self._folder(new.parent).names[new.name] = self._folder(old.parent).names.pop(old.name)

    def make_directory(self, path: Path) -> None:
        self._begin()
        super().make_directory(path)
        if path != self._root:
            self._folder(path.parent).names.setdefault(path.name, _Folder())

    def sync_directory(self, path: Path) -> None:
        self._begin()
        super().sync_directory(path)
        if path.is_relative_to(self._root):
            folder = self._folder(path)
            folder.durable = dict(folder.names)

    def remove(self, path: Path) -> None:
        self._begin()
        super().remove(path)
        self._folder(path.parent).names.pop(path.name, None)

    def remove_tree(self, path: Path) -> None:
        self._begin()
        super().remove_tree(path)
        self._folder(path.parent).names.pop(path.name)
