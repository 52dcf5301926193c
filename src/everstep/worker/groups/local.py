"""What a collective does without peers: a newcomer builds its model while nobody else does.

Right for what constructors do with them (DDP, FSDP, meshes): all agree already, because the state that counts is
received afterwards. A broadcast keeps, a reduction is the identity, a gather finds this rank's own part everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from everstep.errors import RuleError

Arguments = tuple[Any, ...]


class LocalWork(dist.Work):
    """Done before it began."""

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._outputs = list(outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective of `torch.distributed`, by the name of its method on a process group."""

    outputs: Callable[[Arguments], list[torch.Tensor]]
    alone: Callable[[int, int, Arguments], None]
    """Rank, size, arguments: write the outputs as if all the others had this rank's inputs."""
    shared: bool = True
    """Every rank has the same result, so any of them can give it to a newcomer."""


def _first(arguments: Arguments) -> list[torch.Tensor]:
    return list(_flat(arguments[0]))


def _flat(nested: Any) -> Iterable[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        yield nested
    elif nested is not None:
        for item in nested:
            yield from _flat(item)


def _nothing(_: Arguments) -> list[torch.Tensor]:
    return []


def _keep(rank: int, size: int, arguments: Arguments) -> None:
    pass


def _everywhere(rank: int, size: int, arguments: Arguments) -> None:
    """allgather(outputs[i][rank], inputs[i])"""
    outputs, inputs = arguments[:2]
    for places, own in zip(outputs, inputs, strict=True):
        for place in places:
            place.copy_(own)


def _everywhere_by_rank(rank: int, size: int, arguments: Arguments) -> None:
    """allgather_coalesced(outputs[rank][i], inputs[i])"""
    outputs, inputs = arguments[:2]
    for places in outputs:
        for place, own in zip(places, inputs, strict=True):
            place.copy_(own)


def _tile(rank: int, size: int, arguments: Arguments) -> None:
    """One output tensor with a part for each rank; or several of both."""
    for output, own in zip(_flat(arguments[0]), _flat(arguments[1]), strict=True):
        output.view(size, -1).copy_(own.reshape(1, -1).expand(size, -1))


def _own_part(rank: int, size: int, arguments: Arguments) -> None:
    for output, every in zip(_flat(arguments[0]), _flat(arguments[1]), strict=True):
        output.view(-1).copy_(every.reshape(size, -1)[rank])


def _own_of_list(rank: int, size: int, arguments: Arguments) -> None:
    """scatter and reduce_scatter: a list of inputs for each output; not given where another rank is the root."""
    outputs, inputs = arguments[:2]
    for output, parts in zip(outputs, inputs, strict=False):
        output.copy_(parts[rank])


def _gather(rank: int, size: int, arguments: Arguments) -> None:
    outputs, inputs = arguments[:2]
    for places, own in zip(outputs, inputs, strict=False):
        for place in places:
            place.copy_(own)


def _exchange(rank: int, size: int, arguments: Arguments) -> None:
    for output, own in zip(_flat(arguments[0]), _flat(arguments[1]), strict=True):
        if output.shape == own.shape:
            output.copy_(own)


def _refuse(rank: int, size: int, arguments: Arguments) -> None:
    raise RuleError(
        "a point-to-point receive before protect(): a replacement builds its objects alone, and nobody would send; "
        "move it behind protect(), or use a broadcast"
    )


OPERATIONS = {
    "allreduce": Operation(_first, _keep),
    "allreduce_coalesced": Operation(_first, _keep),
    "broadcast": Operation(_first, _keep),
    "reduce": Operation(_first, _keep, shared=False),
    "allgather": Operation(_first, _everywhere),
    "allgather_coalesced": Operation(_first, _everywhere_by_rank),
    "_allgather_base": Operation(_first, _tile),
    "all_gather_single": Operation(_first, _tile),
    "allgather_into_tensor_coalesced": Operation(_first, _tile),
    "all_gather_single_coalesced": Operation(_first, _tile),
    "gather": Operation(_first, _gather, shared=False),
    "scatter": Operation(_first, _own_of_list, shared=False),
    "reduce_scatter": Operation(_first, _own_of_list, shared=False),
    "_reduce_scatter_base": Operation(_first, _own_part, shared=False),
    "reduce_scatter_single": Operation(_first, _own_part, shared=False),
    "reduce_scatter_tensor_coalesced": Operation(_first, _own_part, shared=False),
    "reduce_scatter_single_coalesced": Operation(_first, _own_part, shared=False),
    "alltoall_base": Operation(_first, _exchange, shared=False),
    "all_to_all_single": Operation(_first, _exchange, shared=False),
    "alltoall": Operation(_first, _exchange, shared=False),
    "send": Operation(_nothing, _keep, shared=False),
    "recv": Operation(_first, _refuse, shared=False),
    "recv_anysource": Operation(_first, _refuse, shared=False),
    "barrier": Operation(_nothing, _keep),
}
"""Every operation that a process group of torch 2.13 has. What is not here is refused by name."""
