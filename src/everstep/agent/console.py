"""Lines to a terminal or a pipe, by a thread: who does not read them holds up neither heartbeats nor verdicts."""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import suppress
from typing import TextIO

MAX_LINES = 10_000
"""What may wait. A line more is not shown; the files of the workers have it."""

_END_S = 1.0


class Console:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()

    def show(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Show what is left, if somebody reads it."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(_END_S)

    def _write(self) -> None:
        with suppress(OSError, ValueError):  # nobody is there any more
            while (line := self._lines.get()) is not None:
                if self._dropped:
                    line, self._dropped = f"{line}\n({self._dropped} lines are not shown: nobody read them in time)", 0
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            self._stream.flush()


class ConsoleHandler(logging.Handler):
    """The log, the same way."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.console = Console(stream)

    def emit(self, record: logging.LogRecord) -> None:
        self.console.show(self.format(record))

    def close(self) -> None:
        self.console.close()
        super().close()
