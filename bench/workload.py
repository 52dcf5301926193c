"""The training that the benchmarks of torch share: a DDP model, AdamW, and one step of it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS = 512, 8
"""2.1 million parameters."""


class Workload:
    """Needs `torch.distributed`. The data are random and the same in each step: only their size matters here."""

    def __init__(self, *, width: int = WIDTH, layers: int = LAYERS, batch: int = 32) -> None:
        torch.manual_seed(0)
        stack = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
        self.model = DistributedDataParallel(nn.Sequential(*stack))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(batch, width)

    def backward(self) -> None:
        """Forward, Backward, and so the reduction of the gradients."""
        self.model(self.batch).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        self.backward()
        self.update()


class Small(Workload):
    """For steps of some milliseconds, whose batch decides how many."""

    def __init__(self) -> None:
        super().__init__(width=256, layers=4)
