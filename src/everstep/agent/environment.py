"""The environment variables of a worker: the user's, ours, and those that its rank adds."""

from __future__ import annotations

from pathlib import Path

from everstep.types import NodeId, Rank, WorkerId
from everstep.wire.auth import TOKEN_VARIABLE, Token
from everstep.wire.messages import Welcome

SOCKET = "EVERSTEP_SOCKET"
WORKER = "EVERSTEP_WORKER"
BOARD = "EVERSTEP_BOARD"
RING = "EVERSTEP_RING"
NODE = "EVERSTEP_NODE"
RUN_DIR = "EVERSTEP_RUN_DIR"
CHAOS = "EVERSTEP_CHAOS"
"""Faults to inject, one in each line."""


def base(welcome: Welcome) -> dict[str, str]:
    """What an interpreter and its libraries read when they start; so also the zygote's."""
    ours = {"PYTHONUNBUFFERED": "1"}  # the last words of a killed worker are in its log
    if welcome.local_world_size > 1:
        ours["OMP_NUM_THREADS"] = "1"  # as torchrun does: or every worker takes every core
    return ours | welcome.env


def of_worker(
    welcome: Welcome, *, node: NodeId, worker: WorkerId, board: Path, ring: Path, socket: Path, token: Token | None
) -> dict[str, str]:
    env = base(welcome) | {
        SOCKET: str(socket),
        WORKER: str(worker),
        BOARD: str(board),
        RING: str(ring),
        NODE: node,
        RUN_DIR: welcome.run_dir,
        CHAOS: "\n".join(welcome.chaos),
    }
    if token is None:
        env.pop(TOKEN_VARIABLE, None)
    else:
        env[TOKEN_VARIABLE] = token.text
    return env


def of_rank(welcome: Welcome, rank: Rank, local_rank: int) -> dict[str, str]:
    """What libraries expect, as torchrun sets it."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(welcome.ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(welcome.local_world_size),
        "MASTER_ADDR": welcome.master_addr,
        "MASTER_PORT": str(welcome.master_port),
    }
