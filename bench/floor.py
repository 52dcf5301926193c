"""The floor under a recovery: what it would cost if nothing had to be found out, decided or told.

    regroup   the same process groups, bare Gloo over loopback, made anew by all ranks at once
    copy      the bytes of the state from one rank to another, by send and recv of bare Gloo
    step      one step of the same training under plain torch

Each is done by real processes, one for each rank, on the machine and in the run that it is compared with.
`python -m bench.floor` shows the floor of the shared workload.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from bench.table import median
from bench.workload import Workload

LIMIT = timedelta(seconds=60)


class Bare(Protocol):
    """What a rank does under plain torch, once `torch.distributed` is set up with Gloo."""

    groups: Sequence[Sequence[int]]
    """The members of every process group that a recovery makes anew; the same on all ranks."""

    def step(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds, until the last rank is done with it."""

    regroup_s: float
    copy_s: float
    step_s: float

    @property
    def total_s(self) -> float:
        return self.regroup_s + self.copy_s + self.step_s


class BareWorkload(Workload):
    """That of `bench.workload`: one group of all ranks."""

    @property
    def groups(self) -> list[list[int]]:
        return [list(range(dist.get_world_size()))]


def measure(
    ranks: int, state_bytes: int, repeat: int, bare: str = "bench.floor:BareWorkload", *, new_memory: bool = False
) -> list[Floor]:
    """``bare`` is ``module:name`` of what makes a `Bare`; it is imported and called in each process.

    The copy goes into memory that is in use, or into new memory, which the kernel has to give first.
    """
    command = [sys.executable, "-m", "bench.floor", "--state-bytes", str(state_bytes), "--repeat", str(repeat)]
    command += ["--bare", bare, "--store", f"tcp://127.0.0.1:{free_port()}", "--ranks", str(ranks)]
    if new_memory:
        command.append("--new-memory")
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    others = [subprocess.Popen([*command, "--rank", str(rank)], env=env) for rank in range(1, ranks)]
    try:
        first = subprocess.run([*command, "--rank", "0"], env=env, stdout=subprocess.PIPE, check=True)
    finally:
        for other in others:
            other.wait(LIMIT.total_seconds())
    return [Floor(*row) for row in json.loads(first.stdout)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ── in each process ──────────────────────────────────────────────────────────────────────────────────────


def measure_here(at: argparse.Namespace) -> list[list[float]]:
    dist.init_process_group("gloo", init_method=at.store, rank=at.rank, world_size=at.ranks, timeout=LIMIT)
    module, _, name = at.bare.partition(":")
    make: Callable[[], Bare] = getattr(importlib.import_module(module), name)
    work, state = make(), torch.ones(at.state_bytes, dtype=torch.uint8)
    for _ in range(3):
        work.step()
    rows = []
    for number in range(at.repeat):
        if at.new_memory and at.rank:
            state = torch.empty_like(state)
        rows.append(_once(work, state, number))
    dist.barrier()
    return rows


def _once(work: Bare, state: torch.Tensor, number: int) -> list[float]:
    """How long each part takes, from when the last rank is done with the one before until the last is done with it."""
    dist.barrier()
    times = [time.monotonic()]
    members = [(index, ranks) for index, ranks in enumerate(work.groups) if dist.get_rank() in ranks]
    made = [_gloo(f"{number}-{index}", ranks) for index, ranks in members]
    times.append(time.monotonic())
    _copy(state)
    times.append(time.monotonic())
    work.step()
    times.append(time.monotonic())
    every = [torch.zeros(4, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(every, torch.tensor(times, dtype=torch.float64))
    began = min(float(row[0]) for row in every)
    ends = [began, *(max(float(row[part]) for row in every) for part in (1, 2, 3))]
    del made  # destroying a group joins its threads; a recovery does that beside, so it is not in the floor
    return [end - begin for begin, end in itertools.pairwise(ends)]


def _gloo(name: str, ranks: Sequence[int]) -> dist.ProcessGroup:
    store = PrefixStore(name, dist.distributed_c10d._get_default_store())
    return dist.ProcessGroupGloo(store, list(ranks).index(dist.get_rank()), len(ranks), LIMIT)  # type: ignore[return-value]


def _copy(state: torch.Tensor) -> None:
    """From the first rank to the last."""
    last = dist.get_world_size() - 1
    if dist.get_rank() == 0:
        dist.send(state, last)
    elif dist.get_rank() == last:
        dist.recv(state, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--state-bytes", type=int, default=25 << 20)
    parser.add_argument("--repeat", type=int, default=25)
    parser.add_argument("--bare", default="bench.floor:BareWorkload", help=argparse.SUPPRESS)
    parser.add_argument("--new-memory", action="store_true", help="copy into memory that was not used before")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    at = parser.parse_args()
    if at.rank is not None:
        rows = measure_here(at)
        if at.rank == 0:
            print(json.dumps(rows), flush=True)
        os._exit(0)  # without the ends of Gloo's threads, which take as long as the measurement
    floors = measure(at.ranks, at.state_bytes, at.repeat, at.bare, new_memory=at.new_memory)
    for name in ("regroup_s", "copy_s", "step_s", "total_s"):
        print(f"{name:12} {1000 * median([getattr(floor, name) for floor in floors]):8.1f} ms")


if __name__ == "__main__":
    main()
