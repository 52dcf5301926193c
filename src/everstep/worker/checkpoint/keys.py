"""The names that torch.distributed.checkpoint gives to the protected tensors, so that its readers find them.

A parameter is ``model.<fqn>``, the state of an optimizer ``optimizer.state.<fqn>.<name>``; ``model`` and ``optimizer``
are the names in protect(). What wraps a module leaves no trace: the same key in a plain model, in DDP and in FSDP.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.parallel import DistributedDataParallel

from everstep.worker.state.parts import OptimizerPart
from everstep.worker.state.protected import Protected
from everstep.worker.state.tree import Flat

_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")
"""Where torch.compile and the wrapper for activation checkpoints keep the module itself."""


def keys_of(state: Protected, flat: Flat) -> list[str]:
    """For each tensor of ``flat`` a key of its own."""
    known = {name: key for part in state.modules for name, key in _module_keys(part.name, part.module)}
    paths = parameter_paths(state)
    for optimizer in state.optimizers:
        known.update({stray: f"{optimizer.name}.{paths[id(it)]}" for stray, it in optimizer.strays.items()})
        known.update(_state_keys(optimizer, paths))
    given: set[str] = set()
    keys = []
    for number, name in enumerate(flat.names):
        key = known.get(name, name)
        if key in given:  # names are for people: the members of a set have the same one
            key = f"{key}#{number}"
        given.add(key)
        keys.append(key)
    return keys


def parameter_paths(state: Protected) -> dict[int, str]:
    """The fully qualified name of each parameter, by its id, without the name of its model."""
    paths: dict[int, str] = {}
    for part in state.modules:
        for name, parameter in part.module.named_parameters():
            paths.setdefault(id(parameter), _plain(part.module, name))
    for optimizer in state.optimizers:
        for number, parameter in enumerate(optimizer.parameters()):
            paths.setdefault(id(parameter), f"parameter.{number}")
    return paths


def _module_keys(name: str, module: torch.nn.Module) -> list[tuple[str, str]]:
    members = (*module.named_parameters(), *module.named_buffers())
    return [(f"{name}.{path}", f"{name}.{_plain(module, path)}") for path, _ in members]


def _state_keys(part: OptimizerPart, paths: Mapping[int, str]) -> dict[str, str]:
    """`Protected` counts the parameters of an optimizer; DCP calls them by name."""
    keys = {}
    for number, parameter in enumerate(part.parameters()):
        for entry in part.optimizer.state.get(parameter, {}):
            keys[f"{part.name}.state[{number}][{entry!r}]"] = f"{part.name}.state.{paths[id(parameter)]}.{entry}"
    return keys


def _plain(module: torch.nn.Module, path: str) -> str:
    """The path without the places where wrappers keep what they wrap."""
    kept: list[str] = []
    at: torch.nn.Module | None = module
    for step in path.split("."):
        wrapper = step in _WRAPPED or (step == "module" and isinstance(at, DistributedDataParallel))
        if not wrapper:
            kept.append(step)
        at = None if at is None else at._modules.get(step)
    return ".".join(kept)
