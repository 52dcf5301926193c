"""Waiting for collectives that do not end: real Gloo groups, whose two ends are in this process."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from everstep.types import Generation
from everstep.worker.groups.gloo import GlooSeam
from everstep.worker.groups.rendezvous import Rendezvous
from everstep.worker.groups.seam import Plan
from everstep.worker.groups.work import LOOK_S, Promise, outlast
from everstep.worker.groups.world import World

LIMIT = timedelta(seconds=60)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return pair()


def pair() -> list[Any]:
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, LIMIT), range(2)))


def test_a_collective_that_was_cut_and_does_not_end_is_left(ends: list[Any]) -> None:
    mine = ends[0].allreduce([torch.ones(2)])
    with pytest.raises(RuntimeError, match="was cut and has not ended"):
        outlast(mine, "allreduce", lambda: True)
    ends[1].allreduce([torch.ones(2)]).wait()  # so that the groups can be destroyed


def test_one_that_was_not_cut_is_waited_for_as_long_as_it_takes(ends: list[Any]) -> None:
    numbers = torch.ones(2)
    mine = ends[0].allreduce([numbers])
    looks = itertools.count()

    def lost() -> bool:
        if next(looks) == 2:
            ends[1].allreduce([torch.ones(2)])
        return False

    assert outlast(mine, "allreduce", lost)
    assert numbers.tolist() == [2, 2]


def test_a_limit_is_kept(ends: list[Any]) -> None:
    mine = ends[0].allreduce([torch.ones(2)])
    with pytest.raises(RuntimeError, match="timed out"):
        outlast(mine, "allreduce", lambda: False, LOOK_S * 1.5)
    ends[1].allreduce([torch.ones(2)]).wait()


def test_a_message_that_was_cut_and_does_not_end_is_left(ends: list[Any]) -> None:
    """As when its receiver dies in the midst of it: Gloo itself would wait for its timeout."""
    data = torch.ones(1 << 24)
    sent = ends[0].send([data], 1, 0)
    with pytest.raises(RuntimeError, match="was cut and has not ended"):
        outlast(sent, "send", lambda: True)
    ends[1].recv([data], 0, 0).wait()


def test_a_message_that_was_not_cut_is_waited_for(ends: list[Any]) -> None:
    taken = torch.zeros(3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(outlast, ends[1].recv([taken], 0, 0), "recv", lambda: False)
        ends[0].send([torch.ones(3)], 1, 0).wait()
        assert waiting.result()
    assert taken.tolist() == [1, 1, 1]


def test_a_promise_is_kept_with_what_the_work_gives(ends: list[Any]) -> None:
    mine, theirs = [end.allreduce([torch.ones(2)]) for end in ends]
    promise = Promise(mine.get_future(), "allreduce")
    (numbers,) = promise.future.wait()
    promise.give_up()
    assert numbers.tolist() == promise.future.value()[0].tolist() == [2, 2]
    theirs.wait()


def test_a_promise_that_is_given_up_is_an_error(ends: list[Any]) -> None:
    promise = Promise(ends[0].allreduce([torch.ones(2)]).get_future(), "allreduce")
    assert not promise.future.done()
    promise.give_up()
    with pytest.raises(RuntimeError, match="allreduce was cut and has not ended"):
        promise.future.wait()
    ends[1].allreduce([torch.ones(2)]).wait()  # what the work says then comes too late


def test_gloo_is_quiet_when_it_only_waits(ends: list[Any]) -> None:
    seam = GlooSeam()
    data = [torch.ones(1 << 24), torch.ones(1 << 24)]
    waits = ends[0].allreduce([data[0]])
    while not seam.quiet():
        assert not waits.is_completed()
    goes_on = ends[1].allreduce([data[1]])
    looks = [seam.quiet() for _ in iter(goes_on.is_completed, True)]
    assert not all(looks)
    waits.wait()


def test_what_has_not_ended_when_gloo_is_quiet_never_does() -> None:
    """In a process of its own, which leaves behind what cannot be ended."""
    script = subprocess.run(
        [sys.executable, __file__], env={"GLOO_SOCKET_IFNAME": "lo"}, capture_output=True, text=True, check=False
    )
    assert script.stdout == "as it was\n", script.stderr


def cut_again_and_again(rounds: int = 12) -> None:
    groups, tensors, left, ended = [], [], [], 0
    for number in range(rounds):
        two = pair()
        data = [torch.ones(1 << 22) for _ in range(12)]
        works = [two[index % 2].allreduce([tensor]) for index, tensor in enumerate(data)]
        groups.append(two)
        tensors.append(data)
        while number % 3 and not works[number % 3].is_completed():
            """Let some of them be in the midst, and some behind it."""
        cut_everything()
        while not GlooSeam().quiet():
            """As long as it takes."""
        left += [work for work in works if not work.is_completed()]
        ended += sum(work.is_completed() for work in works)
    assert ended
    sys.stdout.write("as it was\n" if not any(work.is_completed() for work in left) else "ended later\n")
    sys.stdout.flush()
    os._exit(0)


def cut_everything() -> None:
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_ESTABLISHED:
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as copy:
                copy.shutdown(socket.SHUT_RDWR)


class Forgetful(GlooSeam):
    """Its cut reaches no connection, so what is under way then waits for ever: what Gloo does with some messages."""

    def cut(self, rows: object) -> int:
        return 0


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> tuple[World, dist.ProcessGroup]:
    """Of a job with two ranks the world of the first, and the end of the other one."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    rows: dict[int, bytes] = {}

    def publish(generation: Generation, key: str, rank: int, _: int, address: bytes) -> None:
        rows[rank] = address
        if len(rows) == 2:
            for each in (world.rendezvous, other):
                each.arrive(generation, key, [rows[0], rows[1]])

    world, other = World(Forgetful(), publish), Rendezvous(publish)
    plan = Plan("pair", Generation(0), 1, 2, LIMIT.total_seconds())
    with ThreadPoolExecutor(1) as pool:
        peer = pool.submit(GlooSeam().make, plan, other.store(Generation(0), "pair", 2))
        world.create("pair", 0, 2, LIMIT)
    world.recording = False  # as from protect() on
    return world, peer.result()


def test_who_waits_for_the_future_of_a_lost_work_is_told(forgetful: tuple[World, dist.ProcessGroup]) -> None:
    """As DDP does, in C++, where nothing of ours looks whether the group was cut."""
    world, peer = forgetful
    future = world.groups["pair"].allreduce([torch.ones(2)]).get_future()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(future.wait)
        world.cut(Generation(1))
        with pytest.raises(RuntimeError, match="was cut and has not ended"):
            waiting.result()
    world.settle()
    assert "was cut and has not ended" in world.failure
    peer.allreduce([torch.ones(2)]).wait()


if __name__ == "__main__":
    cut_again_and_again()
