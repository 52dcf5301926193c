"""Switches that no `state_dict` has: whether a module trains, and whether a parameter gets gradients.

Scripts flip them in a step, for an evaluation or for one of two models; some flip them once and for all.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Flags:
    """Of these modules, all that are in them, and these parameters."""

    def __init__(self, roots: Iterable[torch.nn.Module], parameters: Iterable[torch.Tensor]) -> None:
        self._modules = [module for root in roots for module in root.modules()]
        self._parameters = list(parameters)

    def read(self) -> list[list[bool]]:
        return [
            [module.training for module in self._modules],
            [parameter.requires_grad for parameter in self._parameters],
        ]

    def put(self, flags: list[list[bool]]) -> None:
        """Those that `read` gave, here or on a replica."""
        modes, wants = flags
        if len(modes) != len(self._modules):  # a checkpoint of a script that has been changed since
            return
        for module, training in zip(self._modules, modes, strict=True):
            if module.training != training:
                module.training = training
        for parameter, wanted in zip(self._parameters, wants, strict=True):
            if parameter.requires_grad != wanted:
                parameter.requires_grad_(wanted)
