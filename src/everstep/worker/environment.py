"""What the process was given at its start: a seat from its agent, or a rank from torchrun, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from everstep.agent.environment import BOARD, CHAOS, NODE, RING, RUN_DIR, SOCKET, WORKER
from everstep.chaos.spec import Fault, parse_lines
from everstep.errors import ConfigError
from everstep.types import NodeId, Rank, WorkerId
from everstep.wire.auth import TOKEN_VARIABLE, Token, find_token

_OURS = (SOCKET, WORKER, BOARD, RING, TOKEN_VARIABLE, CHAOS)


@dataclass(frozen=True, slots=True)
class Seat:
    """What an agent gives to one worker process."""

    worker: WorkerId
    socket: Path
    board: Path
    ring: Path
    token: Token | None
    run_dir: Path | None
    node: NodeId
    chaos: tuple[Fault, ...]

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Seat | None:
        """None in a process that no agent started. Out of the environment: what the script starts is no worker."""
        if SOCKET not in environ:
            return None
        run_dir = environ.get(RUN_DIR)
        seat = cls(
            worker=WorkerId(_number(environ, WORKER)),
            socket=Path(environ[SOCKET]),
            board=Path(_text(environ, BOARD)),
            ring=Path(_text(environ, RING)),
            token=find_token(environ=environ),
            run_dir=Path(run_dir) if run_dir else None,
            node=NodeId(environ.get(NODE, "")),
            chaos=parse_lines(environ.get(CHAOS, "")),
        )
        for name in _OURS:
            environ.pop(name, None)
        return seat


@dataclass(frozen=True, slots=True)
class Place:
    """Who this process is among those of the job."""

    rank: Rank
    world_size: int
    local_rank: int
    device: str


def assigned(rank: Rank, world_size: int, device: str, environ: Mapping[str, str]) -> Place:
    """In a job of everstep. Slots of a processor are told apart by the agent, not by torch."""
    name = "cpu" if device.partition(":")[0] in ("", "cpu") else device
    return Place(rank, world_size, _number(environ, "LOCAL_RANK", default=rank), name)


def unprotected(environ: MutableMapping[str, str]) -> Place:
    """As torchrun or another launcher says; else alone, with the variables that one process needs."""
    if not ("RANK" in environ and "WORLD_SIZE" in environ):
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        environ.update(alone)
        environ.setdefault("MASTER_ADDR", "127.0.0.1")
        environ.setdefault("MASTER_PORT", "0")  # nobody else has to find it
    rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if rank >= world_size:
        raise ConfigError(f"RANK={rank} with WORLD_SIZE={world_size}: a rank is less than the world size")
    local_rank = _number(environ, "LOCAL_RANK", default=rank)
    return Place(Rank(rank), world_size, local_rank, _own_device(local_rank))


def _own_device(local_rank: int) -> str:
    """Asks torch only if the script has imported it."""
    torch = sys.modules.get("torch")
    return f"cuda:{local_rank}" if torch is not None and torch.cuda.is_available() else "cpu"


def _text(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise ConfigError(f"{name} is not set: an agent sets it with {SOCKET}; unset that to run without an agent")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and name not in environ:
        return default
    text = _text(environ, name)
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r}: it must be a whole number, at least 0")
    return int(text)
