"""Sharded tensors: this rank's piece of one, what it is a piece of, and the same again on a replacement.

It knows DTensor and meshes. A mesh is named by its ranks and dimensions, because a replacement has built the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from everstep.errors import StateError


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that this rank has of it."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def mesh_name(mesh: DeviceMesh) -> str:
    return f"{mesh.mesh.tolist()} {mesh.mesh_dim_names}"


def describe(tensor: DTensor) -> list[Any]:
    """All that is needed to make it again, beside its local part."""
    return [mesh_name(tensor.device_mesh), repr(tensor.placements), list(tensor.shape), list(tensor.stride())]


class Meshes:
    """Those of the protected parameters, with the placements on them, by name."""

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._known = {
            (mesh_name(tensor.device_mesh), repr(tensor.placements)): (tensor.device_mesh, tensor.placements)
            for tensor in tensors
            if isinstance(tensor, DTensor)
        }

    def make(self, description: list[Any], part: torch.Tensor) -> DTensor:
        """The sharded tensor of which this is the local part."""
        name, placed, shape, stride = description
        if (name, placed) not in self._known:
            raise StateError(f"a tensor with placements {placed} on mesh {name}: no protected parameter has such")
        mesh, placements = self._known[name, placed]
        size = torch.Size(shape)
        return DTensor.from_local(part, mesh, placements, run_check=False, shape=size, stride=tuple(stride))


def pieces(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[str]:
    """Which pieces this rank has: equal on exactly those ranks that are replicas of each other."""
    for name, tensor in tensors:
        if isinstance(tensor, DTensor):
            where: Sequence[int] = tensor.device_mesh.get_coordinate() or ()
            held = [
                (dimension, place)
                for dimension, (place, placement) in enumerate(zip(where, tensor.placements, strict=False))
                if not placement.is_replicate()
            ]
            yield f"{name} {mesh_shape(tensor.device_mesh)} {held}"


def mesh_shape(mesh: DeviceMesh) -> str:
    """Equal on all ranks of a job, also where each has another slice of a larger mesh."""
    return f"{tuple(mesh.mesh.shape)} {mesh.mesh_dim_names}"


def layout_of(tensor: torch.Tensor) -> str:
    """For people, and to be compared."""
    if not isinstance(tensor, DTensor):
        return f"{tuple(tensor.shape)} {tensor.dtype}, stride {tuple(tensor.stride())}"
    where = f"{tensor.placements} on {mesh_shape(tensor.device_mesh)}"
    return f"{tuple(tensor.shape)} {tensor.dtype}, {where}, here {tuple(local(tensor).shape)}"
