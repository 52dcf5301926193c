"""One variant of the exact run, as arguments of a command line. Knows names only: neither torch nor everstep."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

CHOICES: dict[str, tuple[str, ...]] = {
    "model": ("mlp", "conv", "gpt"),
    "parallel": ("ddp", "fsdp", "hsdp", "tp", "tp-dp"),
    "optimizer": ("sgd", "adamw", "adafactor", "counting"),
    "kernel": ("", "foreach", "fused"),
    "reshard": ("", "on", "off"),
    "compile": ("", "whole", "blocks"),
    "scheduler": ("", "onecycle"),
    "scaler": ("", "bf16", "fp16"),
    "ema": ("", "module", "dict"),
    "rng": ("step", "carry"),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Field names are those of the options: ``--no-sync`` for ``no_sync``."""

    model: str = "mlp"
    optimizer: str = "adamw"
    scheduler: str = ""
    scaler: str = ""
    """Autocast to this, with a GradScaler; in the middle step the gradients overflow, so there is no update."""
    accumulate: int = 1
    no_sync: bool = False
    """With ``accumulate``: only the last part of a step synchronizes its gradients."""
    clip: bool = False
    ema: str = ""
    """What `extra=` gets: a module, or a dict of tensors."""
    find_unused: bool = False
    """A part of the model is left out in odd steps, on all ranks or on some."""
    static_graph: bool = False
    bucket_view: bool = False
    bucket_cap: float = 0.0
    """MB; 0: the default of DDP. Small ones give many buckets."""
    no_broadcast_buffers: bool = False
    frozen: bool = False
    backwards: bool = False
    """Layers are used in another order than they were made."""
    rng: str = "step"
    parallel: str = "ddp"
    """How it is spread: shards over all ranks (fsdp, tp), or shards that have replicas (hsdp, tp-dp)."""
    shards: int = 2
    """With ``hsdp`` and ``tp-dp``: into how many pieces a replica is cut; the ranks are so many times some rows."""
    mixed: bool = False
    """Of FSDP: computes in bfloat16, reduces and updates in float32."""
    reshard: str = ""
    """Of FSDP: whether parameters are gathered again for Backward."""
    meta: bool = False
    """The model is made without memory, sharded, and filled then."""
    recompute: bool = False
    """Activations are not kept, but computed again in Backward."""
    compile: str = ""
    kernel: str = ""
    """Of the optimizer."""
    groups: bool = False
    """Two parameter groups: biases and norms without weight decay."""
    second: bool = False
    """A second optimizer has the last layers; both update after all communication."""
    closure: bool = False
    """The optimizer is given Forward and Backward to call by itself."""
    swallow: bool = False
    """The script catches RuntimeError around Backward and goes on."""
    steps: int = 8

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: one of {', '.join(map(repr, choices))}")
        if self.find_unused and (self.static_graph or self.model != "mlp"):
            raise ValueError("find_unused: of the MLP only, and never with static_graph")
        if self.closure and (self.scaler or self.clip or self.second):
            raise ValueError("closure: with one optimizer, and nothing between Backward and the update")
        if self.no_sync and self.accumulate < 2:
            raise ValueError("no_sync: with accumulate only")
        if self.parallel in ("tp", "tp-dp") and self.model != "mlp":
            raise ValueError(f"parallel={self.parallel!r}: of the MLP only")
        if self.sharded and (self.optimizer == "adafactor" or self.ema == "module" or self.model == "conv"):
            raise ValueError(f"parallel={self.parallel!r}: neither Adafactor, nor an AveragedModel, nor the conv net")
        if not self.fully_sharded and (self.mixed or self.reshard or self.meta):
            raise ValueError("mixed, reshard, meta: of fsdp and hsdp only")

    @property
    def sharded(self) -> bool:
        return self.parallel != "ddp"

    @property
    def fully_sharded(self) -> bool:
        return self.parallel in ("fsdp", "hsdp")

    @property
    def replicated(self) -> bool:
        """Each piece of the state exists more than once."""
        return self.parallel in ("ddp", "hsdp", "tp-dp")

    @property
    def private(self) -> bool:
        """Each rank has state of its own, of which the next replica has the only copy."""
        return self.rng == "carry" or self.no_broadcast_buffers

    def row(self, ranks: int) -> int:
        """How many ranks hold one replica of the state: those of a row of the mesh."""
        return {"ddp": 1, "fsdp": ranks, "tp": ranks}.get(self.parallel, self.shards)

    def words(self) -> tuple[str, ...]:
        """What `parse` reads."""
        words: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                words.append(_option(field.name))
                if value is not True:
                    words.append(str(value))
        return tuple(words)

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        recipe, rest = cls.parse_known(words)
        if rest:
            raise ValueError(f"unknown: {' '.join(rest)}")
        return recipe

    @classmethod
    def parse_known(cls, words: Sequence[str]) -> tuple[Self, list[str]]:
        """The recipe, and the words that are none of its options."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for field in fields(cls):
            kind: dict[str, Any] = {"action": "store_true"} if field.default is False else {"type": type(field.default)}
            parser.add_argument(_option(field.name), default=field.default, **kind)
        known, rest = parser.parse_known_args(list(words))
        return cls(**vars(known)), rest

    def __str__(self) -> str:
        return " ".join(self.words()) or "(defaults)"


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
