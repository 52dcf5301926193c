"""A real job on this machine, for a benchmark to watch, to harm and to end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from everstep.controller.job import RunDir
from everstep.controller.journal import Record, read
from everstep.errors import EverstepError
from everstep.launch.client import Client, Snapshot
from everstep.observe.records import Recovery, read_recoveries
from everstep.wire.messages import Inject, Interrupt

WAIT_S = 120.0
LIMITS = ("--max-failures", "100000", "--max-failures-per-step", "100000", "--checkpoint-every", "off")
"""What is measured here is without checkpoints."""
T = TypeVar("T")


class Job:
    """One `everstep run`; its output and its run directory are in ``root``."""

    def __init__(self, root: Path, ranks: int, program: Sequence[str], *options: str) -> None:
        self.dir = root / "run"
        self.ranks = ranks
        self.output = root / "output"
        command = [sys.executable, "-m", "everstep.cli", "run", "--nproc", str(ranks), *LIMITS, *options]
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--run-dir", str(self.dir), *program], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def status(self) -> Snapshot | None:
        async def ask() -> Snapshot | None:
            try:
                async with Client(RunDir.open(self.dir)) as client:
                    return await client.ask()
            except (OSError, EverstepError):
                return None

        return asyncio.run(ask())

    def tell(self, message: Inject | Interrupt) -> None:
        async def tell() -> None:
            async with Client(RunDir.open(self.dir)) as client:
                await client.tell(message)

        asyncio.run(tell())

    def training(self, standby: bool, version: int = 6) -> Snapshot:
        """Every rank has done some steps, and a standby waits if there should be one."""

        def ready() -> Snapshot | None:
            now = self.status()
            if self.process.poll() is not None:
                raise RuntimeError(f"the job has ended:\n{self.output.read_text(errors='replace')[-4000:]}")
            if now is None or len(now.workers) != self.ranks:
                return None
            if any(row.version < version or not row.pid for row in now.workers):
                return None
            return now if not standby or any(row.pid for row in now.standbys) else None

        return wait_for(ready)

    def records(self) -> list[Record]:
        return list(read(self.dir / "journal"))

    def recoveries(self) -> list[Recovery]:
        return read_recoveries(self.dir / "recoveries.jsonl")

    def close(self) -> None:
        self.process.terminate()  # SIGINT is ignored by who was started in the background
        self.process.wait(60)


@contextmanager
def job(ranks: int, program: Sequence[str], *options: str) -> Iterator[Job]:
    with tempfile.TemporaryDirectory() as root:
        running = Job(Path(root), ranks, program, *options)
        try:
            yield running
        finally:
            running.close()


def wait_for(ask: Callable[[], T | None], pause_s: float = 0.005) -> T:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if (answer := ask()) is not None:
            return answer
        time.sleep(pause_s)
    raise TimeoutError(f"not within {WAIT_S} s")
