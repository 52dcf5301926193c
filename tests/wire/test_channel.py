from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.wire.conftest import CLIENT, SERVER, Answer, Ask, Crash, Echo

from everstep.errors import AuthError, WireError
from everstep.types import Generation
from everstep.wire.auth import Token
from everstep.wire.channel import Channel, connect
from everstep.wire.server import serve
from everstep.wire.terms import Address

Client = Channel[Ask | Crash, Answer | Ask]
Peer = Channel[Answer | Ask, Ask | Crash]

ASK = Ask(Generation(1))


def with_partners(
    address: Address, scene: Callable[[Client, Peer], Coroutine[Any, Any, None]], terms: Any = CLIENT
) -> None:
    """Play a scene with both ends of one connection."""

    async def play() -> None:
        arrived: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()

        async def receive(channel: Peer) -> None:
            arrived.set_result(channel)
            await over.wait()

        async with asyncio.timeout(10), await serve(address, SERVER, receive) as server:
            client = await connect(server.address, terms)
            await scene(client, await arrived)
            over.set()
            client.close("the scene is over")
            await client.wait_closed()

    asyncio.run(play())


def test_messages_go_both_ways_in_order(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        for number in range(100):
            client.send(Ask(Generation(number)))
        for number in range(100):
            assert await peer.recv() == Ask(Generation(number))
        large = Ask(Generation(0), blob=bytes(3_000_000))
        peer.send(large)
        assert await client.recv() == large

    with_partners(address, scene)


def test_what_was_sent_before_a_close_arrives_and_then_the_end(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        client.send(Ask(Generation(1), blob=bytes(3_000_000)))
        client.close("enough")
        assert [message.number async for message in peer if isinstance(message, Ask)] == [1]
        assert (client.closed, peer.closed) == ("enough", "end of stream")

    with_partners(address, scene)


def test_the_last_words_of_a_peer_are_heard_after_a_send_into_the_void(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        peer.send(Answer(Generation(1)))
        peer._release()
        client.send(ASK)
        client.send(ASK)
        assert await client.recv() == Answer(Generation(1))
        assert await client.recv() is None

    with_partners(address, scene)


def test_our_last_words_arrive_although_we_have_not_read_everything(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        peer.send(Answer(Generation(1)))
        last = Ask(Generation(1), blob=bytes(3_000_000))
        client.send(last)
        client.close("enough")
        assert await peer.recv() == last
        assert await peer.recv() is None
        assert peer.closed == "end of stream"

    with_partners(address, scene)


def test_a_close_wakes_the_receiver(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        waiting = asyncio.create_task(client.recv())
        await asyncio.sleep(0)  # let it begin to wait
        client.close("enough")
        assert await waiting is None

    with_partners(address, scene)


def test_nothing_is_received_after_a_close(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        peer.send(Answer(Generation(1)))
        peer.send(Answer(Generation(2)))
        assert await client.recv() == Answer(Generation(1))
        client.close("fenced")
        assert await client.recv() is None

    with_partners(address, scene)


def test_what_is_sent_on_a_closed_channel_is_dropped(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        client.close("enough")
        client.close("more than enough")
        client.send(ASK)
        assert client.closed == "enough"
        assert await peer.recv() is None

    with_partners(address, scene)


def test_a_receive_that_is_cancelled_loses_nothing(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        waiting = asyncio.create_task(client.recv())
        await asyncio.sleep(0)  # let it begin to wait
        waiting.cancel()
        await asyncio.wait([waiting])
        peer.send(Answer(Generation(1)))
        assert await client.recv() == Answer(Generation(1))

    with_partners(address, scene)


def test_a_peer_that_never_reads_is_closed_and_its_backlog_freed(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        outgoing = client._outgoing
        ask = Ask(Generation(1), blob=bytes(50_000))
        while client.closed is None:
            client.send(ask)
            assert len(outgoing) <= 1_000_000
        for _ in range(1000):
            client.send(ask)
        assert len(outgoing) == 0
        with pytest.raises(WireError, match=r"the peer does not read: \d+ bytes wait for it"):
            await client.recv()

    with_partners(address, scene, replace(CLIENT, max_backlog_bytes=1_000_000))


def test_a_close_does_not_wait_for_a_peer_that_never_reads(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        client.send(Ask(Generation(1), blob=bytes(4_000_000)))
        client.send(Ask(Generation(1), blob=bytes(4_000_000)))
        client.close("enough")
        assert await client.recv() is None
        await client.wait_closed()
        assert not client._outgoing

    with_partners(address, scene)


def test_a_message_that_is_too_large_is_told_to_the_sender_only(address: Address) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        with pytest.raises(WireError, match="oversized frame"):
            client.send(Ask(Generation(1), blob=bytes(CLIENT.max_frame_bytes)))
        client.send(ASK)
        assert await peer.recv() == ASK

    with_partners(address, scene)


def test_a_reset_is_an_end_with_its_reason() -> None:
    async def scene(client: Client, peer: Peer) -> None:
        peer._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer._release()
        assert await client.recv() is None
        assert client.closed == "connection lost: Connection reset by peer"

    with_partners(("127.0.0.1", 0), scene)


def test_the_socket_is_quick_and_notices_silence() -> None:
    async def scene(client: Client, peer: Peer) -> None:
        for channel in (client, peer):
            sock = channel._sock
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000

    with_partners(("127.0.0.1", 0), scene)


def test_both_ends_have_a_name_for_the_log(tmp_path: Any) -> None:
    async def scene(client: Client, peer: Peer) -> None:
        assert client.peer.startswith(("pid ", "127.0.0.1:"))

    with_partners(("127.0.0.1", 0), scene)
    with_partners(tmp_path / "socket", scene)


def test_a_client_without_the_token_is_told_so(echo: Echo) -> None:
    with pytest.raises(AuthError, match="refused by the server: 'the client has a wrong token'"):
        asyncio.run(connect(echo.address, replace(CLIENT, token=Token("a token of another job"))))


def test_a_server_that_never_speaks_does_not_keep_a_client() -> None:
    hasty = replace(CLIENT, handshake_s=0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(WireError, match="no complete handsh"),
    ):
        asyncio.run(connect(silent.getsockname(), hasty))


def test_a_server_that_is_not_there_may_come_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(connect(address, CLIENT))
