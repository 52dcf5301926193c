"""`controller.py RUN_DIR MODE`: ends with the result that is in the file `finish`, or as a client tells it to."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from everstep.controller.job import Address, RunDir
from everstep.wire.channel import Channel
from everstep.wire.codec import Codec
from everstep.wire.messages import Ask, Done, Interrupt, Status
from everstep.wire.server import serve
from everstep.wire.terms import Terms

STATUS = {"generation": 1, "state": "RUNNING", "workers": [], "standbys": [], "failures": [], "job": "job"}
SENDS: Codec[Status | Done] = Codec(Status | Done)
RECEIVES: Codec[Ask | Interrupt] = Codec(Ask | Interrupt)


async def main(path: Path, mode: str) -> int:
    if mode == "broken":
        sys.stderr.write("a bug in the controller\n")
        return 1
    if mode == "taken":
        sys.stderr.write("everstep: the port is taken\n")
        return 2
    over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(link: Channel[Status | Done, Ask | Interrupt]) -> None:
        async for message in link:
            if isinstance(message, Ask):
                link.send(Status(json.dumps(STATUS)))
            elif mode != "deaf":
                link.send(Done())
                over.set_result('{"code": 130, "reason": "interrupted"}')

    run = RunDir(path)
    async with await serve(("127.0.0.1", 0), Terms(SENDS, RECEIVES, run.read_token()), answer) as server:
        assert isinstance(server.address, tuple)
        run.publish(Address(*server.address, os.getpid()))
        with (path / "controllers").open("a") as file:
            file.write(f"{os.getpid()}\n")
        while not over.done() and not (path / "finish").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        result = over.result() if over.done() else (path / "finish").read_text()
        (path / "result.part").write_text(result)
        (path / "result.part").rename(path / "result.json")
    return int(json.loads(result)["code"])


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:])))
