"""A small model whose state is saved. Prints a digest of it at the end.

Arguments: steps, seconds per step, the type of one more tensor.
"""

import hashlib
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import everstep

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
job = everstep.init()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
more = {"more": torch.zeros(2, dtype=getattr(torch, sys.argv[3]))} if len(sys.argv) > 3 else None
job.protect(model=model, optimizer=optimizer, extra=more)
for step in job.steps(steps):
    with step:
        time.sleep(pause_s)
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
print(f"rank {job.rank} has {hashlib.sha256(weights).hexdigest()}", flush=True)
