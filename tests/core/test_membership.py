"""Nodes, devices, workers and ranks are counted right, whatever the order in which they come and go."""

import pytest

from everstep.core.membership import Membership, Worker
from everstep.types import Coordinate, NodeId, Rank, WorkerId, WorkerPhase

A, B = NodeId("a"), NodeId("b")


@pytest.fixture
def members() -> Membership:
    members = Membership()
    members.join(A, ("0", "1"))
    members.join(B, ("0",))
    return members


def seat(members: Membership, node: NodeId, rank: int) -> Worker:
    return members.seat(members.add(node).id, Rank(rank))


def test_a_worker_id_is_never_used_again(members: Membership) -> None:
    first = members.add(A).id
    members.remove(first, device_usable=True)
    assert members.add(A).id != first


def test_a_worker_without_a_rank_uses_no_device(members: Membership) -> None:
    worker = members.add(A)
    assert not worker.device
    assert list(members.pool) == [worker.id]
    assert members.nodes[A].free == ("0", "1")


def test_a_rank_comes_with_a_device_of_the_node(members: Membership) -> None:
    worker = seat(members, A, 0)
    assert (worker.rank, worker.device) == (0, "0")
    assert members.nodes[A].free == ("1",)
    assert not members.pool
    assert members.is_seated(worker)


def test_a_standby_that_gets_a_rank_builds(members: Membership) -> None:
    standby = members.add(A).id
    members.set_stage(standby, WorkerPhase.STANDBY)
    assert members.seat(standby, Rank(0)).stage is WorkerPhase.BUILDING


def test_a_node_is_open_while_it_has_a_free_device_and_is_there(members: Membership) -> None:
    worker = seat(members, B, 0).id
    assert list(members.open_nodes) == [A]
    members.mark(A, present=False)
    assert not members.open_nodes
    members.mark(A, present=True)
    members.unseat(worker)
    members.remove(worker, device_usable=True)
    assert sorted(members.open_nodes) == [A, B]


def test_a_rank_is_vacant_before_its_device_is_free(members: Membership) -> None:
    worker = seat(members, B, 0).id
    members.unseat(worker)
    assert members.vacancies(1) == [0]
    assert worker in members.leaving
    assert members.nodes[B].free == ()
    members.remove(worker, device_usable=True)
    assert not members.leaving
    assert members.nodes[B].free == ("0",)


def test_a_sick_device_is_not_used_again_even_after_its_node_came_back(members: Membership) -> None:
    worker = seat(members, A, 0).id
    members.unseat(worker)
    members.remove(worker, device_usable=False)
    assert members.nodes[A].free == ("1",)
    members.leave(A)
    members.join(A, ("0", "1"))
    assert members.nodes[A].free == ("1",)


def test_a_device_is_taken_out_and_its_user_named(members: Membership) -> None:
    worker = seat(members, A, 0).id
    assert members.take_out(A, "0") == worker
    assert members.take_out(A, "1") is None
    assert A not in members.open_nodes


def test_a_node_that_leaves_names_who_ran_there(members: Membership) -> None:
    here, there = seat(members, A, 0).id, seat(members, B, 1).id
    assert members.leave(A) == {here}
    members.unseat(here)
    members.remove(here, device_usable=True)
    assert A not in members.nodes
    assert list(members.workers) == [there]


def test_a_replaced_worker_does_not_unseat_its_replacement(members: Membership) -> None:
    old = seat(members, A, 0).id
    members.unseat(old)
    new = seat(members, A, 0).id
    members.unseat(old)
    assert members.seats == {0: new}


def test_workers_are_listed_by_rank_and_stage(members: Membership) -> None:
    one, zero = seat(members, A, 1).id, seat(members, B, 0).id
    members.set_stage(one, WorkerPhase.IDLE)
    assert members.seated() == [zero, one]
    assert members.seated(WorkerPhase.IDLE) == [one]


def test_a_node_with_troubles_or_unknown_is_suspect(members: Membership) -> None:
    members.mark(A, trouble=True)
    assert members.suspect(A)
    assert not members.suspect(B)
    assert members.suspect(NodeId("never seen"))


def test_the_compact_form_comes_back_equal(members: Membership) -> None:
    seat(members, A, 0)
    members.add(B)
    members.coordinates[Rank(0)] = Coordinate(0, 0)
    copy = Membership.thaw(members.freeze())
    assert copy == members
    copy.unseat(WorkerId(0))
    assert members.seats
