"""How large the share of a rank will be, before its optimizer has any state."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterator

import torch

from everstep.worker.checkpoint.share import divide
from everstep.worker.state.parts import OptimizerPart
from everstep.worker.state.protected import Protected
from everstep.worker.state.sharded import local

MARGIN_BYTES = 1 << 20
"""For the list of the tensors, and for what grows a little: schedulers, settings."""
ENTRY_BYTES = 512
"""Of a tensor in that list, with its names."""


def share_bytes(state: Protected, private: bytes, replicas: int) -> int:
    """What a slot has to hold for the largest share of this rank's shard."""
    values, flat = state.read()
    sizes = [tensor.numel() * tensor.element_size() for tensor in flat.tensors]
    for part in state.optimizers:
        if not part.optimizer.state:
            sizes += _state_sizes(part)
    owners = divide(sizes, replicas)
    loads = [0] * replicas
    for size, owner in zip(sizes, owners, strict=True):
        loads[owner] += size
    return max(loads) + 2 * (len(values) + len(private)) + len(sizes) * ENTRY_BYTES + MARGIN_BYTES


def _state_sizes(part: OptimizerPart) -> list[int]:
    """Of the tensors that its first step will make. An optimizer that is not torch's own may do anything in a step, so
    it is not tried: then two for each parameter, as Adam has."""
    if type(part.optimizer).__module__.startswith("torch.optim"):
        try:
            return [tensor.numel() * tensor.element_size() for tensor in _dry_run(part.optimizer)]
        except (RuntimeError, NotImplementedError, TypeError, KeyError, AttributeError):
            pass  # it computes with something that has no values here
    return [local(parameter).numel() * parameter.element_size() for parameter in part.parameters()] * 2


def _dry_run(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The state after one step of a copy of it, whose tensors have shapes and no memory."""
    twin = copy.copy(optimizer)
    twin.state = defaultdict(dict)
    twin.param_groups = [
        {
            **copy.deepcopy({key: value for key, value in group.items() if key != "params"}),
            **{key: False for key in ("foreach", "fused") if key in group},
            "params": [_hollow(parameter) for parameter in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    twin._optimizer_step_pre_hooks, twin._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    with torch.no_grad():
        inspect.unwrap(type(twin).step)(twin)
    for state in twin.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _hollow(parameter: torch.Tensor) -> torch.Tensor:
    twin = torch.empty_like(local(parameter), device="meta")
    if parameter.requires_grad:
        twin.grad = torch.empty_like(twin)
    return twin
