"""What k1 costs: `python -m bench.persist`.

    k1    the persister streams a sealed slot to storage, hashing it on the way, against a process of the same low
          priority that writes the same memory to the same file system in the same blocks, and fsyncs
    φ     a step of a training on one core while the persister writes, against one while it does not; and what other
          processes of that priority do to it: the one that only writes, and one that only copies memory

All in turns, in one run; a row is the median over the rounds of the ratio within a round, with its 95 % interval.
φ wants a spare core: on a machine that is busy otherwise all three show that.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import torch

from bench.table import interval, median
from everstep.agent.shm import ROOT
from everstep.checkpoint.client import Persister
from everstep.checkpoint.files import BLOCK_BYTES
from everstep.checkpoint.manifest import Entry, Manifest, arrange
from everstep.checkpoint.persister import Write, lower_priority
from everstep.checkpoint.slot import SlotWriter, slot_bytes
from everstep.types import Rank

TENSORS = 200
ROOM_BYTES = 1 << 20
"""For the manifest."""
WIDTH, BATCH = 512, 256
STEPS = 20
"""Of the training, in a turn."""
COPIED_BYTES, COPIES = 4 << 20, 4


class Slots:
    """One slot that is filled once; each checkpoint in it is sealed anew under another step."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.path = folder / "slot-0-0"
        each = size_bytes // TENSORS // 4
        made = [Entry(f"t{n}", f"t{n}", "F32", [each], [0], [each], 0, 0, 4 * each) for n in range(TENSORS)]
        self._entries = arrange(made)
        self.size_bytes = 4 * each * TENSORS
        with self.path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, slot_bytes(self.size_bytes, ROOM_BYTES))
        self._writer = SlotWriter(self.path)
        self._step = 0
        data = self._writer.begin(self._manifest())
        torch.frombuffer(data, dtype=torch.float32).normal_()
        self._writer.seal()

    def order(self, directory: Path) -> Write:
        self._step += 1
        self._writer.begin(self._manifest()).release()
        self._writer.seal()
        return Write(Rank(0), self._manifest().checkpoint, str(self.path), str(directory))

    def _manifest(self) -> Manifest:
        return Manifest(self._step, 1, 1, 0, 1, 0, 0, "", self._entries, b"")


async def persist(persister: Persister, slots: Slots, directory: Path) -> float:
    order = slots.order(directory)
    begin_s = time.monotonic()
    receipt = await persister.persist(order)
    end_s = time.monotonic()
    if receipt.error:
        raise RuntimeError(receipt.error)
    shutil.rmtree(directory)
    return end_s - begin_s


# ── k1 ───────────────────────────────────────────────────────────────────────────────────────────────────


class Other:
    """A process to compare with, which does its work once for each line on its stdin.

    ``write`` writes the memory of the slot as it is, ``copy`` copies it within memory a few times.
    """

    def __init__(self, work: str, slots: Slots, file: Path) -> None:
        command = [sys.executable, "-m", "bench.persist", "--other", work, str(slots.path), str(file)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def work(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        begin_s = time.monotonic()
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError("the other process has ended; its output says why")
        return time.monotonic() - begin_s

    def close(self) -> None:
        self._process.communicate()


def other_process(work: str, slot: str, file: str) -> None:
    """In the process of `Other`."""
    lower_priority()
    with open(slot, "rb") as source, mmap.mmap(source.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
        data = memoryview(mapping)
        for _ in sys.stdin:
            if work == "write":
                write_raw(data, file)
            else:
                copy_raw(data)
            sys.stdout.write("done\n")
            sys.stdout.flush()
            Path(file).unlink(missing_ok=True)
        data.release()


def write_raw(data: memoryview, file: str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    for begin in range(0, len(data), BLOCK_BYTES):
        os.pwrite(fd, data[begin : begin + BLOCK_BYTES], begin)
    os.fsync(fd)
    os.close(fd)


def copy_raw(data: memoryview) -> None:
    room = memoryview(bytearray(COPIED_BYTES))
    for begin in range(0, COPIES * len(data), COPIED_BYTES):
        piece = data[begin % len(data) :][:COPIED_BYTES]
        room[: len(piece)] = piece


async def measure_k1(slots: Slots, folder: Path, rounds: int) -> list[tuple[float, float]]:
    """Seconds of the raw write and of k1, each round."""
    persister, raw = Persister(), Other("write", slots, folder / "raw")
    try:
        await persist(persister, slots, folder / "out")
        raw.work()
        return [(raw.work(), await persist(persister, slots, folder / "out")) for _ in range(rounds)]
    finally:
        raw.close()
        await persister.close()


# ── φ ────────────────────────────────────────────────────────────────────────────────────────────────────


class Training:
    """On one core, in a thread of its own beside the event loop."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(8)]
        self._model = torch.nn.Sequential(*layers)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._batch = torch.randn(BATCH, WIDTH)

    def turn(self) -> float:
        """Median seconds of a step."""
        times = []
        for _ in range(STEPS):
            begin_s = time.monotonic()
            self._model(self._batch).square().mean().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            times.append(time.monotonic() - begin_s)
        return median(times)


async def measure_phi(slots: Slots, folder: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """For who works beside it, seconds of a step without and with that, each round."""
    torch.set_num_threads(1)
    persister, training = Persister(), Training()
    writer, copier = (Other(work, slots, folder / work) for work in ("write", "copy"))
    beside: dict[str, Callable[[], Awaitable[float]]] = {
        "persisting": lambda: persist(persister, slots, folder / "out"),
        "a bare write + fsync": lambda: asyncio.to_thread(writer.work),
        "a bare copy in memory": lambda: asyncio.to_thread(copier.work),
    }
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in beside}
    try:
        for work in beside.values():
            await work()
        for _ in range(rounds):
            for name, work in beside.items():
                alone_s = await asyncio.to_thread(training.turn)
                turn = asyncio.create_task(asyncio.to_thread(training.turn))
                while not turn.done():
                    await work()
                results[name].append((alone_s, await turn))
    finally:
        writer.close()
        copier.close()
        await persister.close()
    return results


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────


def print_row(name: str, ratios: Sequence[float], what: str) -> None:
    low, high = interval(ratios)
    print(f"{name:36} {median(ratios):6.3f}  [{low:.3f}, {high:.3f}]   {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dir", type=Path, default=Path(), help="on the file system to write to; default: here")
    parser.add_argument("--other", nargs=3, help=argparse.SUPPRESS)
    at = parser.parse_args()
    if at.other:
        other_process(*at.other)
        return
    with tempfile.TemporaryDirectory(dir=ROOT) as memory, tempfile.TemporaryDirectory(dir=at.dir) as folder:
        slots = Slots(Path(memory), at.bytes)
        k1 = asyncio.run(measure_k1(slots, Path(folder), at.rounds))
        phi = asyncio.run(measure_phi(slots, Path(folder), at.rounds))
    size_mb = slots.size_bytes / 1e6
    print(f"{size_mb:.0f} MB in {TENSORS} tensors, {at.rounds} rounds      median  [95 % interval]")
    speed = (
        f"k1 {size_mb / median([own for _, own in k1]):.0f} MB/s, raw {size_mb / median([r for r, _ in k1]):.0f} MB/s"
    )
    print_row("k1: bandwidth over raw write+fsync", [raw / own for raw, own in k1], speed)
    for name, pairs in phi.items():
        step = f"a step of {1000 * median([alone for alone, _ in pairs]):.1f} ms"
        print_row(f"φ: step beside {name}", [during / alone for alone, during in pairs], step)


if __name__ == "__main__":
    main()
