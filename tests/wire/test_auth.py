from __future__ import annotations

import os
from pathlib import Path

import pytest

from everstep.errors import AuthError, ConfigError, WireError
from everstep.wire.auth import (
    MIN_TOKEN_CHARS,
    PROTOCOL_VERSION,
    Handshake,
    Side,
    Token,
    find_token,
    refusal,
    require_token,
)

TOKEN = Token("the token of this job")
OTHER = Token("the token of another job")


def converse(client: Handshake, server: Handshake) -> list[bytes]:
    """Carry payloads to and fro until nobody has one more; what was said, in order."""
    said = []
    sender, receiver = client, server
    payload = client.opening()
    while payload is not None:
        said.append(payload)
        payload = receiver.receive(payload)
        sender, receiver = receiver, sender
    return said


@pytest.mark.parametrize("token", [TOKEN, None])
def test_partners_with_the_same_token_come_together(token: Token | None) -> None:
    client, server = Handshake(Side.CLIENT, token), Handshake(Side.SERVER, token)
    assert len(converse(client, server)) == 4
    assert client.done
    assert server.done


@pytest.mark.parametrize(
    ("client_token", "server_token", "reason"),
    [
        (OTHER, TOKEN, "the client has a wrong token"),
        (None, TOKEN, "the client has no token: set EVERSTEP_TOKEN"),
        (TOKEN, None, "the client has a token, the server was started without"),
    ],
)
def test_a_server_refuses_before_it_proves_anything(
    client_token: Token | None, server_token: Token | None, reason: str
) -> None:
    client, server = Handshake(Side.CLIENT, client_token), Handshake(Side.SERVER, server_token)
    with pytest.raises(AuthError, match=reason):
        converse(client, server)
    assert not server.done
    assert not client.done


def test_a_client_refuses_a_server_that_does_not_know_the_token() -> None:
    client, impostor = Handshake(Side.CLIENT, TOKEN), Handshake(Side.SERVER, OTHER)
    hello = client.opening()
    assert hello is not None
    greeting = impostor.receive(hello)
    assert greeting is not None
    client.receive(greeting)
    proof = converse(Handshake(Side.CLIENT, OTHER), Handshake(Side.SERVER, OTHER))[-1]
    with pytest.raises(AuthError, match="the server has a wrong token"):
        client.receive(proof)


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_another_version_is_told_in_clear_words(version: int) -> None:
    client, server = Handshake(Side.CLIENT, TOKEN, version), Handshake(Side.SERVER, TOKEN)
    words = f"the client speaks protocol version {version}, the server {PROTOCOL_VERSION}: install the same"
    with pytest.raises(AuthError, match=words):
        converse(client, server)


def test_a_recorded_handshake_opens_no_server() -> None:
    hello, _, proof, _ = converse(Handshake(Side.CLIENT, TOKEN), Handshake(Side.SERVER, TOKEN))
    server = Handshake(Side.SERVER, TOKEN)
    server.receive(hello)
    with pytest.raises(AuthError, match="the client has a wrong token"):
        server.receive(proof)


def test_a_recorded_handshake_deceives_no_client() -> None:
    _, greeting, _, proof = converse(Handshake(Side.CLIENT, TOKEN), Handshake(Side.SERVER, TOKEN))
    client = Handshake(Side.CLIENT, TOKEN)
    client.receive(greeting)
    with pytest.raises(AuthError, match="the server has a wrong token"):
        client.receive(proof)


def test_nobody_is_deceived_by_his_own_words() -> None:
    client = Handshake(Side.CLIENT, TOKEN)
    hello = client.opening()
    assert hello is not None
    with pytest.raises(AuthError, match="meets its own kind"):
        client.receive(hello)
    with pytest.raises(AuthError, match="meets its own kind"):
        client.receive(hello.replace(b"client", b"server"))


def test_the_proof_of_one_side_is_not_the_proof_of_the_other() -> None:
    client, server = Handshake(Side.CLIENT, TOKEN), Handshake(Side.SERVER, TOKEN)
    hello = client.opening()
    assert hello is not None
    greeting = server.receive(hello)
    assert greeting is not None
    own_proof = client.receive(greeting)
    assert own_proof is not None
    with pytest.raises(AuthError, match="the server has a wrong token"):
        client.receive(own_proof)


def test_words_out_of_turn_are_refused() -> None:
    hello, _, proof, _ = converse(Handshake(Side.CLIENT, TOKEN), Handshake(Side.SERVER, TOKEN))
    with pytest.raises(AuthError, match="Proof out of turn"):
        Handshake(Side.SERVER, TOKEN).receive(proof)
    server = Handshake(Side.SERVER, TOKEN)
    server.receive(hello)
    with pytest.raises(AuthError, match="Hello out of turn"):
        server.receive(hello)


def test_a_short_nonce_is_refused() -> None:
    hello = Handshake(Side.CLIENT, TOKEN).opening()
    assert hello is not None
    short = hello.replace(b"\xc4\x20" + hello[-32:], b"\xc4\x01x")
    with pytest.raises(AuthError, match="a nonce of 1 bytes"):
        Handshake(Side.SERVER, TOKEN).receive(short)


def test_the_reason_of_a_refusal_reaches_the_other_end_in_one_short_line() -> None:
    with pytest.raises(AuthError, match=r"^refused by the server: 'two\\nlines'$"):
        Handshake(Side.CLIENT, TOKEN).receive(refusal("two\nlines"))
    with pytest.raises(AuthError, match=r"^.{1,300}$"):
        Handshake(Side.CLIENT, TOKEN).receive(refusal("x" * 3000))


def test_garbage_in_a_handshake_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="malformed message"):
        Handshake(Side.SERVER, TOKEN).receive(b"GET / HTTP/1.1")


# ── where the token is kept ──────────────────────────────────────────────────────────────────────────────


def test_a_new_token_is_never_the_same_and_never_shown() -> None:
    one, two = Token.create(), Token.create()
    assert one.text != two.text
    assert len(one.text) >= 2 * MIN_TOKEN_CHARS
    assert one.text not in repr(one)


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16 printable ASCII characters"):
        Token("secret")


def test_a_token_file_is_private_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "token"
    TOKEN.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Token.read(path).text == TOKEN.text
    assert os.listdir(tmp_path) == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_token_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    TOKEN.write(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode 0{mode:o}, others can reach it: chmod 600"):
        Token.read(path)


def test_a_token_file_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    TOKEN.write(path)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {owner}, this process is user {owner + 1}"):
        Token.read(path)


def test_a_token_file_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Token.read(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="is not a regular file"):
        Token.read(tmp_path / "pipe")
    (tmp_path / "empty").touch(0o600)
    with pytest.raises(ConfigError, match="a token is at least"):
        Token.read(tmp_path / "empty")


def test_the_named_file_goes_before_the_environment(tmp_path: Path) -> None:
    environ = {"EVERSTEP_TOKEN": OTHER.text}
    TOKEN.write(tmp_path / "token")
    named, found = find_token(tmp_path / "token", environ), find_token(environ=environ)
    assert named is not None
    assert found is not None
    assert (named.text, found.text) == (TOKEN.text, OTHER.text)
    assert find_token(environ={}) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_may_be_served_without_a_token(host: str) -> None:
    require_token(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "localhost.example", "node-7"])
def test_anything_else_needs_a_token(host: str) -> None:
    require_token(host, TOKEN)
    with pytest.raises(ConfigError, match="needs a token: set EVERSTEP_TOKEN"):
        require_token(host, None)
