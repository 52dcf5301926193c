"""Real steps of a small model that are protected. Arguments: steps, seconds that each of them takes besides."""

import sys
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import everstep

job = everstep.init()
model = DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job.protect(model=model, optimizer=optimizer)
for step in job.steps(int(sys.argv[1])):
    with step:
        time.sleep(float(sys.argv[2]))
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
