"""Three small models that break differently: order of use, statistics in buffers, tied weights. All drop out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from everstep.demo.gpt import GPT

CLASSES = 8
CHARACTERS, LENGTH = 24, 12
BATCH = 4


class MLP(nn.Module):
    """Layers that can be used in another order than they were made, be frozen, or be left out in some steps."""

    def __init__(self, *, backwards: bool, frozen: bool, branch: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.detour = nn.Linear(16, 16) if branch else None
        self.head = nn.Linear(16, CLASSES)
        self.dropout = nn.Dropout(0.1)
        self.order = (3, 1, 2, 0) if backwards else (0, 1, 2, 3)
        if frozen:
            self.layers[1].requires_grad_(False)

    def forward(self, x: Tensor, odd: bool) -> Tensor:
        for index in self.order:
            x = self.dropout(torch.relu(self.layers[index](x)))
        if self.detour is not None and odd:
            x = x + self.detour(x)
        logits: Tensor = self.head(x)
        return logits


class ConvNet(nn.Module):
    """BatchNorm: state that no gradient changes, and that differs between ranks until it is broadcast."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU()
        )
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(6, CLASSES)
        if frozen:
            self.features[0].requires_grad_(False)

    def forward(self, x: Tensor, odd: bool) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.features(x).mean((2, 3))))
        return logits


class SmallGPT(GPT):
    """That of the demo, as small as it gets."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__(CHARACTERS, LENGTH, width=16, heads=2, layers=2, dropout=0.1)
        if frozen:
            self.position.requires_grad_(False)


def data(model: str, index: int, rank: int, part: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets: a pure function of its arguments."""
    random = torch.Generator().manual_seed((index * 64 + rank) * 64 + part)
    if model == "gpt":
        tokens = torch.randint(CHARACTERS, (BATCH, LENGTH + 1), generator=random)
        return tokens[:, :-1], tokens[:, 1:].flatten()
    shape = (BATCH, 16) if model == "mlp" else (BATCH, 3, 8, 8)
    return torch.randn(shape, generator=random), torch.randint(CLASSES, (BATCH,), generator=random)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.float().flatten(0, -2), targets)
