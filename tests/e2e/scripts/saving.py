"""A small model whose state is saved. Arguments: steps, seconds per step. Prints a digest of the model at the end.

With a third argument, a file that is not there yet, rank 1 fails once after the loop.
"""

import hashlib
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import everstep

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
job = everstep.init()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
job.protect(model=model, optimizer=optimizer)
for step in job.steps(steps):
    with step:
        time.sleep(pause_s)
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
if len(sys.argv) > 3 and job.rank == 1 and not Path(sys.argv[3]).exists():
    Path(sys.argv[3]).touch()
    raise ValueError("once, after the loop")
weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
print(f"rank {job.rank} has {hashlib.sha256(weights).hexdigest()}", flush=True)
