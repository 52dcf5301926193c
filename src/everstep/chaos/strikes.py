"""How often a fault of the job may still strike. Written down before each strike, so that nobody repeats it after."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from everstep.chaos.spec import Fault


class Strikes:
    """Counts over all processes of the job that share ``record``; without one, over this process alone."""

    def __init__(self, times: int, record: Path | None = None) -> None:
        self._times = times
        self._record = record
        self._count = 0

    def claim(self) -> bool:
        """Take one of the strikes that are left."""
        while self._count < self._times:
            self._count += 1
            if self._record is None or _create(Path(f"{self._record}-{self._count}")):
                return True
        return False


def of_job(faults: Iterable[Fault], run_dir: Path | None) -> list[tuple[Fault, Strikes]]:
    """The faults that a job began with, each with what is left of it."""
    if run_dir is None:
        return [(fault, Strikes(fault.times)) for fault in faults]
    return [(fault, Strikes(fault.times, run_dir / "chaos" / str(index))) for index, fault in enumerate(faults)]


def _create(path: Path) -> bool:
    """Only one process can."""
    path.parent.mkdir(parents=True, exist_ok=True)  # a run directory that is not shared is made by whoever writes first
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True
