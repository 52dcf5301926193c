"""A GPT that is sharded, with two replicas of each shard: FSDP2 on a mesh of two dimensions.

everstep run --nproc 4 --standby 1 --chaos "kill rank=2 step=30 phase=backward" examples/hsdp.py
"""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import everstep

CHARACTERS, LENGTH, WIDTH = 32, 64, 64


class GPT(nn.Module):
    """The embedding of the characters is also the output layer: their weights are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CHARACTERS, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position.weight
        past = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=past, is_causal=True)
        logits: Tensor = self.head(x)
        return logits


def batch(index: int, rank: int) -> Tensor:
    """Sequences that count on from somewhere: a pure function of the step and the rank."""
    random = torch.Generator().manual_seed(index * 1000 + rank)
    return (torch.randint(CHARACTERS, (8, 1), generator=random) + torch.arange(LENGTH + 1)) % CHARACTERS


job = everstep.init()
mesh = init_device_mesh("cpu", (job.world_size // 2, 2), mesh_dim_names=("replica", "shard"))
torch.manual_seed(0)  # the same model everywhere, before it is cut
model = GPT()
mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.blocks:
    fully_shard(block, mesh=mesh, mp_policy=mixed)
fully_shard(model, mesh=mesh, mp_policy=mixed)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
torch.manual_seed(job.rank)  # each rank drops out differently
job.protect(model=model, optimizer=optimizer)  # finds out who has which shard, and who else has it

for step in job.steps(60):
    with step:
        tokens = batch(step.index, job.rank)
        loss = cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if step.done and job.rank == 0 and step.index % 10 == 9:
        print(f"step {step.index}: loss {loss:.4f}", flush=True)
