"""Sharded modules (FSDP2, and `replicate` which is built on it): as at the start of a step after one was cut off.

It knows `fully_shard`. Parameters may be unsharded, gathers under way, gradients half reduced.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


class ShardedModules:
    """All FSDP modules among these and inside them."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._modules = [inner for root in modules for inner in root.modules() if isinstance(inner, FSDPModule)]

    def reshard(self) -> None:
        """Between two steps: the parameters are the sharded ones, whatever the script keeps unsharded."""
        for module in self._modules:
            module.reshard()

    def drop(self) -> None:
        """Every collective has ended, most in error: forget them and all that belonged to the step."""
        for module in self._modules:
            state = module._get_fsdp_state()
            for group in state._fsdp_param_groups:
                group._all_gather_result = None  # its work has failed, and to wait for it would raise
                for parameter in group.fsdp_params:
                    _drop_gradients(parameter)
            state._comm_ctx.reduce_scatter_states.clear()
        for module in self._modules:
            if module._get_fsdp_state()._is_root:
                module.reset_iter_state()
        self.reshard()


def _drop_gradients(parameter: FSDPParam) -> None:
    """Of the unsharded parameter: those that were not reduced yet. `reset_iter_state` keeps them, and the next Backward
    would add to them."""
    parameter.unsharded_accumulated_grad = None
    if hasattr(parameter, "_unsharded_param"):  # from its first Forward on
        parameter._unsharded_param.grad = None
