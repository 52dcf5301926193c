"""A run directory and the description of the job in it, which a restarted controller reads again."""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from everstep.checkpoint import names
from everstep.core.config import JobConfig
from everstep.errors import ConfigError
from everstep.wire.auth import Token

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "everstep.worker.session",
)
"""What a training script imports in any case, and what torch imports behind its back: the first optimizer imports
`torch._dynamo`, which takes longer than all the rest of a recovery."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Where checkpoints go and when they are taken."""

    directory: str = ""
    """As `open_store` reads it; empty: the job neither takes checkpoints nor begins with one."""
    every: str = "off"
    """As ``--checkpoint-every`` has it."""
    keep: int = 3
    keep_every: int = 0
    """Beside the newest, the first of each so many steps stays."""
    attempt: int = 0
    grace_s: float = 30.0
    """At the end of the job, for what is on its way to storage."""


@dataclass(frozen=True, slots=True)
class Job:
    """What `everstep run` or `everstep controller` was asked for."""

    name: str
    argv: tuple[str, ...]
    """What follows ``python``: the script or ``-m module``, and its arguments."""
    cwd: str
    env: dict[str, str]
    config: JobConfig
    local_world_size: int
    """Ranks of one node."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any; a restarted controller binds the port it had."""
    preload: tuple[str, ...] = PRELOAD
    zygote: bool = True
    master_addr: str = "127.0.0.1"
    """With ``master_port``: for libraries that read them from the environment."""
    master_port: int = 29500
    lease_s: float = 20.0
    """An agent that has lost the controller for so long stops its workers."""
    fence_s: float = 5.0
    chaos: tuple[str, ...] = ()
    checkpoints: CheckpointPlan = CheckpointPlan()
    web: tuple[str, int] | None = ("127.0.0.1", 0)
    """Where the live page is; port 0: any. None: there is none."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the controller of a run listens."""

    host: str
    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Page:
    """Where the live page of a run is."""

    host: str
    port: int
    url: str
    """For a browser. It has the token in it if one is needed."""

    @classmethod
    def at(cls, host: str, port: int, token: Token | None) -> Self:
        """On all addresses: a name that others can use stands for them."""
        name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
        url = f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"
        return cls(host, port, url if token is None else f"{url}?token={token.text}")

    @property
    def sentence(self) -> str:
        """For a log, where the token has no place."""
        link, _, token = self.url.partition("?")
        return f"live page {link}" + (" (the link with its token is in web.json of the run directory)" if token else "")


@dataclass(slots=True)
class RunDir:
    """The files of one run. Whoever supervises the controller holds the lock."""

    path: Path
    _lock: int = field(default=-1, repr=False)

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def memories(self) -> Path:
        """What newcomers are told before they have state."""
        return self.path / "memories"

    @property
    def recoveries(self) -> Path:
        return self.path / "recoveries.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints.jsonl"

    @property
    def digests(self) -> Path:
        return self.path / "digests.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def _job(self) -> Path:
        return self.path / "job.json"

    @property
    def _address(self) -> Path:
        return self.path / "controller.json"

    @property
    def used(self) -> bool:
        """It has had a job."""
        return self._job.exists()

    def create(self, job: Job, token: Token) -> None:
        """Make the directory for a new job. What a former one has left, but for checkpoints, is put out of the way."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock()
        if self.used:
            self._put_away(Path(job.checkpoints.directory))
        self.logs.mkdir(exist_ok=True)
        token.write(self.token)
        _write(self._job, msgspec.json.format(msgspec.json.encode(job)))

    def _put_away(self, checkpoints: Path) -> None:
        """Never deleted. The description of the job goes last: until then it is known that there was one."""
        numbers = [int(path.name) for path in self.former.glob("*") if path.name.isdecimal()]
        place = self.former / f"{max(numbers, default=0) + 1:03}"
        place.mkdir(parents=True)
        stay = {self.path / "lock", self.path / "token", self.path / names.DEFAULT, self.former, self._job}
        for path in [*sorted(set(self.path.iterdir()) - stay), self._job]:
            if not checkpoints.is_relative_to(path.absolute()):
                path.rename(place / path.name)

    @property
    def former(self) -> Path:
        """What runs before this one have left here."""
        return self.path / "former"

    def lock(self) -> None:
        """Held until this process ends."""
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.path} belongs to a job that is running; give --run-dir another directory"
            ) from None

    @property
    def running(self) -> bool:
        """Whether somebody supervises its controller now."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def read_job(self) -> Job:
        return _read(self._job, Job)

    def read_token(self) -> Token:
        return Token.read(self.token)

    def publish(self, address: Address) -> None:
        _write(self._address, msgspec.json.encode(address))

    @property
    def web_token(self) -> Path:
        """What the live page asks for where others can reach it. It lets nobody into the job."""
        return self.path / "web-token"

    @property
    def _page(self) -> Path:
        return self.path / "web.json"

    def publish_page(self, page: Page) -> None:
        _write(self._page, msgspec.json.encode(page))

    def page(self) -> Page | None:
        """None while there is none."""
        return _read(self._page, Page) if self._page.exists() else None

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def finish(self, code: int, reason: str) -> None:
        """The job is over; the exit code and why."""
        _write(self.result, msgspec.json.encode({"code": code, "reason": reason}))

    def address(self) -> Address | None:
        """None while no controller has listened yet."""
        return _read(self._address, Address) if self._address.exists() else None

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run."""
        run = cls(path)
        if not run._job.exists():
            raise ConfigError(f"{path} is not the directory of a run: it has no job.json")
        return run


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, for the owner's eyes only: the environment of a job may hold secrets."""
    part = path.with_suffix(".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    part.replace(path)


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is of another version of everstep, or damaged: {error}") from None
