"""Two messages, a token, and an echo server on a loop and thread of its own, to be attacked by the tests."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from everstep.types import Generation, WorkerPhase
from everstep.wire.auth import Handshake, Side, Token
from everstep.wire.blocking import BlockingChannel
from everstep.wire.channel import Channel
from everstep.wire.codec import Codec
from everstep.wire.framing import FrameDecoder, encode_frame
from everstep.wire.server import Server, serve
from everstep.wire.terms import Address, Terms

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    number: Generation
    phase: WorkerPhase = WorkerPhase.IDLE
    blob: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    number: Generation


@dataclass(frozen=True, slots=True)
class Crash:
    """Makes the handler of the echo server fail."""


ASK: Codec[Ask | Crash] = Codec(Ask | Crash)
ANSWER: Codec[Answer | Ask] = Codec(Answer | Ask)
TOKEN = Token("a token for the tests")

ClientTerms = Terms[Ask | Crash, Answer | Ask]
ServerTerms = Terms[Answer | Ask, Ask | Crash]
CLIENT: ClientTerms = Terms(sends=ASK, receives=ANSWER, token=TOKEN)
SERVER: ServerTerms = Terms(sends=ANSWER, receives=ASK, token=TOKEN)


async def answer(channel: Channel[Answer | Ask, Ask | Crash]) -> None:
    async for message in channel:
        assert isinstance(message, Ask), "a bug in the handler"
        channel.send(Answer(message.number))


class Echo:
    """A server that answers every Ask, on a loop of its own."""

    def __init__(self, address: Address, terms: ServerTerms, max_strangers: int = 512) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server: Server[Answer | Ask, Ask | Crash] = self.run(
            serve(address, terms, answer, max_strangers=max_strangers)
        )
        self.address = self.server.address

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def channel(self, terms: ClientTerms = CLIENT) -> BlockingChannel[Ask | Crash, Answer | Ask]:
        return BlockingChannel.connect(self.address, terms)

    def stranger(self) -> socket.socket:
        """A bare connection, before any handshake."""
        if isinstance(self.address, Path):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(self.address))
        else:
            sock = socket.create_connection(self.address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(10)
        return sock

    def friend(self) -> socket.socket:
        """A bare connection that has proved the token."""
        sock = self.stranger()
        handshake = Handshake(Side.CLIENT, TOKEN)
        reply = handshake.opening()
        while reply is not None:
            sock.sendall(encode_frame(reply))
            reply = handshake.receive(read_payload(sock))
        assert handshake.done
        return sock

    def settle(self) -> None:
        """Returns when the server has finished what it was at, so that its log is complete."""
        self.run(asyncio.sleep(0))

    def close(self) -> None:
        try:
            self.run(self.server.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def read_payload(sock: socket.socket) -> bytes:
    """Byte by byte, so that nothing behind the frame is taken."""
    decoder = FrameDecoder()
    while (payload := decoder.take()) is None:
        data = sock.recv(1)
        assert data, "the stream ended"
        decoder.feed(data)
    return payload


def drain(sock: socket.socket) -> bytes:
    """Everything until the other end closes."""
    parts = []
    try:
        while data := sock.recv(65536):
            parts.append(data)
    except ConnectionResetError:
        pass  # it closed with bytes of ours unread
    return b"".join(parts)


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    return tmp_path / "socket" if request.param == "unix" else ("127.0.0.1", 0)


@pytest.fixture
def echo(address: Address) -> Iterator[Echo]:
    server = Echo(address, SERVER)
    yield server
    server.close()


@pytest.fixture
def hasty_echo(address: Address) -> Iterator[Echo]:
    """Gives a stranger no time, and takes one of them at once."""
    server = Echo(address, replace(SERVER, handshake_s=0.2), max_strangers=1)
    yield server
    server.close()
