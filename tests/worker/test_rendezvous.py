"""How the members of a group meet, without a network: what one publishes arrives at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import Store

from everstep.errors import RuleError
from everstep.types import Generation
from everstep.worker.groups.nccl import UniqueId
from everstep.worker.groups.rendezvous import MeetingStore, Rendezvous

SIZE = 3


@pytest.fixture
def meetings() -> list[MeetingStore]:
    """Of the members of one group."""
    rows: dict[str, dict[int, bytes]] = {}

    def publish(generation: Generation, key: str, rank: int, size: int, address: bytes) -> None:
        known = rows.setdefault(key, {})
        known[rank] = address
        if len(known) == size:
            for each in members:
                each.arrive(generation, key, [known[member] for member in range(size)])

    members = [Rendezvous(publish) for _ in range(SIZE)]
    return [member.store(Generation(1), "all", SIZE) for member in members]


ID = "made by the first"


def meet(stores: list[Store], key: str) -> list[str]:
    def one(rank: int) -> str:
        if rank:
            return stores[rank].get(key).decode()
        stores[rank].set(key, ID)
        return ID

    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(one, range(SIZE)))


def test_the_first_member_of_a_group_gives_the_others_its_id(meetings: list[MeetingStore]) -> None:
    ids: list[Store] = [UniqueId(meeting, rank) for rank, meeting in enumerate(meetings)]
    assert meet(ids, "0") == SIZE * [ID]


def test_an_address_of_another_kind_does_not_mix_with_the_first(meetings: list[MeetingStore]) -> None:
    ids: list[Store] = [UniqueId(meeting.beside("nccl"), rank) for rank, meeting in enumerate(meetings)]
    for rank, meeting in enumerate(meetings):
        meeting.set(f"gloo/{rank}", str(rank))
    assert meet(ids, "0") == SIZE * [ID]
    assert [meetings[0].get(f"gloo/{rank}") for rank in range(SIZE)] == [b"0", b"1", b"2"]


def test_a_second_communicator_in_a_group_is_refused(meetings: list[MeetingStore]) -> None:
    store = UniqueId(meetings[0], 0)
    store.set("0", "id")
    with pytest.raises(RuleError, match="one more communicator \\('0:1'\\)"):
        store.set("0:1", "id")
