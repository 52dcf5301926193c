"""Real processes for the tests of the agent's system layer, and a deadline for whatever they wait for."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

import psutil
import pytest

from everstep.agent.process import ExitStatus, WorkerProcess
from everstep.agent.spawner import Spawner
from everstep.types import WorkerId

T = TypeVar("T")
DEADLINE_S = 20.0
# An interpreter reads these at its start only, so a zygote and what it is compared with must agree on them.
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}


class Until(Protocol):
    def __call__(self, condition: Callable[[], T]) -> T: ...


class Run(Protocol):
    def __call__(self, work: Awaitable[T]) -> T: ...


@dataclass(frozen=True)
class Outcome:
    status: ExitStatus
    stdout: str
    stderr: str


class Stage:
    """A spawner with the event loop that it needs, shared by the tests of a module."""

    env = ENV

    def __init__(self, loop: asyncio.AbstractEventLoop, spawner: Spawner) -> None:
        self.loop = loop
        self.spawner = spawner
        self._ids = count()

    def next_id(self) -> WorkerId:
        return WorkerId(next(self._ids))

    async def spawn(
        self, folder: Path, *argv: str, env: dict[str, str] | None = None
    ) -> tuple[WorkerProcess, Path, Path]:
        """Start `python argv…` in the folder with these variables more, its output in two files."""
        worker = self.next_id()
        stdout, stderr = folder / f"{worker}.out", folder / f"{worker}.err"
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = await self.spawner.spawn(
                worker,
                argv,
                env=ENV | (env or {}),
                cwd=folder,
                stdout=out.fileno(),
                stderr=err.fileno(),
            )
        return process, stdout, stderr

    def run(self, folder: Path, *argv: str, env: dict[str, str] | None = None) -> Outcome:
        """Run it to its end."""

        async def run() -> Outcome:
            process, stdout, stderr = await self.spawn(folder, *argv, env=env)
            async with asyncio.timeout(DEADLINE_S):
                status = await process.wait()
            return Outcome(status, text(stdout), text(stderr))

        return self.loop.run_until_complete(run())


def text(path: Path) -> str:
    """Read and remove the file, so that a listing of its folder does not show it."""
    content = path.read_bytes().decode(errors="backslashreplace")
    path.unlink()
    return content


@pytest.fixture(scope="session")
def until() -> Until:
    def until(condition: Callable[[], T]) -> T:
        deadline = time.monotonic() + DEADLINE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s in vain"
            time.sleep(0.002)
        return value

    return until


@pytest.fixture(scope="session")
def running() -> Callable[[int], bool]:
    """Whether the process runs. A zombie has ended: who must reap it is not always ours."""

    def running(pid: int) -> bool:
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    return running


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.fixture
def run(loop: asyncio.AbstractEventLoop) -> Run:
    def run(work: Awaitable[T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(DEADLINE_S):
                return await work

        return loop.run_until_complete(bounded())

    return run


@pytest.fixture(scope="module", params=["fork", "fresh"])
def stage(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> Iterator[Stage]:
    """The two ways to start a worker, for tests of what holds for both."""
    fresh = request.param == "fresh"
    spawner = loop.run_until_complete(
        Spawner.start(preload=("numpy.random", "multiprocessing"), fresh=fresh, env=ENV | {"OF_THE_ZYGOTE": "1"})
    )
    yield Stage(loop, spawner)
    loop.run_until_complete(spawner.close())
