"""One worker process as the agent sees it: kill it, know when it has ended, and how. No child of ours."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from everstep.types import WorkerId

_REPORT_S = 1.0  # for the zygote to say how a process ended that has


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: by a code or by a signal. Neither is known if its zygote died with it."""

    code: int | None = None
    signal: int | None = None

    @property
    def ok(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        if self.signal is not None:
            try:
                return f"killed by {signal.Signals(self.signal).name}"
            except ValueError:
                return f"killed by signal {self.signal}"
        if self.code is not None:
            return f"exited with code {self.code}"
        return "ended, nobody saw how"

    @classmethod
    def from_returncode(cls, returncode: int) -> ExitStatus:
        """From the convention of `subprocess`: a signal is negative."""
        return cls(code=returncode) if returncode >= 0 else cls(signal=-returncode)


class WorkerProcess:
    """A running worker. The zygote, its parent, reports how it ends; the pidfd tells when no report comes."""

    def __init__(self, worker: WorkerId, pid: int, pidfd: int) -> None:
        self.worker = worker
        self.pid = pid
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._status: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._overdue: asyncio.TimerHandle | None = None
        self._reporter_lives = True
        self._loop.add_reader(pidfd, self._on_death)

    @property
    def status(self) -> ExitStatus | None:
        """None while it runs."""
        return self._status.result() if self._status.done() else None

    async def wait(self) -> ExitStatus:
        return await asyncio.shield(self._status)

    def on_exit(self, callback: Callable[[ExitStatus], None]) -> None:
        """Call this once, from the event loop, when the process has ended."""
        self._status.add_done_callback(lambda status: callback(status.result()))

    def kill(self) -> None:
        """SIGKILL. Its process group follows when it is reaped; a child that made its own group does not."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> bool:
        """Send it to this very process; says whether it was there to receive it."""
        if self._status.done():
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        return True

    def ended(self, status: ExitStatus) -> None:
        """For the spawner: this is how it ended. Only the first time counts."""
        if self._status.done():
            return
        if self._overdue is not None:
            self._overdue.cancel()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._status.set_result(status)

    def orphaned(self) -> None:
        """For the spawner: its zygote has died, which kills the process but not the children it made."""
        self._reporter_lives = False
        if self._status.done():
            return
        # Nobody of ours holds the pid, but a group with members cannot be given to others.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._overdue is not None:
            self.ended(ExitStatus())

    def _on_death(self) -> None:
        self._loop.remove_reader(self._pidfd)
        delay_s = _REPORT_S if self._reporter_lives else 0
        self._overdue = self._loop.call_later(delay_s, self.ended, ExitStatus())
