"""Real worker processes, and an agent that is only a server: it hears them, orders them, reads their boards."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from everstep.agent.board import BoardReader, BoardSample
from everstep.agent.environment import BOARD, CHAOS, NODE, RING, RUN_DIR, SOCKET, WORKER
from everstep.agent.ring import RingReader
from everstep.agent.shm import SharedDirectory
from everstep.core.effects import Assign, Role
from everstep.core.events import Registered
from everstep.types import Generation, NodeId, Rank, WorkerId
from everstep.wire.auth import TOKEN_VARIABLE, Token
from everstep.wire.channel import Channel
from everstep.wire.codec import Codec
from everstep.wire.messages import AskStack, FromWorkerSide, Order, Report, Stack, ToWorkerSide, WorkerHello
from everstep.wire.server import serve
from everstep.wire.terms import Terms

T = TypeVar("T")
M = TypeVar("M")
DEADLINE_S = 20.0
TOKEN = Token("a token for the tests")
TERMS: Terms[ToWorkerSide, FromWorkerSide] = Terms(Codec(ToWorkerSide), Codec(FromWorkerSide), TOKEN)
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}

Line = Channel[ToWorkerSide, FromWorkerSide]


def until(condition: Callable[[], T | None]) -> T:
    """The first true value of the condition, which is about another process and so can only be asked again."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s in vain"
        time.sleep(0.002)
    return value


@dataclass(eq=False)
class Worker:
    """One process, and what it has said."""

    id: WorkerId
    process: subprocess.Popen[str]
    reader: BoardReader
    ring: RingReader
    heard: list[FromWorkerSide] = field(default_factory=list)
    line: Line | None = None

    @property
    def board(self) -> BoardSample:
        return self.reader.read()

    def hears(self, kind: type[M]) -> M:
        """The first message of this kind, as soon as it is there."""
        return until(lambda: [message for message in self.heard if isinstance(message, kind)])[0]

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        stdout, stderr = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, stdout, stderr


class StandIn:
    """Acts as the agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: dict[WorkerId, Worker] = {}
        self._shared = SharedDirectory("test", NodeId("here"), root=folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._call(serve(folder / "socket", TERMS, self._hear))

    def start(self, script: str, *, chaos: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Worker:
        """Start a worker; it stays in `init` until it is assigned."""
        worker_id = WorkerId(len(self.workers))
        reader = BoardReader.create(self._shared, worker_id)
        ring = RingReader.create(self._shared, worker_id)
        process = run_script(self.folder, script, self.environment(reader, ring, chaos) | (env or {}))
        worker = self.workers[worker_id] = Worker(worker_id, process, reader, ring)
        return worker

    def environment(self, reader: BoardReader, ring: RingReader, chaos: tuple[str, ...] = ()) -> dict[str, str]:
        """What an agent gives to a worker."""
        return ENV | {
            SOCKET: str(self.folder / "socket"),
            WORKER: str(reader.read().worker),
            BOARD: str(reader.path),
            RING: str(ring.path),
            NODE: "here",
            RUN_DIR: str(self.folder),
            CHAOS: "\n".join(chaos),
            TOKEN_VARIABLE: TOKEN.text,
        }

    def assign(self, worker: Worker, rank: int = 0, generation: int = 1, *, size: int = 2, **env: str) -> None:
        """Give a rank to a worker that waits for one. A script with torch needs ``size=1``: nobody else is there."""
        assert worker.hears(Report).event == Registered(worker.id)
        command = Assign(Rank(rank), size, Generation(generation), Role.FOUNDER, "cpu:0")
        self.send(worker, Order(command, {"RANK": str(rank), "LOCAL_RANK": str(rank)} | env))

    def run(self, script: str, *, rank: int = 0, chaos: tuple[str, ...] = ()) -> Worker:
        """Start and assign."""
        worker = self.start(script, chaos=chaos)
        self.assign(worker, rank)
        return worker

    def send(self, worker: Worker, message: ToWorkerSide) -> None:
        line = until(lambda: worker.line)
        self._loop.call_soon_threadsafe(line.send, message)

    def sees(self, worker: Worker, words: str) -> None:
        """Returns when these words are in its stacks."""

        def seen() -> bool:
            self.send(worker, AskStack())
            return any(isinstance(message, Stack) and words in message.text for message in worker.heard)

        until(seen)

    def hang_up(self) -> None:
        """As if it had died."""
        self._call(self._server.close())

    def close(self) -> None:
        for worker in self.workers.values():
            worker.process.kill()
            worker.process.communicate()
            worker.reader.close()
            worker.ring.close()
        self._call(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._shared.close()

    async def _hear(self, line: Line) -> None:
        hello = await line.recv()
        assert isinstance(hello, WorkerHello)
        worker = self.workers[hello.worker]
        worker.heard.append(hello)
        worker.line = line
        async for message in line:
            worker.heard.append(message)

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)


def run_script(folder: Path, script: str, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start `python train.py` with exactly this environment."""
    (folder / "train.py").write_text(textwrap.dedent(script))
    return subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=folder,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[StandIn]:
    stand_in = StandIn(tmp_path)
    yield stand_in
    stand_in.close()
