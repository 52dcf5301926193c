"""One variant of the exact run, as arguments of a command line. Knows names only: neither torch nor everstep."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

CHOICES: dict[str, tuple[str, ...]] = {
    "model": ("mlp", "conv", "gpt"),
    "optimizer": ("sgd", "adamw", "adafactor"),
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
    swallow: bool = False
    """The script catches RuntimeError around Backward and goes on."""
    steps: int = 8

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: one of {', '.join(map(repr, choices))}")
        if self.find_unused and (self.static_graph or self.model != "mlp"):
            raise ValueError("find_unused: of the MLP only, and never with static_graph")
        if self.no_sync and self.accumulate < 2:
            raise ValueError("no_sync: with accumulate only")

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
