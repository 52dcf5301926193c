"""What this machine gives: interfaces, memory, processes, open files; and whether a job fits at all.

Imports no torch. What should be better on a machine that a job does run on is for `everstep doctor` to say.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from everstep.errors import ConfigError, ResourceError

WORKER_BYTES = 10**7
"""Of its own, a worker that has been forked and has done nothing yet."""
WORKER_FILES = 8
"""Of its agent: the pipe of its output, its connection, its pidfds, and what is mapped while they are opened."""
WORKER_THREADS = 2
"""The main thread and the control thread."""

_CGROUP = Path("/sys/fs/cgroup")
_THREADS_MAX = Path("/proc/sys/kernel/threads-max")


@dataclass(frozen=True, slots=True)
class Interface:
    """One of the network."""

    up: bool
    addresses: tuple[str, ...]
    """IPv4 and IPv6; only IPv6 of this link does not count."""

    @property
    def trouble(self) -> str:
        """Why nobody can listen there; empty if that is not so."""
        return "is down" if not self.up else "has no address" if not self.addresses else ""


def interfaces() -> dict[str, Interface]:
    stats = psutil.net_if_stats()
    families = (socket.AF_INET, socket.AF_INET6)
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        usable = [entry.address for entry in addresses if entry.family in families]
        up = name in stats and stats[name].isup
        found[name] = Interface(up, tuple(address for address in usable if not address.startswith("fe80:")))
    return found


def trouble_with(name: str, present: Mapping[str, Interface]) -> str:
    """Why the ranks cannot meet on this interface; empty if they can."""
    return present[name].trouble if name in present else "does not exist"


def check_interface(name: str, present: Mapping[str, Interface]) -> None:
    if trouble := trouble_with(name, present):
        good = ", ".join(other for other, state in present.items() if not state.trouble)
        raise ConfigError(f"--interface {name} {trouble}: this machine has {good or 'none that can be used'}")


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Of memory, what this machine, or this container, has left."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no such limit, or "max"
        limit = int((cgroup / "memory.max").read_text())
        free = min(free, limit - int((cgroup / "memory.current").read_text()))
    return max(0, free)


def threads_allowed() -> int:
    """To this user, or on this machine."""
    ours, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    everybody = int(_THREADS_MAX.read_text())
    return everybody if ours == resource.RLIM_INFINITY else min(ours, everybody)


def files_allowed() -> int:
    """To one process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 2**63


def check_room(workers: int) -> None:
    """Whether so many workers can be there at all, before their script has done anything."""
    for what, each, there in (
        ("bytes of memory", WORKER_BYTES, available_bytes()),
        ("open files (ulimit -n)", WORKER_FILES, files_allowed()),
        ("threads (ulimit -u)", WORKER_THREADS, threads_allowed()),
    ):
        if there < workers * each:
            raise ResourceError(
                f"{workers} workers need {workers * each} {what} before the script does anything, "
                f"there are {there} here: give --nproc and --standby that are {there // each} at most together"
            )
