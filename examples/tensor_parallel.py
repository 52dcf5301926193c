"""An MLP whose layers are cut over two devices, twice: tensor parallel in a row of the mesh, data parallel over rows.

everstep run --nproc 4 --standby 1 --chaos "kill rank=3 step=70 phase=optimizer" examples/tensor_parallel.py
"""

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import everstep

job = everstep.init()
mesh = init_device_mesh("cpu", (job.world_size // 2, 2), mesh_dim_names=("replica", "shard"))
torch.manual_seed(0)  # the same model everywhere, before it is cut
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
parallelize_module(model, mesh["shard"], {"0": ColwiseParallel(), "3": RowwiseParallel()})
replicate(model, mesh=mesh["replica"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
row = mesh.get_local_rank("replica")
torch.manual_seed(row)  # ranks of one row compute on the same data, and drop out the same way
job.protect(model=model, optimizer=optimizer)  # finds out who has which piece, and who else has it

for step in job.steps(100):
    with step:
        random = torch.Generator().manual_seed(step.index * 1000 + row)
        x = torch.randn(32, 64, generator=random)
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.done and job.rank == 0 and step.index % 10 == 9:
        print(f"step {step.index}: loss {loss:.4f}", flush=True)
