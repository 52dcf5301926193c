"""The optimizers of a `Recipe`, in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from everstep.chaos.exact.recipe import Recipe

LEARNING_RATE = 1e-2


class Counting(torch.optim.SGD):
    """SGD that goes slower after each large step. Its state has numbers, text and lists beside tensors."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        for group in self.param_groups:
            group.setdefault("seen", []).append(group["lr"])
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["count"] = state.get("count", 0) + 1
                    state["mood"] = "odd" if state["count"] % 2 else "even"
                    state["past"] = [*state.get("past", ()), state["count"] / 3][-3:]
                    parameter.grad.mul_(1 / (1 + state["past"][0]))
        return super().step(closure)


def make(recipe: Recipe, module: nn.Module) -> list[torch.optim.Optimizer]:
    """One, or two with the parameters of the model between them."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not recipe.second:
        return [_make(recipe, parameters)]
    half = len(parameters) // 2
    return [_make(recipe, parameters[:half]), torch.optim.SGD(parameters[half:], lr=LEARNING_RATE, momentum=0.5)]


def _make(recipe: Recipe, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    options: dict[str, Any] = {recipe.kernel: True} if recipe.kernel else {}
    given: list[Any] = parameters
    if recipe.groups:
        given = [
            {"params": [each for each in parameters if each.ndim > 1], "weight_decay": 0.1},
            {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0, "lr": LEARNING_RATE / 2},
        ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(given, lr=LEARNING_RATE, momentum=0.9, **options)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(given, lr=LEARNING_RATE, **options)
    if recipe.optimizer == "counting":
        return Counting(given, lr=LEARNING_RATE, momentum=0.9, **options)
    return torch.optim.Adafactor(given, lr=LEARNING_RATE)
