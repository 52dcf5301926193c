"""The output of one worker: raw to its file, line by line with its rank to whoever shows it.

The worker writes to a pipe. The agent reads whenever there is something, so the worker waits only if the
agent stands still for a whole pipe. Nothing is queued: memory is one unfinished line.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from everstep.types import Rank, WorkerId

# What an unprivileged process may ask for; it holds the output of a worker while the agent is busy.
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
LINE_BYTES = 1 << 14
"""A longer line is shown in pieces of this size. The file has it whole."""
TAIL_LINES = 100

# A terminal obeys control characters. Colours (ESC) are wanted; bells, shifts and cursor jumps are not.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\t\x1b"}


class WorkerLog:
    """Reads a worker's output from before its start until after its end. Made inside the event loop."""

    def __init__(
        self, worker: WorkerId, directory: Path, show: Callable[[str], None], rank: Rank | None = None
    ) -> None:
        self._worker = worker
        self._directory = directory
        self._show = show
        self._rank = rank
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        """What it wrote last, as it was shown: a traceback is in it if there was one."""
        self._line = b""
        self._loop = asyncio.get_running_loop()
        directory.mkdir(parents=True, exist_ok=True)
        self._file_fd: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        with suppress(PermissionError):  # the user has too many pipes: this one stays small
            fcntl.fcntl(self._write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._loop.add_reader(self._read_fd, self._read)

    @property
    def path(self) -> Path:
        place = "standby" if self._rank is None else f"r{self._rank}"
        return self._directory / f"w{self._worker}-{place}.log"

    @contextmanager
    def output(self) -> Iterator[int]:
        """What to give to the worker as stdout and stderr. Closed here afterwards, or the end never comes."""
        try:
            yield self._write_fd
        finally:
            self._close_output()

    def assign(self, rank: Rank) -> None:
        """A standby becomes this rank: its file and its next lines are named so."""
        before = self.path
        self._rank = rank
        before.rename(self.path)

    def finish(self) -> None:
        """After the worker's exit: take what it had written, show its last line, and close.

        This does not wait for the end of the pipe: a process that left the worker's group may hold it open
        for ever. All that the worker wrote is in the pipe by now.
        """
        for _ in range(_PIPE_BYTES // _READ_BYTES + 1):  # no longer than one full pipe, if somebody still writes
            if not self._read():
                break
        self._stop_reading()
        self._close_output()
        if self._line:
            self._show_line(self._line)
            self._line = b""
        if self._file_fd is not None:
            os.close(self._file_fd)
            self._file_fd = None

    def _read(self) -> bool:
        """Take one chunk; says whether there was one."""
        if self._read_fd < 0:  # the end of the pipe was seen before
            return False
        try:
            chunk = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._stop_reading()
            return False
        self._keep(chunk)
        *lines, self._line = (self._line + chunk).split(b"\n")
        for line in lines:
            self._show_line(line)
        if len(self._line) >= LINE_BYTES:
            self._show_line(self._line)
            self._line = b""
        return True

    def _keep(self, chunk: bytes) -> None:
        if self._file_fd is None:
            return
        try:
            while chunk:
                chunk = chunk[os.write(self._file_fd, chunk) :]
        except OSError as error:
            # A full disk must not end the training: the worker would fail in a print.
            os.close(self._file_fd)
            self._file_fd = None
            self._show(f"{self._prefix}(no longer written to {self.path}: {error.strerror})")

    def _show_line(self, line: bytes) -> None:
        # After a carriage return a terminal would show only what comes last, as progress bars mean it.
        last = line.rstrip(b"\r").rpartition(b"\r")[2]
        for start in range(0, len(last) or 1, LINE_BYTES):
            piece = last[start : start + LINE_BYTES].decode(errors="backslashreplace").translate(_CONTROLS)
            self.tail.append(piece)
            self._show(self._prefix + piece)

    @property
    def _prefix(self) -> str:
        return f"[standby {self._worker}] " if self._rank is None else f"[rank {self._rank}] "

    def _close_output(self) -> None:
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def _stop_reading(self) -> None:
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1
