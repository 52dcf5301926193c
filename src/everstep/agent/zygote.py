"""The zygote: a process with everything imported and nothing running, which forks workers in milliseconds.

It owns one socketpair to its agent and a pidfd for each child: no threads, no event loop, no listening
socket, no signal handler, because a fork would inherit them. It lives as long as its agent; then it ends the
workers with their process groups and removes the agent's shared memory, since a killed agent cannot.

`python -m everstep.agent.zygote --control FD --agent PIDFD [--preload a,b] [--guard DIR]…`
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from everstep.agent import child
from everstep.agent.messages import CLOSE, SPAWN, Exited, Ready, Refused, Report, Spawned, Task
from everstep.agent.shm import remove_stale

# A scheduler's SIGTERM to all must not take the workers from an agent that wants to end them in order.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GO_S = 5.0  # for killed processes to go; one in uninterruptible sleep is left to the kernel
_PACKET_BYTES = 64


@dataclass(frozen=True, slots=True)
class _Child:
    worker: int
    pid: int
    pidfd: int


class Zygote:
    """Serves one agent until it closes the connection or dies."""

    def __init__(
        self,
        control: socket.socket,
        agent_fd: int,
        guarded: Sequence[Path],
        signals: Mapping[int, child.Handler],
    ) -> None:
        self._control = control
        self._signals = signals  # as a new interpreter has them
        self._agent_fd = agent_fd  # a pidfd: readable when the agent is dead
        self._guarded = guarded
        self._children: dict[int, _Child] = {}  # by pidfd
        self._poll = select.poll()  # unlike epoll it is no file descriptor that a fork shares
        self._poll.register(control, select.POLLIN)
        self._poll.register(agent_fd, select.POLLIN)

    def serve(self) -> Task | None:
        """Returns in each forked child with its task, and at the end in the zygote with None."""
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._children:
                    self._reap(fd)
                    continue
                packet, fds = (b"", []) if fd == self._agent_fd else self._receive()
                if packet != SPAWN:
                    self._end(in_order=packet == CLOSE)
                    return None
                if (task := self._spawn(fds)) is not None:
                    return task

    def report(self, report: Report, fds: Sequence[int] = ()) -> None:
        # Without an agent there is nobody to tell; its death is noticed by the poll.
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [msgspec.msgpack.encode(report)], fds)

    def _receive(self) -> tuple[bytes, list[int]]:
        try:
            packet, fds, _, _ = socket.recv_fds(self._control, _PACKET_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # the agent died with reports unread
            return b"", []
        return packet, fds

    def _spawn(self, fds: Sequence[int]) -> Task | None:
        task_fd, stdout, stderr = fds
        task = Task.from_memory_file(task_fd)
        zygote_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.report(Refused(task.worker, f"fork: {error.strerror}"))
            pid = -1
        if pid == 0:
            self._control.detach()  # its number is soon another file, which the object must not close
            child.enter(task, stdout, stderr, zygote_pid, self._signals)
            return task
        for fd in fds:
            os.close(fd)
        if pid > 0:
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = _Child(task.worker, pid, pidfd)
            self._poll.register(pidfd, select.POLLIN)
            self.report(Spawned(task.worker, pid), [pidfd])
        return None

    def _reap(self, pidfd: int) -> None:
        dead = self._children.pop(pidfd)
        _kill_group(dead.pid)  # before the wait: until then its pid, and so its group, cannot be another's
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        assert ended is not None  # it is only None with WNOHANG
        self._poll.unregister(pidfd)
        os.close(pidfd)
        by_exit = ended.si_code == os.CLD_EXITED
        self.report(Exited(dead.worker, ended.si_status if by_exit else None, None if by_exit else ended.si_status))

    def _end(self, in_order: bool) -> None:
        self._poll.unregister(self._control)
        self._poll.unregister(self._agent_fd)
        for worker in self._children.values():
            # By pidfd too: one that was forked just now has not made its group yet.
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
            _kill_group(worker.pid)
        deadline = time.monotonic() + _GO_S
        while self._children and (left_s := deadline - time.monotonic()) > 0:
            for pidfd, _ in self._poll.poll(left_s * 1000):
                self._reap(pidfd)
        if in_order:
            return
        # The connection closes a moment before the agent's locks do. One that lives on keeps its directories.
        self._poll.register(self._agent_fd, select.POLLIN)
        self._poll.poll(_GO_S * 1000)
        for directory in self._guarded:
            remove_stale(directory)


def main() -> None:
    options = _options()
    signals: dict[int, child.Handler] = {number: signal.getsignal(number) for number in signal.valid_signals()}
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    zygote = Zygote(socket.socket(fileno=options.control), options.agent, options.guard, signals)
    failure = _preload(options.preload)
    zygote.report(Ready(_threads(), failure))
    if failure is None and (task := zygote.serve()) is not None:
        child.run(task)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="everstep.agent.zygote", description=__doc__)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--agent", type=int, required=True)
    parser.add_argument("--preload", type=lambda names: [name for name in names.split(",") if name], default=[])
    parser.add_argument("--guard", type=Path, action="append", default=[])
    return parser.parse_args()


def _preload(modules: Sequence[str]) -> str | None:
    """Import what the workers will need; says why if that fails."""
    # `-m` put the working directory first, where a script would not look for its modules.
    if not sys.flags.safe_path:
        del sys.path[0]
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception:  # noqa: BLE001  (whatever a module raises while it is imported: the agent is told)
        return traceback.format_exc()
    sys.stdout.flush()  # or each fork would print it again
    # The collector would touch, and so copy, every page that the forks share.
    gc.collect()
    gc.freeze()
    gc.disable()
    return None


def _threads() -> list[str]:
    """The names of the threads that would be missing in a fork, and of this one."""
    # Pools that know of forks (OpenBLAS) end their threads before one. So fork once, and see who stays.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
