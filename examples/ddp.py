"""Ordinary data-parallel training. What everstep needs is the five lines that have a comment.

everstep run --nproc 4 --standby 1 --chaos "kill rank=2 step=70 phase=optimizer" examples/ddp.py
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import everstep

job = everstep.init()  # sets up torch.distributed too
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
job.protect(model=model, optimizer=optimizer)  # from here on they survive the loss of a device

for step in job.steps(100):  # resumes wherever the job is
    with step:  # the unit that is redone
        random = torch.Generator().manual_seed(step.index * job.world_size + job.rank)
        x = torch.randn(32, 64, generator=random)
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.done and job.rank == 0 and step.index % 10 == 9:  # below the block: also reached after an interruption
        print(f"step {step.index}: loss {loss:.4f}")
