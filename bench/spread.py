"""A sharded training for the benchmarks, and the program of a rank that runs it.

`python -m bench.spread LAYERS plain|everstep [STEPS]`: without STEPS for ever; with them it says at the end how much
memory it has.
"""

from __future__ import annotations

import sys

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import everstep

SHARDS = 2
WIDTH = 1024
LAYERS = 48
"""Of 1.05 million parameters each: 50 million."""


class Spread:
    """FSDP2 with rows of two shards; all rows are replicas. A `bench.floor.Bare`, and a workload for `bench.turns`."""

    def __init__(self, layers: int = LAYERS, *, width: int = WIDTH, batch: int = 4) -> None:
        rows = dist.get_world_size() // SHARDS
        mesh = init_device_mesh("cpu", (rows, SHARDS), mesh_dim_names=("replica", "shard"))
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))
        for layer in self.model:
            fully_shard(layer, mesh=mesh if rows > 1 else mesh["shard"])
        fully_shard(self.model, mesh=mesh if rows > 1 else mesh["shard"])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(batch, width)

    @property
    def groups(self) -> list[list[int]]:
        """All ranks; then what a mesh makes: a group for each column and each row."""
        every = range(dist.get_world_size())
        columns = [list(every[shard::SHARDS]) for shard in range(SHARDS)]
        return [[*every], *columns, *([*every[row : row + SHARDS]] for row in every[::SHARDS])]

    def backward(self) -> None:
        self.model(self.batch).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        self.backward()
        self.update()


class Small(Spread):
    """For steps of some tens of milliseconds."""

    def __init__(self) -> None:
        super().__init__(4, width=256)


def main() -> None:
    layers, how, *rest = sys.argv[1:]
    job = everstep.init() if how == "everstep" else None
    if job is None:
        dist.init_process_group("gloo")
    work = Spread(int(layers))
    steps = int(rest[0]) if rest else 1_000_000_000
    if job is None:
        for _ in range(steps):
            work.step()
    else:
        job.protect(model=work.model, optimizer=work.optimizer)
        for step in job.steps(steps):
            with step:
                work.step()
    print(f"resident {psutil.Process().memory_info().rss}", flush=True)


if __name__ == "__main__":
    main()
