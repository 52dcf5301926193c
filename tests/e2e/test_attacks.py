"""Whoever throws bytes at a socket of a running job ends his own connection, for a reason that is told, and no more."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.e2e.conftest import SCRIPTS, Run, eventually
from tests.wire.conftest import drain, read_payload

from everstep.agent.shm import ROOT
from everstep.core.events import Exited
from everstep.types import WorkerId
from everstep.wire.auth import Handshake, Side, Token
from everstep.wire.codec import Codec
from everstep.wire.framing import encode_frame
from everstep.wire.messages import FromWorkerSide, Interrupt, Leaving, Notice, ToController, WorkerHello

Start = Callable[..., Run]
AGENT: Codec[ToController] = Codec(ToController)
WORKER: Codec[FromWorkerSide] = Codec(FromWorkerSide)

attack = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
"""All examples meet one job: what one of them did to it would be seen after the next."""


@pytest.fixture
def job(start: Start) -> Iterator[Run]:
    """Attacked by the test, and after it the same as before."""
    run = start("--nproc", "2", "--no-zygote", str(SCRIPTS / "steps.py"), "10000", "0.02")
    before = run.training()
    eventually((run.dir / "web.json").exists, "the live page is there")
    yield run
    after = run.training(steps=max(worker["version"] for worker in run.training()["workers"]) + 5)
    assert [worker["pid"] for worker in after["workers"]] == [worker["pid"] for worker in before["workers"]]
    assert (after["generation"], after["failures"]) == (before["generation"], [])
    assert "Traceback" not in run.text()


def address(run: Run, door: str) -> tuple[str, int] | str:
    if door == "agent":
        name = json.loads((run.dir / "job.json").read_text())["name"]
        return str(ROOT / f"everstep-{name}-local-0" / "socket")
    found = json.loads((run.dir / {"controller": "controller.json", "page": "web.json"}[door]).read_text())
    return found["host"], found["port"]


def knock(where: tuple[str, int] | str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
    sock.settimeout(10)
    sock.connect(where)
    return sock


def throw(where: tuple[str, int] | str, words: bytes, token: Token | None = None) -> bytes:
    """Say this, after the handshake if there is a token; the answer."""
    with closing(knock(where)) as sock:
        if token is not None:
            shake_hands(sock, token)
        sock.sendall(words)
        sock.shutdown(socket.SHUT_WR)
        return drain(sock)


def shake_hands(sock: socket.socket, token: Token) -> bytes:
    """What was said for it."""
    said = b""
    handshake = Handshake(Side.CLIENT, token)
    reply = handshake.opening()
    while reply is not None:
        said += encode_frame(reply)
        sock.sendall(encode_frame(reply))
        reply = handshake.receive(read_payload(sock))
    return said


GARBAGE = st.binary(max_size=200) | st.binary(min_size=1, max_size=200).map(encode_frame)


@attack
@given(garbage=GARBAGE, door=st.sampled_from(["controller", "agent", "page"]))
def test_bytes_of_strangers_change_nothing(job: Run, garbage: bytes, door: str) -> None:
    throw(address(job, door), garbage)


@attack
@given(garbage=GARBAGE, door=st.sampled_from(["controller", "agent"]))
def test_bytes_of_who_knows_the_token_change_nothing(job: Run, garbage: bytes, door: str) -> None:
    throw(address(job, door), garbage, Token.read(job.dir / "token"))


def test_what_was_recorded_is_not_heard_again(job: Run) -> None:
    """Who has listened to all that ended one job, or one worker, cannot say it once more."""
    token = Token.read(job.dir / "token")
    for door, order in (
        ("controller", AGENT.encode(Interrupt())),
        ("agent", WORKER.encode(WorkerHello(WorkerId(0), 1))),
    ):
        with closing(knock(address(job, door))) as sock:
            recorded = shake_hands(sock, token)
        assert b"wrong token" in throw(address(job, door), recorded + encode_frame(order))
    eventually(lambda: job.text().count("the client has a wrong token") == 2, "both are told")


def test_a_message_at_the_wrong_place_ends_its_connection_with_the_reason(job: Run) -> None:
    token = Token.read(job.dir / "token")
    lie = Notice(Exited(WorkerId(0), -9, "a lie"))
    own = Path("/proc/self").resolve().name
    for door, words, reason in (
        ("controller", AGENT.encode(lie), "Notice before a hello"),
        ("controller", AGENT.encode(Leaving()), "Leaving before a hello"),
        ("agent", WORKER.encode(WorkerHello(WorkerId(7), int(own))), "worker 7 does not run here"),
        ("agent", WORKER.encode(WorkerHello(WorkerId(0), int(own))), f"pid {own} is not worker 0"),
    ):
        assert throw(address(job, door), encode_frame(words), token) == b""
        eventually(lambda reason=reason: reason in job.text(), reason)  # type: ignore[misc]
