"""`recoveries.jsonl`: the records of a run on disk, line n for record n, across any number of controllers.

A restarted controller takes its journal through the recorder again. It makes the same records, and those that are in
the file already are not written twice; one that the former controller did not come to write is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from everstep.core.effects import Effect
from everstep.core.events import Event
from everstep.core.machine import Machine
from everstep.observe.recorder import Recorder
from everstep.observe.records import Recovery, encode

log = logging.getLogger(__name__)


class RecoveryLog:
    """The end of the file, and the recorder that feeds it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._recorder = Recorder()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_APPEND, 0o600)
        self._lines = self._cut_off_torn_line()
        self._unwritten = b""

    @property
    def count(self) -> int:
        """Recoveries of the run so far."""
        return self._recorder.count

    @property
    def last(self) -> Recovery | None:
        return self._recorder.last

    def take(self, event: Event, machine: Machine, effects: Sequence[Effect], time_s: float) -> Recovery | None:
        """As `Recorder.take`; a record is on its way to the disk when this gives it back. None if it was there."""
        recovery = self._recorder.take(event, machine, effects, time_s)
        if recovery is None or recovery.number < self._lines:
            return None
        self._lines += 1
        self._write(encode(recovery))
        return recovery

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, line: bytes) -> None:
        """The job goes on without its records: what cannot be written now is tried again with the next one."""
        self._unwritten += line
        try:
            done = os.write(self._fd, self._unwritten)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)
        else:
            self._unwritten = self._unwritten[done:]

    def _cut_off_torn_line(self) -> int:
        """A kill in the middle of a write leaves one. The number of whole lines."""
        data = self._path.read_bytes()
        os.ftruncate(self._fd, data.rfind(b"\n") + 1)
        return data.count(b"\n")
