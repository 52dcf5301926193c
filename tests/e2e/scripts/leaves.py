"""All ranks leave the loop before its last step, each by itself, after a sum that all of them know.

With an argument they hold the loop until their end, as a progress bar does.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import everstep

job = everstep.init()
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.protect(model=model, optimizer=optimizer)
turns = job.steps(100)
for step in turns:
    with step:
        model(torch.ones(2, 4)).sum().backward()
        total = torch.tensor([float(step.index)])
        dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
    if step.done and total.item() >= 5 * job.world_size:
        break
if len(sys.argv) == 1:
    del turns
    dist.all_reduce(total)
print(f"left at {step.index}, then {total.item()}")
