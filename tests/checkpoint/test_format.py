"""The files are safetensors, and stock torch reads them: nothing of ours is imported where they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tests.checkpoint.conftest import reads
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from everstep.checkpoint import files
from everstep.checkpoint.manifest import ITEM_BYTES, Entry, Manifest, arrange
from everstep.checkpoint.store import DirectoryStore
from everstep.errors import StateError
from everstep.worker.checkpoint.share import DTYPES

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process reads

WEIGHT = torch.arange(24, dtype=torch.float32).view(8, 3)
STATE = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
STEP = torch.tensor(7, dtype=torch.int64)
NARROW = torch.arange(2, dtype=torch.int8)
SHARDED = {"model.w": WEIGHT, "optimizer.m": STATE, "model.narrow": NARROW}
WHOLE = {"optimizer.step": STEP}


def entries(shard: int, shards: int) -> list[Entry]:
    """Two replicas of each shard; rows are dealt as FSDP does, so the last shards of a narrow tensor have none."""
    made = []
    for number, (key, tensor) in enumerate({**SHARDED, **WHOLE}.items()):
        rows = -(-len(tensor) // shards) if tensor.ndim else 0
        piece = tensor[shard * rows : (shard + 1) * rows] if tensor.ndim else tensor
        offsets = [min(shard * rows, len(tensor)), *[0] * (tensor.ndim - 1)] if tensor.ndim else []
        kind = next(name for name, dtype in DTYPES.items() if dtype == tensor.dtype)
        size = piece.numel() * piece.element_size()
        made.append(Entry(key, key, kind, list(piece.shape), offsets, list(tensor.shape), number % 2, 0, size))
    return arrange(made)


def write(folder: Path, shards: int) -> None:
    for rank in range(2 * shards):
        replicate, shard = divmod(rank, shards)
        manifest = Manifest(5, 1, 1, rank, 2 * shards, replicate, shard, "", entries(shard, shards), b"v")
        data = bytearray(manifest.data_bytes)
        for entry in manifest.own():
            tensor = (SHARDED | WHOLE)[entry.key]
            begin = entry.offsets[0] if entry.offsets else 0
            piece = tensor[begin : begin + entry.shape[0]] if entry.shape else tensor
            raw = piece.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            data[entry.start : entry.start + entry.size_bytes] = raw
        files.write(DirectoryStore(folder), f"rank-{rank:05d}.safetensors", manifest, reads(data))


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_torch_puts_the_shards_together(tmp_path: Path, shards: int) -> None:
    write(tmp_path, shards)
    state = {key: torch.zeros_like(tensor) for key, tensor in (SHARDED | WHOLE).items()}
    load(state, storage_reader=HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    for key, tensor in (SHARDED | WHOLE).items():
        assert torch.equal(state[key], tensor), key


def test_a_share_without_tensors_is_a_file_that_everybody_reads(tmp_path: Path) -> None:
    manifest = Manifest(5, 1, 1, 0, 1, 0, 0, "", [], b"only values")
    files.write(DirectoryStore(tmp_path), "rank-00000.safetensors", manifest, reads(b""))
    with safe_open(tmp_path / "rank-00000.safetensors", framework="pt") as file:
        assert list(file.keys()) == []
    write(tmp_path / "more", 1)
    (tmp_path / "rank-00000.safetensors").rename(tmp_path / "more" / "rank-00009.safetensors")
    state = {"optimizer.step": torch.zeros_like(STEP)}
    load(state, storage_reader=HuggingFaceStorageReader(str(tmp_path / "more")), no_dist=True)
    assert torch.equal(state["optimizer.step"], STEP)


def test_every_type_that_a_share_can_hold_is_read_by_safetensors(tmp_path: Path) -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == ITEM_BYTES
    made = arrange([Entry(kind, kind, kind, [3], [0], [3], 0, 0, 3 * size) for kind, size in ITEM_BYTES.items()])
    manifest = Manifest(5, 1, 1, 0, 1, 0, 0, "", made, b"")
    data = bytes(1 if entry.dtype == "BOOL" else 60 for entry in made for _ in range(entry.size_bytes))
    files.write(DirectoryStore(tmp_path), "x.safetensors", manifest, reads(data))
    with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        for entry in made:
            tensor = file.get_tensor(entry.key)
            assert (tensor.dtype, tensor.shape) == (DTYPES[entry.dtype], (3,))
            assert tensor.view(torch.uint8).numpy().tobytes() == data[entry.start : entry.start + entry.size_bytes]


def test_a_type_that_no_file_can_hold_is_named() -> None:
    with pytest.raises(StateError, match=r"model\.z has elements of type torch\.complex128"):
        arrange([Entry("model.z", "model.z", "torch.complex128", [2], [0], [2], 0, 0, 32)])
