from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.wire.conftest import ANSWER, ASK, CLIENT, Answer, Ask, Crash, Echo, drain

from everstep.errors import AuthError, WireError
from everstep.types import Generation
from everstep.wire import blocking
from everstep.wire.auth import Token
from everstep.wire.blocking import BlockingChannel
from everstep.wire.framing import FrameDecoder, encode_frame

Pair = tuple[BlockingChannel[Ask | Crash, Answer | Ask], socket.socket]

ANSWER_FRAME = encode_frame(ANSWER.encode(Answer(Generation(1))))


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A channel behind the handshake, and the bare other end."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    with theirs, BlockingChannel(ours, replace(CLIENT, send_s=0.05)) as channel:
        yield channel, theirs


def test_questions_are_answered(echo: Echo) -> None:
    with echo.channel() as channel:
        for number in range(100):
            channel.send(Ask(Generation(number)))
        for number in range(100):
            assert channel.recv(10) == Answer(Generation(number))
    assert channel.closed == "closed"
    assert channel.recv(10) is None


def test_the_largest_message_passes(echo: Echo) -> None:
    with echo.channel() as channel:
        channel.send(Ask(Generation(1), blob=bytes(4_000_000)))
        assert channel.recv(10) == Answer(Generation(1))


def test_a_wrong_token_is_told(echo: Echo) -> None:
    with pytest.raises(AuthError, match="refused by the server: 'the client has a wrong token'"):
        echo.channel(replace(CLIENT, token=Token("a token of another job")))


def test_a_server_that_never_speaks_does_not_keep_a_client() -> None:
    hasty = replace(CLIENT, handshake_s=0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(WireError, match="no complete handsh"),
    ):
        BlockingChannel.connect(silent.getsockname(), hasty)


def test_nothing_in_time_changes_nothing(pair: Pair) -> None:
    channel, peer = pair
    peer.sendall(ANSWER_FRAME[:7])
    with pytest.raises(TimeoutError):
        channel.recv(0.01)
    peer.sendall(ANSWER_FRAME[7:])
    assert channel.recv(10) == Answer(Generation(1))


def test_the_end_of_the_peer_is_an_end(pair: Pair) -> None:
    channel, peer = pair
    peer.sendall(ANSWER_FRAME)
    peer.close()
    channel.send(Ask(Generation(1)))  # into the void, and what the peer said before is still heard
    assert channel.recv(10) == Answer(Generation(1))
    assert channel.recv(10) is None
    assert channel.closed == "end of stream"


@pytest.mark.parametrize(
    ("words", "reason"),
    [(encode_frame(b"\xc1"), "malformed message"), (ANSWER_FRAME[:-1], "truncated frame")],
)
def test_a_peer_that_breaks_a_rule_is_closed(pair: Pair, words: bytes, reason: str) -> None:
    channel, peer = pair
    peer.sendall(words)
    peer.shutdown(socket.SHUT_WR)
    for _ in range(2):
        with pytest.raises(WireError, match=reason):
            channel.recv(10)
    assert drain(peer) == b""


def test_a_peer_that_never_reads_is_given_up(pair: Pair) -> None:
    channel, _ = pair
    while channel.closed is None:
        channel.send(Ask(Generation(1), blob=bytes(100_000)))
    with pytest.raises(WireError, match=r"a message did not leave within 0.05 s"):
        channel.recv(10)


def test_messages_of_several_threads_do_not_mix(pair: Pair) -> None:
    channel, peer = pair
    asks = [Ask(Generation(number), blob=bytes(1000 * number)) for number in range(50)]
    with ThreadPoolExecutor(8) as threads:
        received = threads.submit(drain, peer)
        list(threads.map(channel.send, asks))
        channel.close()
    decoder = FrameDecoder()
    decoder.feed(received.result())
    messages = [ASK.decode(payload) for payload in iter(decoder.take, None)]
    decoder.finish()
    assert sorted(messages, key=lambda ask: ask.number if isinstance(ask, Ask) else -1) == asks


def test_a_close_in_another_thread_ends_a_receive(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, _ = pair
    waits = threading.Event()
    wait = blocking._wait

    def announced_wait(sock: socket.socket, event: int, deadline: float) -> bool:
        waits.set()
        return wait(sock, event, deadline)

    monkeypatch.setattr(blocking, "_wait", announced_wait)
    with ThreadPoolExecutor(1) as thread:
        receiving = thread.submit(channel.recv, 60)
        waits.wait(10)
        channel.close("enough")
        assert receiving.result(10) is None
    assert channel.closed == "enough"


def test_a_process_that_the_user_forks_does_not_keep_the_connection() -> None:
    ours, theirs = socket.socketpair()
    hold, release = os.pipe()
    worker = os.fork()
    if worker == 0:
        ours.close()
        with BlockingChannel(theirs, CLIENT):
            data_loader = os.fork()
            if data_loader == 0:
                os.close(release)
                os.read(hold, 1)  # outlives the worker
            os._exit(0)  # as a kill would: nothing is closed by hand
    theirs.close()
    os.close(hold)
    os.waitpid(worker, 0)
    ours.settimeout(10)
    try:
        assert ours.recv(1) == b""
    finally:
        os.close(release)  # lets the data loader go
        ours.close()


def test_a_fork_may_use_what_it_has_inherited_without_harm(pair: Pair) -> None:
    channel, peer = pair
    with channel._sending, channel._receiving:  # as another thread of the parent might at that moment
        child = os.fork()
        if child == 0:
            channel.send(Ask(Generation(1)))
            received = channel.recv(10)
            channel.close()
            os._exit(0 if received is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    peer.sendall(ANSWER_FRAME)
    assert channel.recv(10) == Answer(Generation(1))
