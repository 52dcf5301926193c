"""What a checkpoint to memory (k0) and its load cost: `python -m bench.checkpoint`.

One rank with AdamW, as many bytes as asked for. In each round everything is measured once, in this process, in turn:
k0 by everstep, one memcpy of as many bytes into memory that is mapped already, and how long `async_save` of
torch.distributed.checkpoint holds up its caller, with its default and with a stager that keeps its memory. A row is the
median over the rounds, with its 95 % interval; a ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict_saver as saver
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from bench.table import interval, median
from everstep.checkpoint.commit import commit
from everstep.checkpoint.files import write
from everstep.checkpoint.names import directory_of, file_of
from everstep.checkpoint.slot import SlotReader
from everstep.checkpoint.store import open_store
from everstep.core.events import Checkpoint
from everstep.types import Coordinate, Generation, Rank, Step
from everstep.wire.messages import Receipt
from everstep.worker.checkpoint.estimate import share_bytes
from everstep.worker.checkpoint.load import Loader
from everstep.worker.checkpoint.snapshot import Snapshots
from everstep.worker.protection import Protection

WIDTH = 2048
K0, MEMCPY, DEFAULT, CACHED = "k0", "memcpy", "async_save", "async_save, cached"
MEMORY, ANEW, STORAGE = "load from memory", "the same, replacement", "load from storage"


class Alone:
    """Of a `World` what protection needs: a group of one rank."""

    def __init__(self) -> None:
        default: Any = dist.group.WORLD
        self.default: dist.ProcessGroup = default
        self.groups: dict[str, Any] = {}


class Bench:
    """One rank with a trained model, its slots, and a mapping to compare with."""

    def __init__(self, size_bytes: int, folder: Path, shared: Path) -> None:
        layers = max(1, size_bytes // (3 * 4 * WIDTH * WIDTH))
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        world: Any = Alone()
        self.protection = Protection(world, Rank(0), 1, model=self.model, optimizer=self.optimizer)
        self.protection.private.arrange(self.protection.coordinates)
        estimate = share_bytes(self.protection.state, b"", 1)
        self._train()
        _, flat = self.protection.state.read()
        self.size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in flat.tensors)
        self._shared, self._folder = shared, folder
        paths = [_reserved(shared / f"slot-0-{index}", estimate) for index in (0, 1)]
        self.snapshots = Snapshots(self.protection, paths)
        self._source = torch.ones(self.size_bytes, dtype=torch.uint8)
        with Path(_reserved(shared / "copy", self.size_bytes)).open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), self.size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._target = torch.frombuffer(mapped, dtype=torch.uint8)
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
            )
        )
        self._saves = 0
        self.last = Checkpoint(Step(0), Generation(0))

    def _train(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────────

    def k0(self) -> float:
        self.last = Checkpoint(Step(self.last.step + 1), Generation(0))
        return _seconds(lambda: self.snapshots.take(self.last))

    def memcpy(self) -> float:
        to, source = self._target.data_ptr(), self._source.data_ptr()
        return _seconds(lambda: ctypes.memmove(to, source, self.size_bytes))

    def async_save(self, *, cached: bool) -> float:
        """Only what its caller waits for; then it may write in peace."""
        self._saves += 1
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        options: dict[str, Any] = {"async_stager": self._stager} if cached else {}
        writer = FileSystemWriter(self._folder / f"torch-{self._saves}")
        start = time.perf_counter()
        future: Any = saver.async_save(state, storage_writer=writer, **options)
        taken_s = time.perf_counter() - start
        future.result()
        for path in (self._folder / f"torch-{self._saves}").iterdir():
            path.unlink()
        return taken_s

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────────

    def store(self) -> None:
        """The newest one, as persister and controller do."""
        store = open_store(str(self._folder))
        slot = next(path for path in self._shared.glob("slot-*") if SlotReader(path).checkpoint == self.last)
        with SlotReader(slot) as reader:
            content = reader.read(self.last)
            name = f"{directory_of(self.last)}/{file_of(Rank(0))}"
            done = write(store, name, content.manifest, content.read_into)
            del content
        receipt = Receipt(Rank(0), self.last, file_of(Rank(0)), done.size_bytes, done.digest)
        commit(store, self.last, [receipt], {Rank(0): Coordinate(0, 0)}, time.time())

    def load(self, memory: Path, *, mapped: bool = False) -> float:
        """``mapped``: by a worker that goes back, and not by its replacement."""
        loader = Loader(self.protection, memory, str(self._folder), self.snapshots.mapped if mapped else None)
        return _seconds(lambda: loader.load(self.last))


def measure(size_bytes: int, rounds: int) -> tuple[int, dict[str, list[float]]]:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("cpu:gloo", store=HashStore(), rank=0, world_size=1)
    warnings.filterwarnings("ignore", category=UserWarning)
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        bench = Bench(size_bytes, Path(folder), Path(shared))
        ways: dict[str, Callable[[], float]] = {
            K0: bench.k0,
            MEMCPY: bench.memcpy,
            DEFAULT: lambda: bench.async_save(cached=False),
            CACHED: lambda: bench.async_save(cached=True),
        }
        for turn in range(rounds + 1):
            for name, way in ways.items():
                taken_s = way()
                if turn:  # the first round makes the memory that later ones use again
                    found[name].append(taken_s)
        bench.store()
        for _ in range(rounds):
            found[MEMORY].append(bench.load(Path(shared), mapped=True))
            found[ANEW].append(bench.load(Path(shared)))
            found[STORAGE].append(bench.load(Path(folder) / "elsewhere"))
    dist.destroy_process_group()
    return bench.size_bytes, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of torch; a worker of everstep has one")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size, found = measure(options.mb * 1_000_000, options.rounds)
    print(f"{size / 1e6:.0f} MB, {options.rounds} rounds          ms     GB/s   95 % of the median, ms")
    for name, seconds in found.items():
        low, high = interval(seconds)
        middle = median(seconds)
        print(f"{name:24} {1000 * middle:8.1f} {size / 1e9 / middle:8.2f}   {1000 * low:.1f} … {1000 * high:.1f}")
    print(f"k0 to memcpy: {_ratio(found[K0], found[MEMCPY]):.2f} (at most 1.15)")
    print(f"async_save to k0: {_ratio(found[DEFAULT], found[K0]):.1f} (at least 5)")
    print(f"async_save, cached, to k0: {_ratio(found[CACHED], found[K0]):.2f} (at least 1)")
    print(f"load from storage to load from memory: {_ratio(found[STORAGE], found[MEMORY]):.2f}")
    print(f"memory: 2 slots, {2 * size / 1e6:.0f} MB")


def _ratio(above: list[float], below: list[float]) -> float:
    return median([over / under for over, under in zip(above, below, strict=True)])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _reserved(path: Path, size_bytes: int) -> str:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    return str(path)


if __name__ == "__main__":
    main()
