"""An agent that is killed leaves nothing behind, though nothing of it runs afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everstep.agent.shm import ROOT

if TYPE_CHECKING:
    from tests.agent.conftest import Until

# Starts three workers, one with a child of its own, writes all their pids, and waits for the zygote to die.
AGENT = """
import asyncio, os, sys
from pathlib import Path
from everstep.agent.board import BoardReader
from everstep.agent.shm import SharedDirectory
from everstep.agent.spawner import Spawner

async def main(job, folder, way):
    with SharedDirectory(job, "node") as directory:
        spawner = await Spawner.start(preload=(), fresh=way == "fresh", guarded=[directory.path])
        lines = [f"zygote {spawner.zygote_pid}\\n"]
        for worker in range(3):
            BoardReader.create(directory, worker)
            process = await spawner.spawn(
                worker, ["worker.py", str(worker)], env={}, cwd=folder, stdout=1, stderr=2
            )
            lines.append(f"worker {process.pid}\\n")
        os.write(1, "".join(lines).encode())
        await spawner.lost
        await spawner.close()

asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
"""
WORKER = """
import os, signal, sys
if sys.argv[1] == "1" and (child := os.fork()):
    os.write(1, b"child %d\\n" % child)
signal.pause()
"""


@dataclass(frozen=True)
class Family:
    agent: subprocess.Popen[str]
    zygote: int
    workers: list[int]
    pids: list[int]  # all but the agent's
    shared: Path


@pytest.fixture(params=["fork", "fresh"])
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Family]:
    (tmp_path / "worker.py").write_text(WORKER)
    job = f"test-{os.getpid()}-{request.param}"
    command = [sys.executable, "-c", AGENT, job, str(tmp_path), request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            lines = sorted(agent.stdout.readline().split() for _ in range(5))
            pids = [int(pid) for _, pid in lines]
            yield Family(agent, pids[-1], pids[1:-1], pids, ROOT / f"everstep-{job}-node")
        finally:
            agent.kill()


def test_a_killed_agent_leaves_no_process_and_no_shared_memory(
    family: Family, until: Until, running: Callable[[int], bool]
) -> None:
    assert all(map(running, family.pids))
    assert len(list(family.shared.iterdir())) == 3
    family.agent.kill()
    until(lambda: not any(map(running, family.pids)))
    until(lambda: not family.shared.exists())


def test_the_workers_of_a_killed_zygote_die_while_the_agent_stands_still(
    family: Family, until: Until, running: Callable[[int], bool]
) -> None:
    family.agent.send_signal(signal.SIGSTOP)
    os.kill(family.zygote, signal.SIGKILL)
    until(lambda: not any(map(running, family.workers)))
    family.agent.send_signal(signal.SIGCONT)
    assert family.agent.wait() == 0
    until(lambda: not any(map(running, family.pids)))
    assert not family.shared.exists()
