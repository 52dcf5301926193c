"""What a loader is made from: a dataset with options, a DataLoader that is read for them, or a source with a state."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, TypedDict

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from everstep.errors import ConfigError
from everstep.worker.loader.base import Loader
from everstep.worker.loader.order import Order, whole
from everstep.worker.loader.private import PrivateLoader
from everstep.worker.loader.read import Batches, Processes, ReadAhead, Reader, ReadHere, Task
from everstep.worker.randomness import mix

KEEP_BYTES = 1 << 20
"""A batch of at most this size is copied for a redo, in about 0.1 ms. A larger one is read again: a replacement has to
read its own at that time too, so nobody waits longer."""

_WITH_ITS_OWN_ORDER = ("seed",)
"""The options of a source that brings all others."""


class LoaderOptions(TypedDict, total=False):
    """Of ``job.loader(dataset, ...)``. A DataLoader or a source with a state takes ``seed`` alone."""

    batch_size: int
    """Of one rank. The only one without a default."""
    shuffle: bool
    seed: int
    num_workers: int
    drop_last: bool
    collate_fn: Callable[[list[Any]], Any] | None
    prefetch: int
    """Batches that each worker process has in work or ready."""
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], object] | None
    multiprocessing_context: str | BaseContext | None


@dataclass(frozen=True, slots=True)
class _Source:
    """A dataset, and how it is to be read."""

    dataset: Any
    batch_size: int
    shuffle: bool = True
    seed: int = 0
    num_workers: int = 0
    drop_last: bool = True
    collate_fn: Callable[[list[Any]], Any] | None = None
    prefetch: int = 2
    pin_memory: bool = False
    timeout: float = 0.0
    worker_init_fn: Callable[[int], object] | None = None
    multiprocessing_context: str | BaseContext | None = None
    share: tuple[int, int] | None = None
    """Rank and world size of a DistributedSampler, which may be of less than the whole job."""


class MapLoader(Loader):
    """Over a dataset with a length: each rank can read its batch of any step at once."""

    def __init__(self, order: Order, reader: Reader) -> None:
        super().__init__(KEEP_BYTES)
        self._order = order
        self._reader = reader

    @property
    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def epoch(self, index: int) -> int:
        return self._order.epoch(index)

    def start(self, index: int) -> None:
        self._reader.start(index)

    def close(self) -> None:
        super().close()
        self._reader.close()

    def _read(self, index: int) -> Any:
        return self._reader.take(index)


def make_loader(
    source: Any, *, rank: int, world_size: int, safe_point: Callable[[], None] = lambda: None, **options: Any
) -> Loader:
    """The loader of one rank over a dataset, a DataLoader, or a source that keeps its own place.

    ``safe_point`` is called again and again while a batch is waited for; what it raises ends the step there.
    """
    _check_names(options, tuple(LoaderOptions.__annotations__), "of job.loader")
    if _keeps_its_place(source):
        _check_names(options, _WITH_ITS_OWN_ORDER, f"for a {_name(source)}, which brings the others")
        return PrivateLoader(source, seed=whole("seed", options.get("seed", 0)), rank=rank)
    if isinstance(source, DataLoader):
        _check_names(options, _WITH_ITS_OWN_ORDER, "for a DataLoader, which brings the others")
        settings = _of_data_loader(source, **options)
    else:
        if "batch_size" not in options:
            raise ConfigError(f"job.loader({_name(source)}) needs a batch_size: the items of one rank in one step")
        settings = _Source(source, **options)
    return _map_loader(settings, *(settings.share or (rank, world_size)), safe_point)


def _map_loader(source: _Source, rank: int, world_size: int, safe_point: Callable[[], None]) -> MapLoader:
    _check(source)
    order = Order(
        len(source.dataset), source.batch_size, source.shuffle, source.seed, source.drop_last, rank, world_size
    )

    def plan(index: int) -> Task:
        return Task(index, mix("batch", source.seed, rank, index), order.items(index))

    batches = Batches(source.dataset, source.collate_fn or default_collate)
    reader: Reader
    if source.num_workers == 0:
        reader = ReadHere(batches, plan, pin_memory=source.pin_memory)
    else:
        processes = Processes(
            count=source.num_workers,
            prefetch=source.prefetch,
            init=source.worker_init_fn,
            timeout_s=source.timeout,
            context=source.multiprocessing_context,
            pin_memory=source.pin_memory,
            seed=mix("processes", source.seed, rank),
        )
        reader = ReadAhead(batches, plan, processes, safe_point)
    return MapLoader(order, reader)


# ── what cannot work ─────────────────────────────────────────────────────────────────────────────────────


def _check(source: _Source) -> None:
    _check_dataset(source.dataset)
    whole("num_workers", source.num_workers, 0)
    whole("prefetch", source.prefetch, 1)
    timeout: object = source.timeout
    if not isinstance(timeout, int | float) or not timeout >= 0:
        raise ConfigError(f"timeout={source.timeout!r}: it must be a number of seconds, or 0 for no limit")
    for name in ("collate_fn", "worker_init_fn"):
        function = getattr(source, name)
        if function is not None and not callable(function):
            raise ConfigError(f"{name}={function!r}: it must be a function")
    methods: tuple[object, ...] = (None, *multiprocessing.get_all_start_methods())
    context = source.multiprocessing_context
    if not isinstance(context, BaseContext) and context not in methods:
        raise ConfigError(f"multiprocessing_context={context!r}: it must be one of {', '.join(map(str, methods))}")


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ConfigError(
            f"job.loader({_name(dataset)}): nobody can say what a step reads from it. It needs __getitem__ and "
            "__len__, or __iter__ with state_dict and load_state_dict; or make the batch yourself, from step.index "
            "and job.rank"
        )


def _check_names(options: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in options:
        if name not in known:
            raise ConfigError(f"{name}={options[name]!r} is no option {where}; there is {', '.join(known)}")


def _keeps_its_place(source: Any) -> bool:
    has_items = hasattr(source, "__getitem__") and not isinstance(source, IterableDataset)
    return not has_items and all(hasattr(source, name) for name in ("__iter__", "state_dict", "load_state_dict"))


def _name(thing: Any) -> str:
    return type(thing).__name__


# ── a DataLoader ─────────────────────────────────────────────────────────────────────────────────────────


def _of_data_loader(loader: DataLoader[Any], seed: int | None = None) -> _Source:
    """Its order is made anew from the seed, and is not that of its generator."""
    _check_dataset(loader.dataset)
    batches = loader.batch_sampler
    if batches is None:
        raise _cannot(loader, "batch_size=None", "with batch_size=1, and collate_fn=lambda items: items[0]")
    if type(batches) is not BatchSampler:
        raise _cannot(loader, f"batch_sampler={_name(batches)}", "with batch_size")
    sampler: Any = batches.sampler
    shuffle: bool
    share = None
    if type(sampler) is RandomSampler:
        if sampler.replacement or sampler.num_samples != len(loader.dataset):  # type: ignore[arg-type]
            raise _cannot(loader, "a RandomSampler with replacement or num_samples", "with shuffle=True")
        shuffle = True
    elif type(sampler) is SequentialSampler:
        shuffle = False
    elif type(sampler) is DistributedSampler:
        shuffle, share = sampler.shuffle, (sampler.rank, sampler.num_replicas)
        seed = sampler.seed if seed is None else seed
    else:
        raise _cannot(loader, f"sampler={_name(sampler)}", "with shuffle=True or False")
    return _Source(
        loader.dataset,
        batches.batch_size,
        shuffle=shuffle,
        seed=0 if seed is None else seed,
        num_workers=loader.num_workers,
        drop_last=batches.drop_last,
        collate_fn=loader.collate_fn,
        prefetch=loader.prefetch_factor or 2,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        share=share,
    )


def _cannot(loader: DataLoader[Any], what: str, instead: str) -> ConfigError:
    return ConfigError(
        f"job.loader(DataLoader(...)) with {what}: the items of any step cannot be found again. Give the dataset "
        f"itself, job.loader({_name(loader.dataset)}, ...) {instead}; or make the batch yourself, from step.index"
    )
