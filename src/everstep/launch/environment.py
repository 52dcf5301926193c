"""What this machine and the scheduler around it say: devices, processors, the name of the node, the controller.

Functions of the environment and of two folders, so that any machine can be tried in a test. No torch: importing
it takes longer than a start may.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from everstep.errors import ConfigError
from everstep.types import NodeId

DEFAULT_PORT = 29600
"""Where the controller of several machines listens unless it is told another port."""

_DEV = Path("/dev")


def cuda_devices(environ: Mapping[str, str] = os.environ, dev: Path = _DEV) -> tuple[str, ...]:
    """The CUDA devices that a worker would see, by the names that torch gives them."""
    present = sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in dev.glob("nvidia*"))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        present = min(present, _chosen(visible))
    return tuple(f"cuda:{index}" for index in range(present))


def _chosen(visible: str) -> int:
    """How many devices a list like ``0,2`` lets through: CUDA reads it up to the first that cannot be."""
    count = 0
    for entry in visible.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        count += 1
    return count


def processors() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def node_devices(cuda: tuple[str, ...], nproc: int, nodes: int) -> list[str]:
    """What each of the nodes on this machine offers, by name.

    A processor is no device that wears out: each node has room for all ranks, so that those of a lost node fit
    on another. A CUDA device belongs to one node only; those that no rank needs are spares.
    """
    if not cuda:
        return [",".join(f"cpu:{slot}" for slot in range(nproc))] * nodes
    _check_count("--nproc", nproc, cuda)
    return [",".join(cuda[node::nodes]) for node in range(nodes)]


def agent_devices(wanted: str, cuda: tuple[str, ...], cores: int) -> str:
    """What an agent offers: so many of what is there, all if no number is given; or what a plugin says."""
    if wanted and not wanted.isdecimal():
        return wanted
    count = int(wanted or len(cuda) or cores)
    if not cuda:
        return str(count)
    _check_count("--devices", count, cuda)
    return ",".join(cuda[:count])


def _check_count(option: str, count: int, cuda: tuple[str, ...]) -> None:
    if count > len(cuda):
        raise ConfigError(
            f"{option} {count} on a machine with {len(cuda)} CUDA devices: give at most {len(cuda)}, "
            "or set CUDA_VISIBLE_DEVICES= to train on processors"
        )


def node_id(environ: Mapping[str, str], hostname: str) -> NodeId:
    """A name that no other agent of the job has: Slurm's name of the node, or the host's."""
    slurm_id = environ.get("SLURM_NODEID")
    name = environ.get("SLURMD_NODENAME") or (f"node-{slurm_id}" if slurm_id else hostname)
    task = environ.get("SLURM_LOCALID", "0")
    return NodeId(name if task == "0" else f"{name}-{task}")  # several agents of one node


def node_count(environ: Mapping[str, str]) -> int:
    """How many nodes the scheduler gave the job; 1 without one."""
    text = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"the scheduler says the job has {text!r} nodes: give --nodes")
    return int(text)


def controller_host(environ: Mapping[str, str]) -> str | None:
    """Where the controller is by custom: MASTER_ADDR, as for torch, or the first node of a Slurm job."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    return environ.get("MASTER_ADDR") or first_host(nodes)


def first_host(nodelist: str) -> str | None:
    """The first name of a Slurm list: ``gpu[07-09,12],login`` begins with ``gpu07``."""
    head = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^\[,]*))?", nodelist.strip())
    return "".join(part or "" for part in head.groups()) if head else None


def parse_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """``HOST:PORT`` or ``[IPv6]:PORT``; without a port the default, where there is one."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^:\[\]\s]+))(?::(\d{1,5}))?", text)
    port = int(match[3]) if match and match[3] else default_port
    if match is None or port is None or port > 65535:
        raise ConfigError(f"address {text!r}: write it as HOST:PORT, for example 10.0.0.7:{DEFAULT_PORT}")
    return match[1] or match[2], port
