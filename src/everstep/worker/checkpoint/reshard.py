"""A checkpoint of another world size or mesh, read into the objects as they are cut now.

torch.distributed.checkpoint does the cutting; the files are such that its own reader understands them. What is no
tensor comes from the share of rank 0. What each rank had for itself has no owner any more and is left out.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from everstep.checkpoint.catalog import open_share
from everstep.checkpoint.commit import Commit
from everstep.checkpoint.manifest import Entry
from everstep.checkpoint.store import Store
from everstep.errors import CheckpointError
from everstep.types import Rank
from everstep.worker.checkpoint.keys import keys_of, parameter_paths
from everstep.worker.checkpoint.share import DTYPES
from everstep.worker.state.protected import Protected
from everstep.worker.state.sharded import Meshes
from everstep.worker.state.tree import Found, decode


class Resharding:
    def __init__(self, state: Protected, store: Store, commit: Commit) -> None:
        self._state = state
        self._store = store
        self._commit = commit

    def verify(self, rank: int, ranks: int) -> None:
        """Each rank reads some of the files whole; together they read all."""
        for saved in range(rank, self._commit.world_size, ranks):
            with open_share(self._store, self._commit, Rank(saved)) as share:
                share.verify()

    def load(self) -> int:
        """Be in that state. How many bytes of tensors this rank has of it."""
        with open_share(self._store, self._commit, Rank(0)) as share:
            manifest = share.manifest
        targets = self._targets(manifest.entries)
        wanted = {entry.key: target for entry, target in zip(manifest.entries, targets, strict=True) if target.numel()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # each reads for itself
            load(
                wanted, storage_reader=HuggingFaceStorageReader(f"{self._where}/{self._commit.directory}"), no_dist=True
            )
        saved = decode(manifest.values)
        if len(saved) != len(self._state.parts):
            raise CheckpointError(f"it has {len(saved)} objects, and protect() was given {len(self._state.parts)}")
        found = Found(targets, _AsTheyAre())
        for part, plain in zip(self._state.parts, saved, strict=True):
            part.put(plain, found)
        return sum(_local_bytes(target) for target in targets)

    def _targets(self, entries: list[Entry]) -> list[torch.Tensor]:
        """For each tensor that was saved what it is read into: the live one, or one cut like its parameter."""
        _, flat = self._state.read()
        live = dict(zip(keys_of(self._state, flat), flat.wholes, strict=True))
        saved = {entry.key for entry in entries}
        places = {name for part in self._state.parts for name in part.places()}
        for key, name in zip(live, flat.names, strict=True):
            if name in places and key not in saved:
                raise CheckpointError(f"{key} is not in it")
        paths = parameter_paths(self._state)
        parameters = {
            f"{part.name}.state.{paths[id(parameter)]}": parameter
            for part in self._state.optimizers
            for parameter in part.parameters()
        }
        return [_target(entry, live.get(entry.key), parameters.get(entry.key.rpartition(".")[0])) for entry in entries]

    @property
    def _where(self) -> Path:
        return Path(self._store.where)


def _target(entry: Entry, live: torch.Tensor | None, parameter: torch.Tensor | None) -> torch.Tensor:
    dtype = DTYPES[entry.dtype]
    if live is not None and (list(live.shape), live.dtype) == (entry.whole, dtype):
        return live.detach()
    if live is not None and parameter is None:
        here = f"{tuple(live.shape)} {live.dtype}"
        raise CheckpointError(f"{entry.key} is {tuple(entry.whole)} {dtype} in it and {here} in this script")
    if parameter is not None and list(parameter.shape) == entry.whole:
        return torch.zeros_like(parameter.detach(), dtype=dtype)
    return torch.zeros(entry.whole, dtype=dtype, device=entry.device)


class _AsTheyAre(Meshes):
    """The targets are cut as they have to be already."""

    def make(self, description: list[object], part: torch.Tensor) -> DTensor:
        return part  # type: ignore[return-value]  # a DTensor, or a whole one where nothing is cut any more


def _local_bytes(tensor: torch.Tensor) -> int:
    piece = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return piece.numel() * piece.element_size()
