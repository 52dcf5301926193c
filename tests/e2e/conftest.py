"""Whole jobs: `everstep run` with real controllers, agents and workers, looked at from outside like a user does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from everstep.chaos.blackouts import family
from everstep.controller.job import RunDir
from everstep.errors import EverstepError
from everstep.launch.client import Client

SCRIPTS = Path(__file__).parent / "scripts"
DEADLINE_S = 60.0
"""Against hangs only: nothing here is about time."""

T = TypeVar("T")


def eventually(ask: Callable[[], T | None], what: str) -> T:
    """Ask until the answer is not None and not False."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        answer = ask()
        if answer is not None and answer is not False:
            return answer
        time.sleep(0.02)  # the pace of asking; what is waited for is the answer
    raise AssertionError(f"not within {DEADLINE_S:.0f} s: {what}")


class Run:
    """One `everstep run`, and what is left of it."""

    def __init__(self, root: Path, *args: str) -> None:
        self.dir = root / "run"
        self.output = root / "output.txt"
        command = [sys.executable, "-m", "everstep.cli", "run", "--run-dir", str(self.dir), *args]
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> int:
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end:\n{self.text()}") from None

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def status(self) -> dict[str, Any] | None:
        """What `everstep status --json` prints; None while the controller cannot be reached."""

        async def ask() -> dict[str, Any] | None:
            try:
                async with Client(RunDir.open(self.dir)) as client:
                    snapshot = await client.ask()
            except (OSError, EverstepError):
                return None
            return dict(json.loads(snapshot.raw))

        return asyncio.run(ask())

    def when(self, ready: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        def ask() -> dict[str, Any] | None:
            if self.process.poll() is not None:
                raise AssertionError(f"the job ended with {self.process.returncode} before {what}:\n{self.text()}")
            status = self.status()
            return status if status and ready(status) else None

        return eventually(ask, f"{what}; last output:\n{self.text()[-2000:]}")

    def training(self, steps: int = 1) -> dict[str, Any]:
        """Every rank has a process that has done so many steps."""
        return self.when(
            lambda status: bool(status["workers"]) and all(w["version"] >= steps for w in status["workers"]),
            f"every rank has done {steps} steps",
        )

    def controller_pid(self) -> int:
        return int(json.loads((self.dir / "controller.json").read_text())["pid"])

    def family(self) -> list[psutil.Process]:
        """Every live process of this run."""
        return family(self.dir)

    def leaves_nothing(self) -> None:
        eventually(lambda: not self.family(), f"no process is left, but {self.family()}")
        eventually(lambda: not self.shm(), f"nothing is left in /dev/shm, but {self.shm()}")

    def shm(self) -> list[str]:
        """Shared memory is named after the job."""
        name = json.loads((self.dir / "job.json").read_text())["name"]
        return [path.name for path in Path("/dev/shm").iterdir() if name in path.name]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start a run; whatever the test leaves of it is killed, by id."""
    runs: list[Run] = []

    def go(*args: str) -> Run:
        runs.append(Run(tmp_path, *args))
        return runs[-1]

    yield go
    for run in runs:
        for process in run.family():
            with suppress(psutil.NoSuchProcess):  # those of one family take each other along
                process.kill()
        run.process.kill()
        run.process.wait()


@pytest.fixture(scope="session")
def cleans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs without failures are kept, for all processes of this test session."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cleans"
