"""How the model of a `Recipe` is spread over the ranks, in plain torch: replicas, shards, or shards with replicas."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from everstep.chaos.exact.models import MLP, ConvNet, SmallGPT
from everstep.chaos.exact.recipe import Recipe

BACKEND = "aot_eager"
"""Of torch.compile: all of its front, without the minutes that a C++ compiler takes."""


@dataclass(slots=True)
class Spread:
    """A model on this rank."""

    model: nn.Module
    """What the script calls."""
    module: nn.Module
    """What has the parameters, by the names of the model."""
    part: int
    """Which part of the data it computes on. Ranks of one tensor-parallel row have the same."""

    def synchronized(self, wanted: bool) -> AbstractContextManager[None]:
        """Whether the Backward inside reduces gradients."""
        if isinstance(self.model, DistributedDataParallel):
            return nullcontext() if wanted else self.model.no_sync()
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(wanted)
        return nullcontext()


def spread(recipe: Recipe, rank: int) -> Spread:
    """Make the model and spread it."""
    with torch.device("meta") if recipe.meta else nullcontext():
        module = make(recipe)
    if not recipe.sharded:
        ddp = DistributedDataParallel(_recomputed(module, recipe), **_ddp_options(recipe))
        return Spread(_compiled(ddp, recipe), module, rank)
    world = dist.get_world_size()
    row = recipe.row(world)
    mesh = init_device_mesh("cpu", (world // row, row), mesh_dim_names=("replica", "shard"))
    if recipe.fully_sharded:
        _fully_shard(_recomputed(module, recipe), recipe, mesh if recipe.parallel == "hsdp" else mesh["shard"])
        if recipe.meta:
            _fill(module, mesh.get_local_rank("shard"))
        return Spread(_compiled(module, recipe), module, rank)
    assert isinstance(module, MLP)
    parallelize_module(module, mesh["shard"], _plan(module))
    _recomputed(module, recipe)
    if recipe.parallel == "tp-dp":
        replicate(module, mesh=mesh["replica"])
    return Spread(_compiled(module, recipe), module, mesh.get_local_rank("replica"))


def make(recipe: Recipe) -> nn.Module:
    if recipe.model == "mlp":
        return MLP(backwards=recipe.backwards, frozen=recipe.frozen, branch=recipe.find_unused)
    return ConvNet(frozen=recipe.frozen) if recipe.model == "conv" else SmallGPT(frozen=recipe.frozen)


def _ddp_options(recipe: Recipe) -> dict[str, Any]:
    options: dict[str, Any] = {
        "find_unused_parameters": recipe.find_unused,
        "static_graph": recipe.static_graph,
        "gradient_as_bucket_view": recipe.bucket_view,
        "bucket_cap_mb": recipe.bucket_cap or None,
    }
    if recipe.no_broadcast_buffers:
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        options["broadcast_buffers"] = False
    return options


def _blocks(module: nn.Module) -> nn.Sequential | nn.ModuleList:
    """The layers that are wrapped one by one, inside a wrapper of all."""
    blocks = module.layers if isinstance(module, MLP) else module.blocks
    assert isinstance(blocks, nn.Sequential | nn.ModuleList)
    return blocks


def _recomputed(module: nn.Module, recipe: Recipe) -> nn.Module:
    if recipe.recompute:
        blocks = _blocks(module)
        for number, block in enumerate(blocks):
            blocks[number] = checkpoint_wrapper(block)
    return module


def _fully_shard(module: nn.Module, recipe: Recipe, mesh: Any) -> None:
    options: dict[str, Any] = {"mesh": mesh}
    if recipe.mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if recipe.reshard:
        options["reshard_after_forward"] = recipe.reshard == "on"
    for block in _blocks(module):
        fully_shard(block, **options)
    fully_shard(module, **options)


def _fill(module: nn.Module, shard: int) -> None:
    """Memory and numbers for a model that was made without: each shard its own, each replica the same."""
    module.to_empty(device="cpu")
    if isinstance(module, SmallGPT):
        module.head.weight = module.embedding.weight  # `to_empty` has torn them apart
    random = torch.Generator().manual_seed(shard)
    for parameter in module.parameters():
        assert isinstance(parameter, DTensor)
        parameter.to_local().detach().normal_(0, 0.1, generator=random)


def _plan(module: MLP) -> dict[str, Any]:
    """Columns, then rows, in the order of use; the last layer gives all of its output to all."""
    layers = {
        f"layers.{number}": RowwiseParallel() if place % 2 else ColwiseParallel()
        for place, number in enumerate(module.order)
    }
    return {**layers, "head": ColwiseParallel(output_layouts=Replicate())}


def _compiled(model: nn.Module, recipe: Recipe) -> Any:
    if recipe.compile == "whole":
        return torch.compile(model, backend=BACKEND)
    if recipe.compile == "blocks":
        for block in _blocks(model):
            block.compile(backend=BACKEND)
    return model
