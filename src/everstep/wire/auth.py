"""Who may speak to us: the job token, where it is kept, and the handshake that proves it. Sans-I/O.

    client                                   server
    Hello(version, CLIENT, nonce)   ───►
                                    ◄───     Hello(version, SERVER, nonce)
    Proof(mac as CLIENT)            ───►
                                    ◄───     Proof(mac as SERVER)

The MAC is HMAC-SHA256, keyed with the token, over version, side and both nonces. Both nonces are fresh, so
a recorded handshake is worth nothing; the side is inside, so nobody can be answered with his own words; a
stranger learns no MAC before he has shown his own. The handshake guards the connection, not each message on
it: the network between nodes must keep others from writing into an open TCP stream.
"""

from __future__ import annotations

import enum
import hmac
import ipaddress
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from everstep.errors import AuthError, ConfigError
from everstep.wire.codec import Codec

PROTOCOL_VERSION = 1
"""Goes up with every change of any message. Partners must have the same."""

TOKEN_VARIABLE = "EVERSTEP_TOKEN"
MIN_TOKEN_CHARS = 16
NONCE_BYTES = 32


# ── the token ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """The secret of a job. Its repr does not show it."""

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.text) < MIN_TOKEN_CHARS or not self.text.isascii() or not self.text.isprintable():
            raise ConfigError(f"a token is at least {MIN_TOKEN_CHARS} printable ASCII characters")

    @classmethod
    def create(cls) -> Token:
        return cls(secrets.token_urlsafe(32))

    def write(self, path: Path) -> None:
        """Appears under its name complete and with mode 0600, or not at all."""
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(self.text + "\n")
        os.replace(part, path)

    @classmethod
    def read(cls, path: Path) -> Token:
        try:
            # Without O_NONBLOCK opening a pipe would hang. What is checked is what was opened, not the name.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ConfigError(f"token file {path}: {error.strerror}") from error
        with open(descriptor, encoding="ascii", errors="replace") as file:
            _check_private(path, os.fstat(descriptor))
            return cls(file.read(4096).strip())


def _check_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"token file {path} is not a regular file")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"token file {path} belongs to user {found.st_uid}, this process is user {os.geteuid()}")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(f"token file {path} has mode {mode:04o}, others can reach it: chmod 600 {path}")


def find_token(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Token | None:
    """From the file that the user named, else from the environment; never from argv, which all can read."""
    if path is not None:
        return Token.read(path)
    text = environ.get(TOKEN_VARIABLE, "").strip()
    return Token(text) if text else None


def require_token(bind_host: str, token: Token | None) -> None:
    """Only loopback may be served without a token. A name that is not localhost counts as open to others."""
    if token is None and not is_loopback(bind_host):
        raise ConfigError(f"listening on {bind_host!r} needs a token: set {TOKEN_VARIABLE} or name a token file")


def is_loopback(host: str) -> bool:
    """Whether only this machine can mean it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ── the handshake ────────────────────────────────────────────────────────────────────────────────────────


class Side(enum.Enum):
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Hello:
    """The fields stay the same in every version, or a mismatch could not be told."""

    version: int
    side: Side
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """Empty from a side that has no token."""

    mac: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str


_CODEC: Codec[Hello | Proof | Refusal] = Codec(Hello | Proof | Refusal)


def refusal(reason: str) -> bytes:
    """The last payload to a stranger, so that the person at the other end learns what is wrong."""
    return _CODEC.encode(Refusal(reason))


class Handshake:
    """One side of one handshake: send `opening`, give it payloads, send its replies, until `done`."""

    def __init__(self, side: Side, token: Token | None, version: int = PROTOCOL_VERSION) -> None:
        self.done = False
        self._side = side
        self._peer = Side.SERVER if side is Side.CLIENT else Side.CLIENT
        self._token = token
        self._hello = Hello(version, side, secrets.token_bytes(NONCE_BYTES))
        self._peer_hello: Hello | None = None

    def opening(self) -> bytes | None:
        """The client speaks first."""
        return _CODEC.encode(self._hello) if self._side is Side.CLIENT else None

    def receive(self, payload: bytes) -> bytes | None:
        """The reply to a payload, if there is one; a WireError if this peer must not go on."""
        message = _CODEC.decode(payload)
        if isinstance(message, Refusal):
            raise AuthError(f"refused by the {self._peer.value}: {message.reason[:200]!r}")
        if isinstance(message, Hello) and self._peer_hello is None:
            return self._greet(message)
        if isinstance(message, Proof) and self._peer_hello is not None and not self.done:
            return self._verify(message, self._peer_hello)
        raise AuthError(f"{type(message).__name__} out of turn")

    def _greet(self, hello: Hello) -> bytes:
        mine = self._hello
        if hello.version != mine.version:
            raise AuthError(
                f"the {self._peer.value} speaks protocol version {hello.version}, the {self._side.value} "
                f"{mine.version}: install the same everstep on both"
            )
        # A socket that connects to itself, or a peer that says after us what we say.
        if hello.side is not self._peer or hello.nonce == mine.nonce:
            raise AuthError(f"a {self._side.value} meets its own kind")
        if len(hello.nonce) != NONCE_BYTES:
            raise AuthError(f"a nonce of {len(hello.nonce)} bytes instead of {NONCE_BYTES}")
        self._peer_hello = hello
        return _CODEC.encode(mine if self._side is Side.SERVER else Proof(self._mac(self._side, hello)))

    def _verify(self, proof: Proof, hello: Hello) -> bytes | None:
        if not hmac.compare_digest(proof.mac, self._mac(self._peer, hello)):
            raise AuthError(self._why_not(proof))
        self.done = True
        return _CODEC.encode(Proof(self._mac(self._side, hello))) if self._side is Side.SERVER else None

    def _why_not(self, proof: Proof) -> str:
        if self._token is None:
            return f"the {self._peer.value} has a token, the {self._side.value} was started without"
        if not proof.mac:
            return f"the {self._peer.value} has no token: set {TOKEN_VARIABLE} or name the token file there"
        return f"the {self._peer.value} has a wrong token"

    def _mac(self, side: Side, peer: Hello) -> bytes:
        if self._token is None:
            return b""
        client, server = (self._hello, peer) if self._side is Side.CLIENT else (peer, self._hello)
        words = b"everstep %d %s " % (client.version, side.value.encode())
        return hmac.digest(self._token.text.encode(), words + client.nonce + server.nonce, "sha256")
