"""Small checkpoints of two ranks, written by the real parts, and what each of them must be when it is loaded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from everstep.checkpoint import catalog, names
from everstep.checkpoint.commit import Commit, commit
from everstep.checkpoint.disk import Disk
from everstep.checkpoint.files import ReadInto, ShareFile
from everstep.checkpoint.manifest import Entry, Manifest, arrange
from everstep.checkpoint.persister import Write, persist
from everstep.checkpoint.slot import SlotWriter, slot_bytes
from everstep.checkpoint.store import DirectoryStore
from everstep.core.events import Checkpoint
from everstep.types import Coordinate, Generation, Rank, Step
from everstep.wire.messages import Receipt

WORLD = 2
COORDINATES = {Rank(rank): Coordinate(rank, 0) for rank in range(WORLD)}
TIME_S = 1_750_000_000.25

Loaded = list[tuple[Manifest, list[bytes]]]
"""By rank: its manifest and the bytes of its own tensors."""


def point(step: int, generation: int = 1, attempt: int = 1) -> Checkpoint:
    return Checkpoint(Step(step), Generation(generation), attempt)


def entries() -> list[Entry]:
    """What two replicas divide among them; the one without elements is in no file."""
    shapes = [
        ("model.a", "F32", [5, 3], 60, 0),
        ("model.b", "BF16", [7], 14, 1),
        ("model.c", "U8", [33], 33, 0),
        ("model.d", "F32", [0, 3], 0, 1),
        ("optimizer.step", "I64", [], 8, 1),
    ]
    made = [Entry(key, key, kind, at, [0] * len(at), at, who, 0, size) for key, kind, at, size, who in shapes]
    return arrange(made)


def manifest(at: Checkpoint, rank: int, values: bytes = b"\x00values\xff", private: bytes = b"") -> Manifest:
    return Manifest(*(at.step, at.generation, at.attempt, rank, WORLD, rank, 0, "layout", entries(), values, private))


def share(at: Checkpoint, rank: int) -> bytes:
    """The data of this share: other bytes in each checkpoint."""
    of = manifest(at, rank)
    return random.Random(f"{at} {rank}").randbytes(of.data_bytes)


def reads(data: bytes | bytearray) -> ReadInto:
    """As `files.write` wants it."""

    def read_into(offset: int, buffer: memoryview) -> None:
        buffer[:] = data[offset : offset + len(buffer)]

    return read_into


def fill(path: Path, at: Checkpoint, rank: int) -> Path:
    """A slot in which this share is sealed."""
    made = manifest(at, rank)
    if not path.exists():
        path.write_bytes(bytes(slot_bytes(made.data_bytes, 4096)))
    with SlotWriter(path) as slot:
        slot.begin(made)[:] = share(at, rank)
        slot.seal()
    return path


@dataclass
class Place:
    """A checkpoint directory, and slots beside it."""

    root: Path
    disk: Disk = field(default_factory=Disk)

    @property
    def directory(self) -> Path:
        return self.root / "checkpoints"

    @property
    def store(self) -> DirectoryStore:
        return DirectoryStore(self.directory, self.disk)

    def order(self, at: Checkpoint, rank: int) -> Write:
        self.root.mkdir(exist_ok=True)
        return Write(Rank(rank), at, str(fill(self.root / f"slot-{rank}", at, rank)), str(self.directory))

    def persist(self, at: Checkpoint) -> list[Receipt]:
        return [persist(self.order(at, rank), lambda _: self.store) for rank in range(WORLD)]

    def commit(self, at: Checkpoint) -> Commit:
        return commit(self.store, at, self.persist(at), COORDINATES, TIME_S)

    def file(self, at: Checkpoint, rank: int) -> Path:
        return self.directory / names.directory_of(at) / names.file_of(Rank(rank))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def load(store: DirectoryStore) -> tuple[Checkpoint, Loaded] | None:
    """As a job loads it: the newest good checkpoint whose every tensor has its digest, read by all ranks."""
    for found in catalog.good(store):
        assert found.commit is not None
        if not list(catalog.verify(store, found.commit)):
            return found.checkpoint, list(_shares(store, found.commit))
    return None


def _shares(store: DirectoryStore, of: Commit) -> Iterator[tuple[Manifest, list[bytes]]]:
    for rank in range(of.world_size):
        with catalog.open_share(store, of, Rank(rank)) as file:
            yield file.manifest, [_read(file, entry) for entry in file.manifest.own()]


def _read(file: ShareFile, entry: Entry) -> bytes:
    data = bytearray(entry.size_bytes)
    file.read_into(entry, data)
    return bytes(data)


def expected(at: Checkpoint) -> Loaded:
    """What must be loaded, from what was written and from nothing that was read."""
    loaded = []
    for rank in range(WORLD):
        made, data = manifest(at, rank), share(at, rank)
        loaded.append((made, [data[each.start : each.start + each.size_bytes] for each in made.own()]))
    return loaded
