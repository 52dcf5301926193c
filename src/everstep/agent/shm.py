"""Owns the agent's directory in /dev/shm: its files, its removal, and the removal of those whose owner died.

Not `multiprocessing.shared_memory`: its tracker unlinks what other processes still use.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from everstep.errors import BoardError, ConfigError, ResourceError
from everstep.types import NodeId

ROOT = Path("/dev/shm")
PREFIX = "everstep-"
_CLAIM_ATTEMPTS = 100


class SharedDirectory:
    """The shared memory of one agent, removed when it is closed.

    The owner holds a lock on the directory. The kernel drops it when the owner dies, however it dies, so an
    unlocked directory is stale. A recorded pid would lie after it is used again, and in a container that
    shares /dev/shm but not the pids of its neighbours.
    """

    def __init__(self, job: str, node: NodeId, root: Path = ROOT) -> None:
        self.path = root / f"{PREFIX}{quote(job, safe='')}-{quote(node, safe='')}"
        self._lock_fd = _claim(self.path)

    def allocate(self, name: str, size_bytes: int) -> Path:
        """Make a file of zeros whose memory is reserved, so that writing to it later cannot fail."""
        path = self.path / name
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _reserve(path, fd, size_bytes)
        except ResourceError:
            path.unlink()
            raise
        finally:
            os.close(fd)
        return path

    def reserve(self, name: str, size_bytes: int) -> Path:
        """Such a file of at least this size, made or enlarged; what is in it stays."""
        path = self.path / name
        if not path.exists():
            return self.allocate(name, size_bytes)
        with path.open("r+b") as file:
            _reserve(path, file.fileno(), max(size_bytes, os.fstat(file.fileno()).st_size))
        return path

    def remove(self, name: str) -> None:
        """Remove one file. Who has it mapped keeps it until the mapping is closed."""
        (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the directory and all that is in it. A second call does nothing."""
        if self._lock_fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> SharedDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _reserve(path: Path, fd: int, size_bytes: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        free_bytes = shutil.disk_usage(path.parent).free
        raise ResourceError(
            f"{path} needs {size_bytes} bytes, its file system has {free_bytes} free ({error.strerror}): "
            "enlarge it (mount -o remount,size=..., docker run --shm-size) or free some"
        ) from error


def remove_stale(path: Path) -> bool:
    """Remove the directory if no living process owns it; says whether it is gone."""
    lock_fd = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if lock_fd is None:
        return not path.exists()
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock_fd)
    return not path.exists()


def find_stale(root: Path = ROOT) -> list[Path]:
    """The directories of agents that no longer live. Those of other users cannot be told."""
    found = []
    for path in sorted(root.glob(f"{PREFIX}*")):
        if (lock_fd := _lock(path, fcntl.LOCK_SH | fcntl.LOCK_NB)) is not None:
            os.close(lock_fd)
            found.append(path)
    return found


def sweep_stale(root: Path = ROOT) -> list[Path]:
    """Remove the directories of agents that no longer live; returns them. Those of other users stay."""
    return [path for path in sorted(root.glob(f"{PREFIX}*")) if path.is_dir() and remove_stale(path)]


def map_file(path: Path, kind: str, size_bytes: int, magic: int, layout: int) -> mmap.mmap:
    """A file that begins with these two words, each of 8 bytes; a BoardError says what it is no ``kind`` for."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size != size_bytes:
            raise BoardError(f"{path} is no {kind}: it has {size} bytes, a {kind} has {size_bytes}")
        mapping = mmap.mmap(fd, size_bytes)
    finally:
        os.close(fd)
    found = struct.unpack_from("<QQ", mapping)
    if found != (magic, layout):
        mapping.close()
        raise BoardError(f"{path} is no {kind} of layout {layout} (magic {found[0]:#x}, layout {found[1]})")
    return mapping


def _claim(path: Path) -> int:
    for _ in range(_CLAIM_ATTEMPTS):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not remove_stale(path):
                raise ConfigError(
                    f"{path} belongs to a living agent of the same job and node, or to another user; "
                    "stop that agent, or give this one another node id"
                ) from None
            continue
        except OSError as error:
            raise ResourceError(f"cannot make the directory {path}: {error.strerror}") from error
        # Between mkdir and lock a sweeper may take it for stale. It holds the lock only while it removes,
        # so this wait is short, and then there is nothing left to own: make it again.
        if (lock_fd := _lock(path, fcntl.LOCK_EX)) is not None:
            return lock_fd
    raise ResourceError(f"{path} was removed by others as often as it was made")


def _lock(path: Path, operation: int) -> int | None:
    """Lock the directory that the path names now; None if it is gone or (LOCK_NB) somebody else's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(fd, operation)
        if os.path.samestat(os.fstat(fd), path.stat()):
            return fd
    os.close(fd)
    return None
