"""What `everstep run` prints: a live block on a terminal, plain lines elsewhere. Never the reason for a job to wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from everstep.agent.console import Console
from everstep.cli import view
from everstep.launch.client import Snapshot

PREFIX = "everstep: "


class PlainScreen:
    """Lines as they come, and one line for each change of state. stdout has what the job wrote, and only that."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = Console(out)
        self._err = Console(err)
        self._shown: tuple[int, str] | None = None
        self._failures = 0.0

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.close()
        self._err.close()

    def lines(self, lines: Sequence[str], error: bool) -> None:
        for line in lines:
            (self._err if error else self._out).show(line)

    def say(self, text: str) -> None:
        self._err.show(PREFIX + view.tidy(text))

    def status(self, snapshot: Snapshot | None) -> None:
        if snapshot is None:
            return
        new = [failure for failure in snapshot.failures if failure.time > self._failures]
        for failure in new:
            self._failures = failure.time
            self.say(f"failure: {failure.text}")
        if (snapshot.generation, snapshot.state) != self._shown:
            self._shown = snapshot.generation, snapshot.state
            self.say(f"generation {snapshot.generation} {snapshot.state} step {snapshot.step}")


class _Patient(RichConsole):
    """A rich console that does not end the process when its pipe is closed."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class LiveScreen:
    """One steady block at the bottom; lines go above it. Drawn when something comes, by no thread of its own."""

    def __init__(self, out: TextIO) -> None:
        self._console = _Patient(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._start = time.monotonic()
        self._last: Snapshot | None = None

    def __enter__(self) -> LiveScreen:
        with suppress(OSError):
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._live.stop()

    def lines(self, lines: Sequence[str], error: bool) -> None:
        with suppress(OSError):  # the terminal is gone; the job is not
            self._console.print(Text("\n").join(Text.from_ansi(line) for line in lines))

    def say(self, text: str) -> None:
        self.lines((PREFIX + view.tidy(text),), error=True)

    def status(self, snapshot: Snapshot | None) -> None:
        self._last = snapshot or self._last
        elapsed = time.monotonic() - self._start
        if self._last is None:
            shown = view.waiting(f"starting  {view.duration(elapsed)}")
        else:
            shown = view.block(self._last, self._console.width, self._console.height, elapsed)
        with suppress(OSError):
            self._live.update(shown, refresh=True)


def open_screen() -> PlainScreen | LiveScreen:
    return LiveScreen(sys.stdout) if sys.stdout.isatty() else PlainScreen(sys.stdout, sys.stderr)
