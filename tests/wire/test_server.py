"""Whatever a stranger or a partner sends, only its own connection ends, and the log has the reason."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.wire.conftest import (
    ASK,
    CLIENT,
    SERVER,
    TOKEN,
    Answer,
    Ask,
    Crash,
    Echo,
    answer,
    drain,
    read_payload,
)

from everstep.errors import AuthError, ConfigError
from everstep.types import Generation
from everstep.wire.auth import Handshake, Side, Token
from everstep.wire.framing import HEADER, MAX_STRANGER_FRAME_BYTES, encode_frame
from everstep.wire.server import serve

# One server for all examples of a test is the point: an example must not harm the next.
attack = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def bystander(echo: Echo, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A partner whose connection is open during the attack and works after it."""
    caplog.set_level(logging.WARNING)
    with echo.channel() as channel:
        yield
        channel.send(Ask(Generation(1)))
        assert channel.recv(10) == Answer(Generation(1))
    with echo.channel() as newcomer:
        newcomer.send(Ask(Generation(2)))
        assert newcomer.recv(10) == Answer(Generation(2))


def ended_with(sock: socket.socket) -> bytes:
    with sock:
        sock.shutdown(socket.SHUT_WR)
        return drain(sock)


@attack
@given(garbage=st.binary(max_size=200) | st.binary(min_size=1, max_size=200).map(encode_frame))
@pytest.mark.usefixtures("bystander")
def test_arbitrary_bytes_of_a_stranger_harm_nobody(echo: Echo, garbage: bytes) -> None:
    sock = echo.stranger()
    sock.sendall(garbage)
    ended_with(sock)


@attack
@given(garbage=st.binary(max_size=200) | st.binary(min_size=1, max_size=200).map(encode_frame))
@pytest.mark.usefixtures("bystander")
def test_arbitrary_bytes_of_a_partner_harm_nobody(echo: Echo, garbage: bytes) -> None:
    sock = echo.friend()
    sock.sendall(garbage)
    ended_with(sock)


@attack
@given(cuts=st.lists(st.integers(1, 120), max_size=6))
def test_a_conversation_is_the_same_however_it_is_cut(echo: Echo, cuts: list[int]) -> None:
    asks = b"".join(encode_frame(ASK.encode(Ask(Generation(n)))) for n in range(3))
    with echo.friend() as sock:
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(asks)], strict=True):
            sock.sendall(asks[start:end])
        answers = [msgspec.msgpack.decode(read_payload(sock)) for _ in range(3)]
    assert answers == [["Answer", {"number": n}] for n in range(3)]


