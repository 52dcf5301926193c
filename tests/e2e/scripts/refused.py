"""What protect() refuses of DistributedDataParallel and of optimizers, one after the other."""

from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel

import everstep

job = everstep.init()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def refused(model: nn.Module, optimizer: Any = None, **more: Any) -> None:
    try:
        job.protect(model=model, optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.1), **more)
    except everstep.EverstepError as error:
        print(f"refused: {error}")
    else:
        raise AssertionError("it was not refused")


hooked = DistributedDataParallel(net())
hooked.register_comm_hook(PowerSGDState(None), powerSGD_hook)
refused(hooked)
updating = net()
_apply_optimizer_in_backward(torch.optim.SGD, updating.parameters(), {"lr": 0.1})
refused(DistributedDataParallel(updating))
frozen = DistributedDataParallel(net())
frozen.module[0].requires_grad_(False)
refused(frozen)
model = DistributedDataParallel(net())
refused(model, torch.optim.LBFGS(model.parameters()))
refused(model, rng="never")
refused(model, extra=1)
refused(model, {"an": torch.ones(1)})
