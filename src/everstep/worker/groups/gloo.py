"""Gloo: cut by shutting down its connected sockets, which nothing else of it does.

`abort()` leaves a collective in flight waiting for its timeout. A shutdown of the connected sockets ends every wait
at once, of a frozen peer too, but for a few that Gloo itself loses track of (see `work.outlast`). The listening socket
is never touched: Gloo's own thread would throw, and end us.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from everstep.errors import ConfigError
from everstep.worker.groups.rendezvous import CONNECT_S, MeetingStore
from everstep.worker.groups.seam import Plan

_COLLECTIVES, _CONNECTIONS = "pt_gloo_", "gloo_"
"""How the names begin of the threads that carry out collectives, and of those that read and write."""
_ASLEEP = "S (sleeping)"
INTERFACE = "GLOO_SOCKET_IFNAME"
"""As torch calls the variable. It reads it only for the groups that it makes by itself."""

_SOURCE = re.compile(r"\[[^][]*\.(?:cc|h):\d+\] ")
_ADVICE = re.compile(r"\. This is typically caused by .*", re.DOTALL)


class GlooSeam:
    """For tensors in the memory of the processor."""

    device_types: tuple[torch.device, ...] = (torch.device("cpu"),)

    def make(self, plan: Plan, store: MeetingStore) -> dist.ProcessGroup:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [_device()]
        options._timeout = timedelta(seconds=CONNECT_S)
        backend = dist.ProcessGroupGloo(store, plan.rank, plan.size, options)
        backend._set_default_timeout(timedelta(seconds=plan.timeout_s))
        group = dist.ProcessGroup(store, plan.rank, plan.size)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        for device in GlooSeam.device_types:
            group._register_backend(device, dist.ProcessGroup.BackendType.GLOO, backend)
        return group

    def cut(self, rows: Sequence[bytes]) -> int:
        """A socket is a group's if one of its ends is an address that a member published."""
        count = 0
        for connection in _connections():
            with connection:
                if any(end in row for end in _ends(connection) for row in rows):
                    with suppress(OSError):  # the peer was faster
                        connection.shutdown(socket.SHUT_RDWR)
                    count += 1
        return count

    def quiet(self) -> bool:
        """All of Gloo's threads sleep, and those of collectives have done so from one look to the next.

        With the connections cut, a thread that reads and writes finds all that it ever will at once. When it sleeps it
        is through with that, so nobody is left who could wake one that carries out a collective.
        """
        before = _sleepers()
        return before is not None and before == _sleepers()

    def drain(self) -> None:
        """A processor has no queue."""

    def brief(self, error: str) -> str:
        """Without the line of Gloo's own source, and the advice that says nothing of this job."""
        return _ADVICE.sub("", _SOURCE.sub("", error))


def _sleepers() -> dict[str, str] | None:
    """The threads of collectives, and how often each gave the processor away. None if one of Gloo's does not sleep."""
    switches = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            status = Path(f"/proc/self/task/{thread}/status").read_text(errors="replace")
        except OSError:  # it has ended
            continue
        facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if facts["Name"].startswith((_COLLECTIVES, _CONNECTIONS)) and facts["State"] != _ASLEEP:
            return None
        if facts["Name"].startswith(_COLLECTIVES):
            switches[thread] = facts["voluntary_ctxt_switches"] + facts["nonvoluntary_ctxt_switches"]
    return switches


def _device() -> dist.ProcessGroupGloo.Device:
    """Where it listens: on the interface that the environment names, else at the address of the host's name."""
    name = os.environ.get(INTERFACE)
    if not name:
        return dist.ProcessGroupGloo.create_default_device()
    try:
        return dist.ProcessGroupGloo.create_device(interface=name)
    except RuntimeError as error:
        others = ", ".join(other for _, other in socket.if_nameindex())
        why = "does not exist, is down or has no address"
        raise ConfigError(f"interface {name} ({INTERFACE}) {why}: this machine has {others}") from error


def _connections() -> Iterator[socket.socket]:
    """A copy of every connected TCP socket of this process: a number may be given away while it is looked at."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
            if copy.family in (socket.AF_INET, socket.AF_INET6) and not _listens(copy):
                yield copy
            else:
                copy.close()


def _listens(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _ends(connection: socket.socket) -> Iterator[bytes]:
    """Both addresses as they stand in a `sockaddr`: Gloo publishes the one that it listens on."""
    for ask in (connection.getsockname, connection.getpeername):
        with suppress(OSError):
            host, port, *_ = ask()
            yield _sockaddr(connection.family, host, port)


def _sockaddr(family: int, host: str, port: int) -> bytes:
    head = struct.pack("=H", family) + struct.pack("!H", port)
    if family == socket.AF_INET:
        return head + socket.inet_aton(host)
    return head + bytes(4) + socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
