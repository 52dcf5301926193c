"""Sharded trainings that everstep refuses. Argument: which."""

import sys
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import everstep

job = everstep.init()
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))


def refused(model: object, optimizer: Any) -> None:
    try:
        job.protect(model=model, optimizer=optimizer)
    except everstep.EverstepError as error:
        print(f"refused: {error}")


if sys.argv[1] == "objects":
    other = nn.Sequential(nn.Linear(4, 4))
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard"))
    parallelize_module(other, mesh["shard"], {"0": ColwiseParallel()})
    refused(DistributedDataParallel(other, device_mesh=mesh["replica"]), torch.optim.SGD([torch.zeros(1)], lr=0.1))
    refused(DistributedDataParallel(net), ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1))
    refused(fully_shard(net), torch.optim.Muon(net[1].parameters()))
else:
    for layer in net:
        fully_shard(layer)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in net]
    job.protect(model=list(net), optimizer=optimizers)
    for step in job.steps(3):
        with step:
            for layer, optimizer in zip(net, optimizers, strict=True):
                layer(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
