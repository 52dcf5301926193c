"""A small model whose state is saved. Prints a digest of the model at the end.

Arguments: steps, seconds per step. Then ``more=DTYPE``: one more tensor of this type; ``fail=FILE``: rank 1 fails once
after the loop, if the file is not there yet.
"""

import hashlib
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import everstep

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
options = dict(option.split("=") for option in sys.argv[3:])
job = everstep.init()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
more = {"more": torch.zeros(2, dtype=getattr(torch, options["more"]))} if "more" in options else None
job.protect(model=model, optimizer=optimizer, extra=more)
for step in job.steps(steps):
    with step:
        time.sleep(pause_s)
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
if "fail" in options and job.rank == 1 and not Path(options["fail"]).exists():
    Path(options["fail"]).touch()
    raise ValueError("once, after the loop")
weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
print(f"rank {job.rank} has {hashlib.sha256(weights).hexdigest()}", flush=True)
