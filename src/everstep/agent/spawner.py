"""The agent's side of the zygote: starts it, asks it for workers, and hears how they end."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.agent.messages import (
    CLOSE,
    REPORT_BYTES,
    SPAWN,
    Exited,
    Ready,
    Refused,
    Spawned,
    Task,
    decode_report,
)
from everstep.agent.process import ExitStatus, WorkerProcess
from everstep.errors import SpawnError
from everstep.types import WorkerId

_START_S = 120.0  # imports from a cold network file system
_SPAWN_S = 30.0
_CLOSE_S = 10.0


class Spawner:
    """Starts workers: as forks of a warm interpreter, or (`fresh`) as new interpreters, one by one.

    Both ways give a worker its own session, exactly the given environment, no file but its standard streams,
    and death with the zygote, which dies with this process. The zygote also removes the `guarded` shared
    directories if this process is killed.
    """

    def __init__(self, popen: subprocess.Popen[bytes], control: socket.socket, fresh: bool) -> None:
        self.lost: asyncio.Future[SpawnError] = asyncio.get_running_loop().create_future()
        """Done when the zygote has died unasked. Its workers die with it, each with its own exit."""
        self.threads: tuple[str, ...] = ()
        """The zygote's threads. More than one and its forks may hang: the preload started them."""
        self._fresh = fresh
        self._popen = popen
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._asked: dict[int, asyncio.Future[WorkerProcess]] = {}
        self._workers: dict[int, WorkerProcess] = {}
        self._one_at_a_time = asyncio.Lock()  # so that the zygote's queue can never be full
        self._closing = False
        self._zygote_fd = os.pidfd_open(popen.pid)
        self._loop.add_reader(control, self._take_report)
        self._loop.add_reader(self._zygote_fd, self._on_death)

    @property
    def zygote_pid(self) -> int:
        return self._popen.pid

    @classmethod
    async def start(
        cls,
        *,
        preload: Sequence[str] = (),
        fresh: bool = False,
        guarded: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
    ) -> Spawner:
        """Start the zygote and wait until it has imported `preload`. `env` is what it reads at its start."""
        spawner = cls(*_launch_zygote(() if fresh else preload, guarded, env), fresh)
        try:
            async with asyncio.timeout(_START_S):
                await spawner._ready
        except TimeoutError:
            await spawner.close()
            raise SpawnError(f"the zygote did not import {', '.join(preload)} in {_START_S:.0f} s") from None
        except BaseException:
            await spawner.close()
            raise
        return spawner

    async def spawn(
        self,
        worker: WorkerId,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdout: int,
        stderr: int,
    ) -> WorkerProcess:
        """Start `python argv…` with these file descriptors and nothing of our environment but `env`."""
        assert argv, "an interpreter without a script"
        assert worker not in self._asked, "the id of an incarnation is never used again"
        assert worker not in self._workers, "the id of an incarnation is never used again"
        task = Task.of(worker, argv, env, cwd, self._fresh)
        async with self._one_at_a_time:
            if self._gone.done():
                raise SpawnError("the zygote has ended; no worker can be started")
            answer = self._asked[worker] = self._loop.create_future()
            task_fd = task.to_memory_file()
            try:
                socket.send_fds(self._control, [SPAWN], [task_fd, stdout, stderr])
            except BrokenPipeError:
                pass  # its death, and so the answer, is under way
            finally:
                os.close(task_fd)
            try:
                async with asyncio.timeout(_SPAWN_S):
                    process: WorkerProcess = await answer
                    return process
            except TimeoutError:
                raise SpawnError(f"the zygote did not start worker {worker} in {_SPAWN_S:.0f} s") from None

    async def close(self) -> None:
        """Kill all workers and end the zygote. Their exits have been told when this returns."""
        self._closing = True
        if not self._ready.done() or self._ready.cancelled():
            self._popen.kill()  # it still imports, for seconds or minutes: nobody listens, and there are no workers
        if not self._gone.done():
            try:
                self._control.send(CLOSE)
                async with asyncio.timeout(_CLOSE_S):
                    await asyncio.shield(self._gone)
            except (BrokenPipeError, BlockingIOError, TimeoutError):
                self._popen.kill()
                await self._gone
        self._control.close()

    def _take_report(self) -> bool:
        """Take one report, if there is one. The loop calls this again while there are more."""
        try:
            packet, fds, _, _ = socket.recv_fds(self._control, REPORT_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            packet, fds = b"", []
        if not packet:
            self._loop.remove_reader(self._control)
            return False
        match decode_report(packet):
            case Ready(threads, None):
                self.threads = tuple(threads)
                if not self._ready.done():  # who waited has given up
                    self._ready.set_result(None)
            case Ready(_, failure):
                _fail(self._ready, SpawnError(f"the zygote could not import what was asked for:\n{failure}"))
            case Spawned(worker, pid):
                self._welcome(WorkerProcess(WorkerId(worker), pid, fds[0]))
            case Refused(worker, reason):
                _fail(self._asked.pop(worker), SpawnError(f"worker {worker} could not be started: {reason}"))
            case Exited(worker, code, signal):
                self._workers.pop(worker).ended(ExitStatus(code, signal))
        return True

    def _welcome(self, process: WorkerProcess) -> None:
        self._workers[process.worker] = process
        answer = self._asked.pop(process.worker)
        if answer.done():  # who asked has given up
            process.kill()
        else:
            answer.set_result(process)

    def _on_death(self) -> None:
        self._loop.remove_reader(self._zygote_fd)
        os.close(self._zygote_fd)
        while self._take_report():
            pass
        self._loop.remove_reader(self._control)
        status = ExitStatus.from_returncode(self._popen.wait())
        error = SpawnError(f"the zygote has ended ({status}); the workers that it started die with it")
        _fail(self._ready, error)
        for answer in self._asked.values():
            _fail(answer, error)
        for process in self._workers.values():
            process.orphaned()
        self._gone.set_result(status)
        if not self._closing:
            self.lost.set_result(error)


def _launch_zygote(
    preload: Sequence[str], guarded: Sequence[Path], env: Mapping[str, str] | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    agent_fd = os.pidfd_open(os.getpid())
    with theirs, os.fdopen(agent_fd):
        popen = subprocess.Popen(
            [
                *(sys.executable, "-m", "everstep.agent.zygote"),
                *("--control", str(theirs.fileno())),
                *("--agent", str(agent_fd)),
                *("--preload", ",".join(preload)),
                *(f"--guard={path}" for path in guarded),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # no terminal: the forks must buffer as for a pipe
            pass_fds=[theirs.fileno(), agent_fd],
            start_new_session=True,  # Ctrl-C is for the agent
            env=env,
        )
    return popen, ours


def _fail(future: asyncio.Future[Any], error: SpawnError) -> None:
    if not future.done():
        future.set_exception(error)
