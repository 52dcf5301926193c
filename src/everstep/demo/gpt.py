"""A character-level GPT on text that is made here: the script of `everstep demo`.

everstep run --nproc 4 --standby 1 examples/gpt.py --steps 300
"""

import argparse
import itertools

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import everstep
from everstep.chaos.exact.record import fingerprint

RANKS, STEPS = ("no rank", "one rank", "two ranks", "every rank"), ("this step", "the next step", "step seven")
DEEDS = ("is fenced in", "redoes", "finishes", "waits before", "passes the barrier of")
TEXT = ". ".join(" ".join(words) for words in itertools.product(RANKS, DEEDS, STEPS)) + ". "
CHARACTERS = sorted(set(TEXT))


class Block(nn.Module):
    """Attention over the past, then two layers at each place."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.project(seen))
        mixed: Tensor = x + self.dropout(self.mlp(self.between(x)))
        return mixed


class GPT(nn.Module):
    """The embedding of the characters is also the output layer: their weights are tied."""

    def __init__(self, characters: int, length: int, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.head.weight = self.embedding.weight
        for table in (self.embedding, self.position):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def batch(data: Tensor, index: int, rank: int, size: int, length: int) -> tuple[Tensor, Tensor]:
    """A pure function of the step and the rank, so a redone step sees the same data."""
    where = torch.Generator().manual_seed(index * 1000 + rank)
    starts = torch.randint(len(data) - length - 1, (size,), generator=where)
    windows = torch.stack([data[start : start + length + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()

    job = everstep.init()
    torch.manual_seed(job.rank)
    data = torch.tensor([CHARACTERS.index(character) for character in TEXT])
    model = DistributedDataParallel(GPT(len(CHARACTERS), options.length, options.width, heads=4, layers=2, dropout=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=options.steps + 1)
    job.protect(model=model, optimizer=optimizer, scheduler=scheduler)

    for step in job.steps(options.steps):
        with step:
            x, y = batch(data, step.index, job.rank, 8, options.length)
            loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if step.done and job.rank == 0 and step.index % 20 == 19:
            print(f"step {step.index + 1}: loss {loss:.4f}", flush=True)

    print(f"rank {job.rank} ends on {fingerprint([model, optimizer, scheduler])}", flush=True)


if __name__ == "__main__":
    main()
