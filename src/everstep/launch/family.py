"""The processes below this one: started, heard, reaped, and none left behind. Knows nothing of jobs.

This process is the reaper of all its descendants: what an agent leaves when it is killed comes here, not to init,
so it can be found and ended whatever it calls itself.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO

import psutil

KILL_S = 5.0
"""A process that is still there so long after SIGKILL waits for the kernel, and nobody can help it."""

LINE_BYTES = 1 << 16
"""A longer line is shown in pieces."""

_LOOK_S = 0.01
_EOF_S = 0.2
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before the fork, so that nothing is loaded after it

Show = Callable[[Sequence[str], bool], None]
"""Takes lines, and whether they were written to stderr."""


class Child:
    """One process that this one has started."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self.last_line = ""
        """What it wrote to stderr last: the reason, if it failed."""
        self._popen = popen
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._outputs: list[asyncio.Future[None]] = []
        self._born_s = loop.time()

    @property
    def running(self) -> bool:
        return not self._ended.done()

    @property
    def age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._born_s

    async def wait(self) -> int:
        """Its exit code, or a signal as a negative number, when all that it wrote has been shown."""
        code = await asyncio.shield(self._ended)
        # A grandchild may hold the pipe open for ever.
        await asyncio.wait(self._outputs, timeout=_EOF_S)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)

    async def relay(self, show: Show) -> None:
        """Show what it writes, from now on."""
        for stream, error in ((self._popen.stdout, False), (self._popen.stderr, True)):
            assert stream is not None
            self._outputs.append(await _relay(stream, partial(self._take, show, error)))

    def ended(self, code: int) -> None:
        """For the family: this is how it ended."""
        self._popen.returncode = code  # it must not wait for the process itself: nobody else may have that pid
        self._ended.set_result(code)

    def _take(self, show: Show, error: bool, lines: Sequence[str]) -> None:
        if error:
            self.last_line = next((line for line in reversed(lines) if line.strip()), self.last_line)
        show(lines, error)


class Family:
    """Made inside the event loop, once in a process: it takes every exit status that comes to this process."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._children: dict[int, Child] = {}
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    async def start(self, argv: Sequence[str], env: Mapping[str, str], orphaned: signal.Signals) -> Child:
        """Start a process that gets the signal ``orphaned`` when this one dies, however it dies."""
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, orphaned, 0, 0, 0)
            if os.getppid() != parent:  # it died before the call, so no signal will come
                os._exit(1)

        popen = subprocess.Popen(  # noqa: ASYNC220  it returns after the exec
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for this process alone
            preexec_fn=die_with_parent,
        )
        child = self._children[popen.pid] = Child(popen)
        await child.relay(self._show)
        return child

    async def end(self) -> list[int]:
        """SIGKILL to everybody below, until nobody is left; returns those whom the kernel keeps."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KILL_S
        while (rest := psutil.Process().children(recursive=True)) and loop.time() < deadline:
            for process in rest:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    process.kill()
            self._reap()
            await asyncio.sleep(_LOOK_S)  # those of others come here only when their parents are gone
        loop.remove_signal_handler(signal.SIGCHLD)
        return [process.pid for process in rest]

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if child := self._children.pop(pid, None):
                child.ended(os.waitstatus_to_exitcode(status))


async def _relay(stream: IO[bytes], show: Callable[[list[str]], None]) -> asyncio.Future[None]:
    """Done at the end of the stream."""
    loop = asyncio.get_running_loop()
    lines = _Lines(show, loop.create_future())
    await loop.connect_read_pipe(lambda: lines, stream)
    return lines.ended


class _Lines(asyncio.Protocol):
    """Cuts a stream into lines. All that one read brought is shown at once."""

    def __init__(self, show: Callable[[list[str]], None], ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self._show = show
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        if lines:
            self._show([line.decode(errors="backslashreplace") for line in lines])

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self.data_received(b"\n")
        if not self.ended.done():
            self.ended.set_result(None)
