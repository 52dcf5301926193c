"""State and messages between two ranks, over real Gloo groups, whose ends are two threads of this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from everstep.types import Step
from everstep.worker.groups.exchange import FIRST_BYTES, receive_bytes, send_bytes
from everstep.worker.state.protected import Protected, tensor_digest
from everstep.worker.state.transfer import ALONE_BYTES, PARCEL_BYTES, receive, send

LIMIT = timedelta(seconds=20)
GIVER, TAKER = 0, 1


def between_two(give: Callable[[Any], Any], take: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What both ends of a new group return."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = HashStore()

    def end(rank: int) -> Any:
        group = dist.ProcessGroupGloo(store, rank, 2, LIMIT)
        return (give, take)[rank](group)

    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(end, rank) for rank in (GIVER, TAKER)]
        return ends[GIVER].result(), ends[TAKER].result()


@pytest.mark.parametrize("size", [0, 1, FIRST_BYTES - 8, FIRST_BYTES - 7, 3 * FIRST_BYTES])
def test_bytes_arrive_whatever_their_length(size: int) -> None:
    data = os.urandom(size)
    _, got = between_two(lambda group: send_bytes(group, TAKER, data), lambda group: receive_bytes(group, GIVER))
    assert got == data


def state(*, seed: int) -> Protected:
    """Tensors that travel together and such that travel alone, and those that cannot be sent from where they are."""
    torch.manual_seed(seed)
    alone = ALONE_BYTES // 4
    tensors = {
        "small": torch.randn(3),
        "nothing": torch.empty(0),
        "alone": torch.randn(alone),
        "half": torch.randn(7, dtype=torch.bfloat16),
        "more than a parcel": torch.randn(PARCEL_BYTES // 4 + 1),
        "turned": torch.randn(256, alone // 64).t(),
        "complex": torch.randn(alone, dtype=torch.complex64),
        "one": torch.tensor(seed),
        **{f"many {number}": torch.randn(alone // 2) for number in range(2 * PARCEL_BYTES // (2 * alone) + 1)},
    }
    return Protected({"model": torch.nn.Linear(2, 2), "extra": tensors})


def test_a_newcomer_is_in_the_state_of_its_donor() -> None:
    donor, newcomer = state(seed=1), state(seed=2)
    (sent, told, given), received = between_two(
        lambda group: send(group, TAKER, Step(3), donor), lambda group: receive(group, GIVER, Step(3), newcomer)
    )
    values, flat = donor.read()
    ours, others = newcomer.read()
    assert (ours, others.names) == (told, given.names) == (values, flat.names)
    for name, mine, theirs in zip(flat.names, others.tensors, flat.tensors, strict=True):
        assert torch.equal(mine, theirs), name
    came, _, live = received
    assert live.names == others.names
    assert came.size_bytes == sum(tensor.numel() * tensor.element_size() for tensor in flat.tensors)
    assert sent == came.sent == [tensor_digest(tensor) for tensor in others.tensors]
