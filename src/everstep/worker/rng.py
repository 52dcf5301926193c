"""Random numbers that a redo draws again: every step begins with seeds of its own, or with the streams as they were.

It knows torch, and numpy if the script does.
"""

from __future__ import annotations

import random
import sys
from typing import Any, Protocol

import torch

from everstep.errors import ConfigError
from everstep.types import Step
from everstep.worker.randomness import mix, seed_all


class Streams(Protocol):
    """What a job does with the generators of torch, numpy and random."""

    def begin(self, step: Step) -> None:
        """A step begins, for the first time or again."""
        ...

    def again(self) -> None:
        """The step that was begun last is dropped."""
        ...


class SeededStreams:
    """``rng="step"``: the seeds of a step follow from the seed of this rank and the number of the step."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def begin(self, step: Step) -> None:
        seed_all(mix("step", self.seed, step))

    def again(self) -> None:
        """The next `begin` says it all."""


class CarriedStreams:
    """``rng="carry"``: the generators run on from step to step, as without everstep. Their state is this rank's own."""

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}

    def begin(self, step: Step) -> None:
        self._before = self.state_dict()

    def again(self) -> None:
        self.load_state_dict(self._before)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        if (numpy := sys.modules.get("numpy")) is not None:
            name, keys, *rest = numpy.random.get_state()
            state["numpy"] = [name, keys.copy(), *rest]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        version, internal, gauss = state["random"]
        random.setstate((version, tuple(internal), gauss))
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])
        if "numpy" in state:
            sys.modules["numpy"].random.set_state(tuple(state["numpy"]))


def streams(kind: str, seed: int) -> Streams:
    if kind == "step":
        return SeededStreams(seed)
    if kind == "carry":
        return CarriedStreams()
    raise ConfigError(f'protect(rng={kind!r}): it is "step" (seeds of its own for each step) or "carry"')
