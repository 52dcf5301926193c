"""Small stand-ins for the parts that a launcher starts, and a launcher that starts them. Run as a script."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from everstep.cli.run import start
from everstep.controller.job import Address, Job, RunDir
from everstep.core.config import JobConfig
from everstep.launch import local
from everstep.types import NodeId
from everstep.wire.auth import Token
from everstep.wire.channel import Channel
from everstep.wire.codec import Codec
from everstep.wire.messages import Ask, Done, Inject, Interrupt, Status
from everstep.wire.server import serve
from everstep.wire.terms import Terms

STATUS = {"generation": 1, "state": "RUNNING", "workers": [], "standbys": [], "failures": [], "job": "job"}
Link = Channel[Status | Done, Ask | Inject | Interrupt]


def note(run: Path, name: str) -> None:
    """A test counts and kills those that have written their pid."""
    with (run / name).open("a") as file:
        file.write(f"{os.getpid()}\n")


async def controller(path: Path, mode: str) -> int:
    """Ends with the result that is in the file `finish`, or as it is told to by a client."""
    if mode == "broken":
        sys.stderr.write("a bug in the controller\n")
        return 1
    if mode == "taken":
        sys.stderr.write("everstep: the port is taken\n")
        return 2
    over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(link: Link) -> None:
        async for message in link:
            if isinstance(message, Ask):
                link.send(Status(json.dumps(STATUS)))
            elif mode != "deaf":
                link.send(Done())
                over.set_result('{"code": 130, "reason": "interrupted"}')

    async def wait_for_file() -> None:
        while not (path / "finish").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        over.set_result((path / "finish").read_text())

    run = RunDir(path)
    terms = Terms(
        Codec[Status | Done](Status | Done), Codec[Ask | Inject | Interrupt](Ask | Inject | Interrupt), run.read_token()
    )
    async with await serve(("127.0.0.1", 0), terms, answer) as server:
        assert isinstance(server.address, tuple)
        run.publish(Address(*server.address, os.getpid()))
        note(path, "controllers")
        waiting = asyncio.create_task(wait_for_file())
        result = await over
        waiting.cancel()
        (path / "result.part").write_text(result)
        (path / "result.part").rename(path / "result.json")
    return int(json.loads(result)["code"])


def agent(path: Path, mode: str) -> int:
    """Has a worker that tries to outlive it, and goes when the run is over."""
    if mode == "no room":
        sys.stderr.write("everstep agent: no room in /dev/shm\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    worker = subprocess.Popen([sys.executable, "-c", WORKER], start_new_session=True)
    (path / "workers").open("a").write(f"{worker.pid}\n")
    sys.stdout.write(f"[rank 0] hello from {sys.argv[4]}\n")
    sys.stderr.write("[agent] a warning\n")
    note(path, "agents")
    try:
        while not (path / "result.json").exists():
            time.sleep(0.01)
    finally:
        worker.kill()
    return 0


WORKER = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


def launch(path: Path, mode: str, nodes: str) -> int:
    this = (sys.executable, __file__)
    local.controller_command = lambda run: (*this, "controller", str(run.path), mode)
    local.agent_command = lambda address, node, devices, run_dir=None: (*this, "agent", str(path), mode, node)
    job = Job("job", ("train.py",), str(path), {}, JobConfig(ranks=1), 1)
    return start(job, path, Token.create(), {NodeId(name): "1" for name in nodes.split(",")})


if __name__ == "__main__":
    [_, part, where, *rest] = sys.argv
    if part == "controller":
        sys.exit(asyncio.run(controller(Path(where), rest[0])))
    sys.exit(agent(Path(where), rest[0]) if part == "agent" else launch(Path(where), rest[0], rest[1]))
