"""The training of a `Recipe`: its objects in plain torch, and the work of one step. Knows nothing of everstep."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from everstep.chaos.exact import optimizers
from everstep.chaos.exact.models import data, loss_of
from everstep.chaos.exact.optimizers import LEARNING_RATE
from everstep.chaos.exact.parallel import spread
from everstep.chaos.exact.recipe import Recipe

SEED = 1000


class Training:
    """All that a script has before its loop."""

    def __init__(self, recipe: Recipe, rank: int) -> None:
        self.recipe, self.rank = recipe, rank
        torch.manual_seed(SEED)
        self._spread = spread(recipe, rank)
        self.model = self._spread.model
        self.optimizers = optimizers.make(recipe, self._spread.module)
        self.scheduler = _scheduler(recipe, self.optimizers[0])
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2) if recipe.scaler else None
        self.ema = _ema(recipe, self._spread.module)
        _seed(SEED + self._spread.part)  # replicas drop out differently
        self.swallowed = 0
        """Errors in Backward that the script has caught."""

    @property
    def extra(self) -> dict[str, Any]:
        return {} if self.ema is None else {"ema": self.ema}

    def parts(self) -> dict[str, object]:
        """What has to be equal at the end, by name."""
        module = self._spread.module
        return {
            "parameters": dict(module.named_parameters()),
            "buffers": dict(module.named_buffers()),
            "optimizer": self.optimizers,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "ema": self.ema,
            # What rng="step" seeds in each step is nobody's state between two of them.
            "rng": _rng() if self.recipe.rng == "carry" else None,
        }

    def step(self, index: int) -> float:
        """The body of one step; its loss, before any noise is lost in printing."""
        losses: list[float] = []

        def compute() -> float:
            losses.append(self._compute(index))
            return losses[-1]

        if self.recipe.closure:
            self.optimizers[0].step(compute)
        else:
            compute()
            self._update()
        self._follow()
        return losses[-1]

    def _compute(self, index: int) -> float:
        """Forward and Backward."""
        total = 0.0
        for part in range(self.recipe.accumulate):
            last = part == self.recipe.accumulate - 1
            with self._spread.synchronized(last or not self.recipe.no_sync):
                loss = self._forward(index, part)
                self._backward(loss, overflow=last and index == self.recipe.steps // 2)
            total += loss.item()
        return total

    def _forward(self, index: int, part: int) -> Tensor:
        inputs, targets = data(self.recipe.model, index, self._spread.part, part)
        if inputs.is_floating_point():
            inputs = inputs + _noise()
        kind = {"": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.recipe.scaler]
        with nullcontext() if kind is None else torch.autocast("cpu", dtype=kind):
            # In step 1 rank 0 alone takes the detour, in step 3 all do.
            odd = () if self.recipe.model == "gpt" else (index % 4 == 3 or (index % 4 == 1 and self.rank == 0),)
            return loss_of(self.model(inputs, *odd), targets) / self.recipe.accumulate

    def _backward(self, loss: Tensor, *, overflow: bool) -> None:
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
            if overflow and self.rank == 0:
                loss = loss * math.inf
        if not self.recipe.swallow:
            loss.backward()
            return
        try:
            loss.backward()
        except RuntimeError:
            self.swallowed += 1

    def _update(self) -> None:
        if self.recipe.clip:
            if self.scaler is not None:
                for optimizer in self.optimizers:
                    self.scaler.unscale_(optimizer)
            clip_grad_norm_(self.model.parameters(), 0.5)
        for optimizer in self.optimizers:
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()

    def _follow(self) -> None:
        """What comes behind the update."""
        if self.scheduler is not None:
            self.scheduler.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self._average()

    def _average(self) -> None:
        if isinstance(self.ema, AveragedModel):
            self.ema.update_parameters(self._spread.module)
        elif self.ema is not None:
            for name, parameter in self._spread.module.named_parameters():
                self.ema[name].lerp_(parameter.detach(), 0.1)


def _scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
    if not recipe.scheduler:
        return None
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=LEARNING_RATE,
        total_steps=recipe.steps + 1,
        cycle_momentum=recipe.optimizer != "adafactor",  # it has none
    )


def _ema(recipe: Recipe, module: nn.Module) -> AveragedModel | dict[str, Tensor] | None:
    if recipe.ema == "module":
        return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=False)
    if recipe.ema == "dict":
        return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    return None


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if find_spec("numpy"):
        import numpy as np

        np.random.seed(seed)


def _noise() -> float:
    """From the other generators that a script may use."""
    noise = random.gauss(0, 0.01)
    if find_spec("numpy"):
        import numpy as np

        noise += 0.01 * np.random.standard_normal()
    return float(noise)


def _rng() -> list[object]:
    """The streams that `rng="carry"` keeps."""
    streams: list[object] = [torch.get_rng_state(), list(random.getstate()[1])]
    if find_spec("numpy"):
        import numpy as np

        streams.append([*np.random.get_state(legacy=False)["state"]["key"].tolist()])
    return streams
