"""How people's tools talk to the controller of a run: find it, ask for its status, tell it something.

Knows the run directory and the wire, and how a run that is over says how it ended. Prints nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import TracebackType

import msgspec

from everstep.controller.job import RunDir
from everstep.errors import ConfigError, WireError
from everstep.wire.channel import Channel, connect
from everstep.wire.codec import Codec
from everstep.wire.messages import Ask, Bye, Done, Inject, Interrupt, Status
from everstep.wire.terms import Terms

ANSWER_S = 5.0
"""A controller that is alive answers at once; one that is stopped never does."""

RETURN_S = 2.0
"""A controller that died is listening again within it."""

_RETRY_S = 0.05
"""Nothing tells that somebody listens again, but trying."""

ToServer = Ask | Inject | Interrupt
FromServer = Status | Done | Bye
_TO_SERVER: Codec[ToServer] = Codec(ToServer)
_FROM_SERVER: Codec[FromServer] = Codec(FromServer)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker that has a rank."""

    rank: int
    worker: int
    pid: int | None
    node: str
    step: int
    phase: str
    version: int
    age_s: float
    """Since its last move."""


@dataclass(frozen=True, slots=True)
class StandbyRow:
    worker: int
    pid: int | None
    node: str


@dataclass(frozen=True, slots=True)
class FailureRow:
    time: float
    """Seconds since the epoch."""
    text: str


@dataclass(frozen=True, slots=True)
class SavedRow:
    """One checkpoint."""

    step: int
    generation: int
    attempt: int
    age_s: float = field(default=0.0, compare=False)
    """Since it was committed."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """What there is to go back to."""

    every: int
    why: str
    sealed: SavedRow | None
    committed: SavedRow | None
    skipped: int
    busy: bool
    error: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A `Status`, decoded. ``raw`` is the JSON as the controller wrote it."""

    generation: int
    state: str
    workers: tuple[WorkerRow, ...] = ()
    standbys: tuple[StandbyRow, ...] = ()
    failures: tuple[FailureRow, ...] = ()
    reason: str = ""
    job: str = ""
    target: int = 0
    checkpoints: CheckpointRow | None = None
    raw: str = ""

    @property
    def step(self) -> int:
        """The step that the job is in."""
        return max((row.step for row in self.workers), default=self.target)


def parse(text: str) -> Snapshot:
    try:
        return replace(msgspec.json.decode(text, type=Snapshot), raw=text)
    except msgspec.DecodeError as error:
        raise WireError(f"the controller sent a status of another version of everstep: {error}") from error


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended: the exit code of the job, and the first cause if it failed."""

    code: int
    reason: str = ""

    @classmethod
    def read(cls, run: RunDir) -> Result | None:
        """None while the run is not over."""
        try:
            return msgspec.json.decode(run.result.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise ConfigError(f"{run.result} is of another version of everstep, or damaged: {error}") from None


class Client:
    """One connection to the controller of a run, made when it is needed and again after it broke.

    OSError: the controller is not there now. WireError: it is, but does not take what we say.
    """

    def __init__(self, run: RunDir, patience_s: float = 0.0) -> None:
        self._run = run
        self._patience_s = patience_s
        """How long to wait for a controller that is being started again."""
        self._channel: Channel[ToServer, FromServer] | None = None

    async def ask(self) -> Snapshot:
        answer = await self._exchange(Ask())
        if not isinstance(answer, Status):
            raise WireError(f"the controller answered {type(answer).__name__} where a status was asked for")
        return parse(answer.json)

    async def tell(self, message: Inject | Interrupt) -> None:
        """Returns when it is done; a ConfigError says why it was not."""
        answer = await self._exchange(message)
        if isinstance(answer, Done) and answer.error:
            raise ConfigError(answer.error)

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            channel.close("the client is done")
            await channel.wait_closed()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _exchange(self, message: ToServer) -> FromServer:
        channel = self._channel = self._channel or await self._connect()
        try:
            async with asyncio.timeout(ANSWER_S):
                channel.send(message)
                answer = await channel.recv()
        except TimeoutError:
            await self.close()  # or the answer would be taken for that of the next question
            raise TimeoutError(f"the controller does not answer within {ANSWER_S:g} s") from None
        except BaseException:
            await self.close()
            raise
        if answer is None:
            reason = channel.closed
            await self.close()
            raise ConnectionError(f"the controller closed the connection: {reason}")
        return answer

    async def _connect(self) -> Channel[ToServer, FromServer]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            try:
                return await self._reach()
            except OSError:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _reach(self) -> Channel[ToServer, FromServer]:
        address = self._run.address()
        if address is None:
            raise ConnectionError(f"no controller has listened for {self._run.path} yet")
        terms = Terms(sends=_TO_SERVER, receives=_FROM_SERVER, token=self._run.read_token())
        return await connect((address.host, address.port), terms)
