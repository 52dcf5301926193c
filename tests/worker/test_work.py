"""Waiting for collectives that do not end: real Gloo groups, whose two ends are in this process."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from everstep.worker.groups.work import LOOK_S, outlast

LIMIT = timedelta(seconds=60)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, LIMIT), range(2)))


def test_a_collective_that_was_cut_and_does_not_end_is_left(ends: list[Any]) -> None:
    mine = ends[0].allreduce([torch.ones(2)])
    with pytest.raises(RuntimeError, match="was cut and has not ended"):
        outlast(mine, lambda: True)
    ends[1].allreduce([torch.ones(2)]).wait()  # so that the groups can be destroyed


def test_one_that_was_not_cut_is_waited_for_as_long_as_it_takes(ends: list[Any]) -> None:
    numbers = torch.ones(2)
    mine = ends[0].allreduce([numbers])
    looks = itertools.count()

    def lost() -> bool:
        if next(looks) == 2:
            ends[1].allreduce([torch.ones(2)])
        return False

    assert outlast(mine, lost)
    assert numbers.tolist() == [2, 2]


def test_a_limit_is_kept(ends: list[Any]) -> None:
    mine = ends[0].allreduce([torch.ones(2)])
    with pytest.raises(RuntimeError, match="timed out"):
        outlast(mine, lambda: False, LOOK_S * 1.5)
    ends[1].allreduce([torch.ones(2)]).wait()
