"""A small protected training that breaks one rule. Arguments: which one, a folder for marks."""

import pathlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import everstep

case, marks = sys.argv[1], pathlib.Path(sys.argv[2])
job = everstep.init()
mark = marks / f"rank-{job.rank}"
replaced = mark.exists()
mark.touch()
net = nn.Sequential(nn.Linear(4, 4))
net.add_module("renamed" if case == "other names" and replaced else "last", nn.Linear(4, 4))
if case == "other sizes" and replaced:
    net.last = nn.Linear(4, 5)
model = DistributedDataParallel(net)


def backward() -> Any:
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    return loss


class Twice(torch.optim.SGD):
    """It looks at the loss again before it steps."""

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            closure()
        return super().step(closure)


optimizer = Twice(model.parameters(), lr=0.1)
extra: dict[str, Any] = {"gadget": {"handle": mark.open()}} if case == "no bytes" else {}
if case == "extra of one rank":
    extra = {"seen": torch.zeros(1)}
private = {"late": torch.zeros(1)} if case == "late private state" else {}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2) if case == "scheduler forgotten" else None
job.protect(model=model, optimizer=optimizer, extra=extra, private=private)
forgotten = torch.optim.Adam(net.parameters()) if case == "optimizer forgotten" else None
for step in job.steps(100 if case == "both receive" else 6):
    if case == "collective between steps" and step.index == 1:
        dist.all_reduce(torch.ones(1))
    with step:
        if case == "both receive" and step.index == 99:
            dist.recv(torch.ones(1), 1 - job.rank)
        if case == "closure twice":
            optimizer.step(backward)
        if case == "late group":
            dist.new_group([0, 1])
        backward()
        if case == "exception" and job.rank == 1 and step.index == 3:  # all are in this step: it is the one to redo
            raise ValueError("the data is wrong")
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        if forgotten is not None:
            forgotten.step()
        if case != "gradients carried":
            optimizer.zero_grad()
        for tensor in private.values():
            tensor += 1
        if case == "drifts" and job.rank == 1 and step.index == 3:
            next(net.parameters()).data.add_(1e-3)
        if "seen" in extra:
            extra["seen"] += job.rank
        if case == "collective after the update":
            dist.all_reduce(torch.ones(1))