@pytest.mark.usefixtures("bystander")
def test_a_replayed_handshake_is_refused(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    said = []
    with echo.stranger() as sock:
        handshake = Handshake(Side.CLIENT, TOKEN)
        reply = handshake.opening()
        while reply is not None:
            said.append(encode_frame(reply))
            sock.sendall(said[-1])
            reply = handshake.receive(read_payload(sock))
    with echo.stranger() as sock:
        sock.sendall(b"".join(said) + encode_frame(ASK.encode(Ask(Generation(1)))))
        words = drain(sock)
    assert b"Answer" not in words
    echo.settle()
    assert "the client has a wrong token" in caplog.text


def hello(version: int = 1) -> bytes:
    return encode_frame(Handshake(Side.CLIENT, TOKEN, version).opening() or b"")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (b"", "the handshake was not completed: end of stream"),
        (hello(), "the handshake was not completed: end of stream"),
        (hello()[:-1], "truncated frame: the stream ends"),
        (hello(version=2), "the client speaks protocol version 2, the server 1"),
        (b"GET / HTTP/1.1\r\n\r\n", "oversized frame: 1195725856 bytes"),
        (HEADER.pack(MAX_STRANGER_FRAME_BYTES + 1), "oversized frame: 4097 bytes, the limit is 4096"),
        (HEADER.pack(0), "empty frame"),
        (encode_frame(b"\xc1"), "malformed message"),
        (encode_frame(ASK.encode(Ask(Generation(1)))), "unknown message 'Ask'"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",  # the words differ: a nonce is among them
)
@pytest.mark.usefixtures("bystander")
def test_a_stranger_is_refused_for_the_reason_in_the_log(
    echo: Echo, caplog: pytest.LogCaptureFixture, words: bytes, reason: str
) -> None:
    sock = echo.stranger()
    sock.sendall(words)
    ended_with(sock)
    echo.settle()
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (encode_frame(ASK.encode(Ask(Generation(1))))[:-1], "truncated frame: the stream ends"),
        (HEADER.pack(SERVER.max_frame_bytes + 1), "oversized frame: 4194305 bytes"),
        (encode_frame(b"\x92\xa4Quit\x80"), "unknown message 'Quit'"),
        (encode_frame(b"\x92\xa3Ask\x80"), "bad Ask: Object missing required field `number`"),
        (encode_frame(b"\x92\xa3Ask\x81\xa6number\xa11"), "bad Ask: Expected `int`, got `str`"),
        (encode_frame(ASK.encode(Crash())), "AssertionError: a bug in the handler"),
    ],
)
@pytest.mark.usefixtures("bystander")
def test_a_partner_that_breaks_a_rule_is_closed_for_the_reason_in_the_log(
    echo: Echo, caplog: pytest.LogCaptureFixture, words: bytes, reason: str
) -> None:
    sock = echo.friend()
    sock.sendall(words)
    assert ended_with(sock) == b""
    echo.settle()
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("token", "reason"),
    [(Token("a token of another job"), "the client has a wrong token"), (None, "the client has no token")],
)
@pytest.mark.usefixtures("bystander")
def test_a_client_learns_why_it_is_refused(
    echo: Echo, caplog: pytest.LogCaptureFixture, token: Token | None, reason: str
) -> None:
    with pytest.raises(AuthError, match=f"refused by the server: '{reason}"):
        echo.channel(replace(CLIENT, token=token))
    echo.settle()
    assert reason in caplog.text


def test_a_stranger_that_dawdles_is_closed(hasty_echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    with hasty_echo.stranger() as sock:
        sock.sendall(hello()[:10])
        drain(sock)
    hasty_echo.settle()
    assert "no complete handshake within 0.2 s" in caplog.text


def test_only_so_many_strangers_are_heard_at_once(hasty_echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    with hasty_echo.stranger() as first, hasty_echo.stranger() as second:
        first.sendall(hello())
        read_payload(first)
        assert drain(second) == b""
        drain(first)
    assert "1 other connections are still in the handshake" in caplog.text
    with hasty_echo.channel() as channel:
        channel.send(Ask(Generation(1)))
        assert channel.recv(10) == Answer(Generation(1))


def test_a_unix_socket_is_private_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    server = Echo(path, SERVER)
    assert path.stat().st_mode & 0o777 == 0o600
    server.close()
    assert os.listdir(tmp_path) == []


def test_the_socket_file_of_a_killed_server_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = Echo(path, SERVER)
    server.channel().close()
    server.close()


def test_an_address_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    async def listen(where: Path | tuple[str, int]) -> None:
        await serve(where, SERVER, answer)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            asyncio.run(listen(("127.0.0.1", port)))
    with pytest.raises(ConfigError, match=r"cannot listen on .*: AF_UNIX path too long"):
        asyncio.run(listen(tmp_path / ("x" * 120)))


def test_no_server_listens_to_the_network_without_a_token() -> None:
    with pytest.raises(ConfigError, match="needs a token"):
        asyncio.run(serve(("0.0.0.0", 0), replace(SERVER, token=None), answer))


def test_the_end_of_a_server_is_the_end_of_its_connections(echo: Echo) -> None:
    with echo.channel() as channel:
        channel.send(Ask(Generation(1)))
        assert channel.recv(10) == Answer(Generation(1))
        echo.run(echo.server.close())
        assert channel.recv(10) is None
        assert channel.closed == "end of stream"
