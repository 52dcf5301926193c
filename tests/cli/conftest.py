"""The command as a user calls it, without a process, and a controller that answers it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from click.testing import CliRunner, Result

from everstep.cli import main
from everstep.controller.job import Address, Job, RunDir
from everstep.core.config import JobConfig
from everstep.wire.auth import Token
from everstep.wire.channel import Channel
from everstep.wire.codec import Codec
from everstep.wire.messages import Ask, Done, Inject, Interrupt, Status
from everstep.wire.server import serve
from everstep.wire.terms import Terms

STATUS: dict[str, Any] = {
    "job": "train-1a2b3c",
    "state": "RUNNING",
    "generation": 3,
    "target": 40,
    "reason": "",
    "workers": [
        {
            "rank": rank,
            "worker": 7 + rank,
            "pid": 4000 + rank,
            "node": f"local-{rank % 2}",
            "step": 41,
            "phase": "FORWARD" if rank else "READY",
            "version": 41,
            "age_s": 0.25,
            "device": f"cpu:{rank}",
        }
        for rank in range(4)
    ],
    "standbys": [{"worker": 12, "pid": 4012, "node": "local-1", "phase": "STANDBY"}],
    "failures": [
        {"time": 1750000000.0, "text": "rank 2 (worker 5 on local-0) exited: killed by SIGKILL"},
        {"time": 1750000009.5, "text": "rank 1 hangs\nin \x1b[2Jtrain.py:7"},
    ],
    "nodes": [],
}


@pytest.fixture
def status() -> dict[str, Any]:
    return STATUS


class Everstep(Protocol):
    def __call__(self, *arguments: str) -> Result: ...


@pytest.fixture
def everstep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Everstep:
    """Called in an empty directory but for one script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "train.py").touch()
    return lambda *arguments: CliRunner().invoke(main, arguments)


class Controller:
    """Answers with `STATUS`, and keeps what it was told to inject."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.injected: list[str] = []
        self.refusal = ""
        self.mute = False
        self.after_first_answer: Callable[[], None] = lambda: None
        self._listening = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._listening.wait(10)

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        sends: Codec[Status | Done] = Codec(Status | Done)
        receives: Codec[Ask | Inject | Interrupt] = Codec(Ask | Inject | Interrupt)
        async with await serve(("127.0.0.1", 0), Terms(sends, receives, self.run.read_token()), self._answer) as server:
            assert isinstance(server.address, tuple)
            self.run.publish(Address(*server.address, 1))
            self._listening.set()
            await self._over.wait()

    async def _answer(self, link: Channel[Status | Done, Ask | Inject | Interrupt]) -> None:
        async for message in link:
            if self.mute:
                continue
            if isinstance(message, Ask):
                link.send(Status(json.dumps(STATUS)))
                self.after_first_answer()
            elif isinstance(message, Inject):
                self.injected.append(message.spec)
                link.send(Done(self.refusal))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory in which nothing runs."""
    run = RunDir(tmp_path / "runs" / "20260130-101500-train")
    run.create(Job("train-1a2b3c", ("train.py",), str(tmp_path), {}, JobConfig(ranks=4), 4), Token.create())
    return run


@pytest.fixture
def controller(run: RunDir) -> Iterator[Controller]:
    controller = Controller(run)
    yield controller
    controller.stop()
