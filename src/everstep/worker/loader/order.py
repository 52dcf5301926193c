"""Which items of a dataset a rank reads in a step, as a function of the settings and the step alone.

The order of epoch e is ``torch.randperm`` with a generator seeded by ``mix("order", seed, e)``, or that of the dataset
when it is not shuffled. The global batch of a step is the next ``world_size × batch_size`` items of that order, and
rank r has every ``world_size``-th of them from the r-th on, as with torch's DistributedSampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

import torch

from everstep.errors import ConfigError
from everstep.worker.randomness import mix

_KEPT_ORDERS = 2
"""Prefetching looks across the border of two epochs."""


@dataclass(frozen=True)
class Order:
    """The items of every step for one rank.

    With ``drop_last`` an epoch ends with the last full global batch. Without, its last batch may be short, but is
    equally long on every rank: where the items do not suffice, the order is continued from its beginning.
    """

    length: int
    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    rank: int
    world_size: int
    _orders: dict[int, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        whole("batch_size", self.batch_size, 1)
        whole("seed", self.seed)
        whole("world_size", self.world_size, 1)
        if whole("rank", self.rank, 0) >= self.world_size:
            raise ConfigError(f"rank={self.rank} with world_size={self.world_size}: a rank is less than the world size")
        if self.length < 1:
            raise ConfigError("the dataset is empty: a step has nothing to read")
        if self.steps_per_epoch < 1:
            raise ConfigError(
                f"the dataset has {self.length} items, less than one global batch of {self._global_batch} ("
                f"{self.world_size} ranks × batch_size={self.batch_size}): use a smaller batch_size, or drop_last=False"
            )

    @property
    def steps_per_epoch(self) -> int:
        return self._total // self._global_batch if self.drop_last else -(-self._total // self._global_batch)

    def epoch(self, index: int) -> int:
        """That step ``index`` belongs to."""
        return index // self.steps_per_epoch

    def items(self, index: int) -> list[int]:
        """Of this rank in step ``index``."""
        epoch, step = divmod(index, self.steps_per_epoch)
        start = step * self._global_batch
        places = range(start + self.rank, min(start + self._global_batch, self._total), self.world_size)
        if not self.shuffle:
            return [place % self.length for place in places]
        order = self._order(epoch)
        if places[-1] < self.length:
            return _ints(order[places.start : places.stop : places.step])
        return _ints(order[torch.tensor(places) % self.length])

    @property
    def _global_batch(self) -> int:
        return self.world_size * self.batch_size

    @property
    def _total(self) -> int:
        """Of an epoch, over all ranks."""
        return self.length if self.drop_last else -(-self.length // self.world_size) * self.world_size

    def _order(self, epoch: int) -> torch.Tensor:
        order = self._orders.get(epoch)
        if order is None:
            generator = torch.Generator().manual_seed(mix("order", self.seed, epoch))
            order = torch.randperm(self.length, generator=generator)
            while len(self._orders) >= _KEPT_ORDERS:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = order
        return order


def whole(name: str, value: object, least: int | None = None) -> int:
    """The value, if it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ConfigError(f"{name}={value!r}: it must be a whole number")
    number = value.__index__()
    if least is not None and number < least:
        raise ConfigError(f"{name}={value!r}: it must be a whole number, at least {least}")
    return number


def _ints(tensor: torch.Tensor) -> list[int]:
    numbers: Sequence[int] = tensor.tolist()
    return list(numbers)
