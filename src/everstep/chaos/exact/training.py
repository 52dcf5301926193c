"""The training of a `Recipe`: its objects in plain torch, and the work of one step. Knows nothing of everstep."""

from __future__ import annotations

import math
import random
import warnings
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from everstep.chaos.exact.models import MLP, ConvNet, SmallGPT, data, loss_of
from everstep.chaos.exact.recipe import Recipe

SEED = 1000
LEARNING_RATE = 1e-2


class Training:
    """All that a script has before its loop."""

    def __init__(self, recipe: Recipe, rank: int) -> None:
        self.recipe, self.rank = recipe, rank
        torch.manual_seed(SEED)
        self.model = DistributedDataParallel(_module(recipe), **_ddp_options(recipe))
        self.optimizer = _optimizer(recipe, [p for p in self.model.parameters() if p.requires_grad])
        self.scheduler = _scheduler(recipe, self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2) if recipe.scaler else None
        self.ema = _ema(recipe, self.model.module)
        _seed(SEED + rank)  # every rank drops out differently
        self.swallowed = 0
        """Errors in Backward that the script has caught."""

    @property
    def extra(self) -> dict[str, Any]:
        return {} if self.ema is None else {"ema": self.ema}

    def parts(self) -> dict[str, object]:
        """What has to be equal at the end, by name."""
        module = self.model.module
        return {
            "parameters": dict(module.named_parameters()),
            "buffers": dict(module.named_buffers()),
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "ema": self.ema,
            # What rng="step" seeds in each step is nobody's state between two of them.
            "rng": _rng() if self.recipe.rng == "carry" else None,
        }

    def step(self, index: int) -> float:
        """The body of one step; its loss, before any noise is lost in printing."""
        total = 0.0
        for part in range(self.recipe.accumulate):
            last = part == self.recipe.accumulate - 1
            with self.model.no_sync() if self.recipe.no_sync and not last else nullcontext():
                loss = self._forward(index, part)
                self._backward(loss, overflow=last and index == self.recipe.steps // 2)
            total += loss.item()
        self._update()
        return total

    def _forward(self, index: int, part: int) -> Tensor:
        inputs, targets = data(self.recipe.model, index, self.rank, part)
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
                self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), 0.5)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        self._average()

    def _average(self) -> None:
        if isinstance(self.ema, AveragedModel):
            self.ema.update_parameters(self.model.module)
        elif self.ema is not None:
            for name, parameter in self.model.module.named_parameters():
                self.ema[name].lerp_(parameter.detach(), 0.1)


def _module(recipe: Recipe) -> nn.Module:
    if recipe.model == "mlp":
        return MLP(backwards=recipe.backwards, frozen=recipe.frozen, branch=recipe.find_unused)
    return ConvNet(frozen=recipe.frozen) if recipe.model == "conv" else SmallGPT(frozen=recipe.frozen)


def _ddp_options(recipe: Recipe) -> dict[str, Any]:
    options: dict[str, Any] = {
        "find_unused_parameters": recipe.find_unused,
        "static_graph": recipe.static_graph,
        "gradient_as_bucket_view": recipe.bucket_view,
        "bucket_cap_mb": recipe.bucket_cap or None,
    }
    if recipe.no_broadcast_buffers:
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        options["broadcast_buffers"] = False
    return options


def _optimizer(recipe: Recipe, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE)
    return torch.optim.Adafactor(parameters, lr=LEARNING_RATE)


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
