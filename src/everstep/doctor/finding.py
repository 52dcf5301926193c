"""What a check says, and the settings that it measures a machine by."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from everstep.controller.cadence import Every

_AUTO = Every(auto=True)


class Level(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"  # the job runs, but slower, or with less protection, or with worse reports
    FAILURE = "failure"  # the job would not start, or not survive what it should


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    name: str
    level: Level
    found: str
    """What is there."""
    breaks: str = ""
    """What would go wrong because of it; empty if all is well."""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the job that is to run here."""

    nproc: int
    """Ranks on this machine."""
    standby: int = 1
    nodes: int = 1
    cuda: int = 0
    """CUDA devices of this machine."""
    cores: int = 1
    state_bytes: int | None = None
    """Parameters, buffers and optimizer state, each piece once."""
    every: Every = _AUTO
    """When checkpoints are taken. Only a job that was told to take some cannot be without."""
    interface: str | None = None
    run_dir: Path = Path("runs")

    @property
    def workers(self) -> int:
        return self.nproc + self.standby

    @property
    def ranks(self) -> int:
        return self.nproc * self.nodes


def ok(name: str, found: str) -> Finding:
    return Finding(name, Level.OK, found)


def warning(name: str, found: str, *, breaks: str, fix: str) -> Finding:
    return Finding(name, Level.WARNING, found, breaks, fix)


def failure(name: str, found: str, *, breaks: str, fix: str) -> Finding:
    return Finding(name, Level.FAILURE, found, breaks, fix)
