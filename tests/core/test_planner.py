"""Every decision of a recovery, each with the sentence that explains it."""

import pytest

from everstep.core import planner
from everstep.core.effects import Action
from everstep.core.events import Checkpoint, Position
from everstep.core.membership import Membership
from everstep.core.planner import Checkpoints, Held, Placement
from everstep.types import Coordinate, Generation, NodeId, Rank, Step, WorkerId, WorkerPhase

IDLE, FORWARD, BACKWARD = WorkerPhase.IDLE, WorkerPhase.FORWARD, WorkerPhase.BACKWARD
READY, COMMITTED, ENDED, HOLLOW = WorkerPhase.READY, WorkerPhase.COMMITTED, WorkerPhase.ENDED, WorkerPhase.HOLLOW
FINISH, REDO = Action.FINISH, Action.REDO
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def decide(*positions: tuple[WorkerPhase, int]) -> planner.Decision:
    return planner.decide(
        {WorkerId(worker): Position(phase, Step(version)) for worker, (phase, version) in enumerate(positions)}
    )


# ── redo step i, or finish it and go on with i + 1 ───────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("positions", "target", "actions"),
    [
        ([(FORWARD, 7), (BACKWARD, 7)], 7, [REDO, REDO]),
        ([(READY, 7), (READY, 7)], 7, [REDO, REDO]),
        ([(READY, 7), (FORWARD, 7)], 7, [REDO, REDO]),
        ([(READY, 7), (COMMITTED, 7)], 8, [FINISH, FINISH]),
        ([(READY, 7), (IDLE, 8)], 8, [FINISH, REDO]),
        ([(COMMITTED, 7), (FORWARD, 8)], 8, [FINISH, REDO]),
        ([(IDLE, 8), (BACKWARD, 8), (READY, 7)], 8, [REDO, REDO, FINISH]),
        ([(ENDED, 8), (COMMITTED, 7)], 8, [REDO, FINISH]),
        ([(IDLE, 0)], 0, [REDO]),
        ([(COMMITTED, 0)], 1, [FINISH]),
    ],
)
def test_the_target_is_the_largest_version_that_a_live_holder_reaches(
    positions: list[tuple[WorkerPhase, int]], target: int, actions: list[Action]
) -> None:
    decision = decide(*positions)
    assert decision.target == target
    assert list(decision.actions.values()) == actions
    assert not decision.unreachable


def test_a_newcomer_without_state_has_no_say() -> None:
    decision = decide((FORWARD, 7), (HOLLOW, 9))
    assert decision.target == 7
    assert list(decision.actions) == [0]


@pytest.mark.parametrize("lost", [(FORWARD, 6), (READY, 5), (BACKWARD, 6)])
def test_a_holder_that_cannot_come_to_the_target_is_named(lost: tuple[WorkerPhase, int]) -> None:
    decision = decide((IDLE, 7), lost)
    assert decision.unreachable == (1,)
    assert list(decision.actions) == [0]


def test_the_reason_can_be_read_in_a_log() -> None:
    assert decide((FORWARD, 7), (READY, 7)).reason == (
        "of 2 live holders nobody has passed the barrier of step 7: step 7 is done again"
    )
    assert decide((READY, 7), (COMMITTED, 7), (IDLE, 8)).reason == (
        "of 3 live holders 2 had passed the barrier of step 7, so its update counts: "
        "2 finish it and all go on with step 8"
    )
    assert decide((FORWARD, 7)).reason.startswith("of 1 live holder nobody")


# ── where a vacant rank goes ─────────────────────────────────────────────────────────────────────────────


def cluster(**devices: int) -> Membership:
    members = Membership()
    for node, count in devices.items():
        members.join(NodeId(node), tuple(map(str, range(count))))
    return members


def standby(members: Membership, node: NodeId) -> WorkerId:
    worker = members.add(node).id
    members.set_stage(worker, WorkerPhase.STANDBY)
    return worker


def place(members: Membership, former: NodeId | None = None) -> Placement | None:
    places = planner.place(members, [Rank(0)], {} if former is None else {Rank(0): former})
    return next(places, None)


def test_a_standby_goes_before_a_new_process() -> None:
    members = cluster(a=1, b=1)
    waiting = standby(members, B)
    assert place(members, A) == Placement(Rank(0), B, waiting, f"rank 0 goes to standby {waiting} on b")


def test_a_standby_that_has_not_registered_yet_does_not_count() -> None:
    members = cluster(a=1)
    members.add(A)
    assert place(members) == Placement(Rank(0), A, None, "rank 0 goes to a new process on a")


def test_a_standby_needs_a_free_device_on_its_node() -> None:
    members = cluster(a=0, b=1)
    standby(members, A)
    found = place(members, A)
    assert found is not None
    assert (found.node, found.standby) == (B, None)


def test_among_standbys_the_one_on_the_same_node_is_taken() -> None:
    members = cluster(a=1, b=1)
    standby(members, A)
    near = standby(members, B)
    found = place(members, B)
    assert found is not None
    assert found.standby == near


def test_a_new_process_comes_on_the_same_node() -> None:
    found = place(cluster(a=4, b=1, c=4), B)
    assert found is not None
    assert found.node == B


@pytest.mark.parametrize("warm", [False, True])
def test_a_suspect_node_comes_last(warm: bool) -> None:
    members = cluster(a=2, b=1)
    members.mark(A, trouble=True)
    if warm:
        standby(members, A)
        standby(members, B)
    found = place(members, A)
    assert found is not None
    assert found.node == B


def test_where_all_are_suspect_another_one_than_before_is_tried() -> None:
    members = cluster(a=2, b=1)
    members.mark(A, trouble=True)
    members.mark(B, trouble=True)
    found = place(members, A)
    assert found is not None
    assert found.node == B


def test_a_suspect_node_is_better_than_none() -> None:
    members = cluster(a=1)
    members.mark(A, trouble=True)
    found = place(members, A)
    assert found is not None
    assert found.node == A


def test_without_a_free_device_a_node_is_waited_for() -> None:
    assert place(cluster(a=0)) is None
    assert place(Membership()) is None


def test_many_ranks_fill_the_nodes_and_no_device_twice() -> None:
    found = list(planner.place(cluster(a=2, b=1, c=3), map(Rank, range(9)), {}))
    assert [placement.rank for placement in found] == [0, 1, 2, 3, 4, 5]
    assert sorted(placement.node for placement in found) == [A, A, B, C, C, C]


def test_standbys_are_used_up_before_new_processes() -> None:
    members = cluster(a=2, b=2)
    waiting = standby(members, A)
    found = list(planner.place(members, map(Rank, range(3)), {}))
    assert [placement.standby for placement in found] == [waiting, None, None]


def test_a_new_standby_goes_where_fewest_are() -> None:
    members = cluster(a=1, b=1)
    standby(members, A)
    assert planner.place_standby(members) == B
    members.mark(B, trouble=True)
    assert planner.place_standby(members) == A
    members.mark(A, present=False)
    assert planner.place_standby(members) == B
    assert planner.place_standby(Membership()) is None


# ── who gives the state to whom ──────────────────────────────────────────────────────────────────────────


def job(mesh_shards: int, holders: list[bool], nodes: list[NodeId] | None = None) -> Membership:
    """One worker for each rank, on its node; it holds state or is a newcomer."""
    nodes = nodes or [A] * len(holders)
    members = cluster(**dict.fromkeys(nodes, len(holders)))
    for index, (holds, node) in enumerate(zip(holders, nodes, strict=True)):
        worker = members.seat(members.add(node).id, Rank(index)).id
        members.set_stage(worker, IDLE if holds else HOLLOW)
        members.coordinates[Rank(index)] = Coordinate(*divmod(index, mesh_shards))
    return members


def newcomers(members: Membership) -> list[WorkerId]:
    return members.seated(HOLLOW)


def test_a_donor_holds_the_same_shard() -> None:
    members = job(2, [True, True, True, False])
    assert planner.donors(members, newcomers(members)) == {3: 1}


def test_newcomers_are_spread_over_donors() -> None:
    members = job(1, [True, True, True, False, False, False])
    chosen = planner.donors(members, newcomers(members))
    assert sorted(chosen.values()) == [0, 1, 2]


def test_a_donor_on_the_same_node_is_preferred_among_equals() -> None:
    members = job(1, [True, True, False], [A, B, B])
    assert planner.donors(members, newcomers(members)) == {2: 1}


def test_a_shard_is_missing_when_no_live_worker_holds_it() -> None:
    members = job(2, [True, True, True, True])
    assert planner.missing_shards(members, dict.fromkeys((WorkerId(0), WorkerId(3)))) == []
    assert planner.missing_shards(members, dict.fromkeys((WorkerId(0), WorkerId(2)))) == [1]
    assert planner.missing_shards(members, {}) == [0, 1]


# ── the ladder of checkpoints ────────────────────────────────────────────────────────────────────────────


def checkpoint(step: int, generation: int = 1) -> Checkpoint:
    return Checkpoint(Step(step), Generation(generation))


def sealed(*steps_by_rank: list[int]) -> Checkpoints:
    checkpoints = Checkpoints(len(steps_by_rank))
    for rank, steps in enumerate(steps_by_rank):
        for turn, step in enumerate(steps):
            checkpoints.seal(Rank(rank), Held(NodeId(f"n{rank}"), turn % 2, checkpoint(step)))
    return checkpoints


def test_without_any_checkpoint_there_is_none() -> None:
    assert sealed([], []).newest() is None


def test_a_memory_checkpoint_counts_when_all_ranks_have_it() -> None:
    assert sealed([10], []).newest() is None
    assert sealed([10], [10]).newest() == (checkpoint(10), "memory")
    assert sealed([10, 20], [10]).newest() == (checkpoint(10), "memory")


def test_a_rank_keeps_two_memory_checkpoints() -> None:
    assert sealed([10, 20, 30], [10]).newest() is None
    assert sealed([10, 20, 30], [10, 20]).newest() == (checkpoint(20), "memory")


def test_two_attempts_at_one_step_do_not_mix() -> None:
    checkpoints = Checkpoints(2)
    checkpoints.seal(Rank(0), Held(A, 0, checkpoint(10, 1)))
    checkpoints.seal(Rank(1), Held(B, 0, checkpoint(10, 2)))
    assert checkpoints.newest() is None


def test_what_a_slot_held_before_is_gone() -> None:
    checkpoints = sealed([10], [10])
    checkpoints.seal(Rank(1), Held(NodeId("n1"), 0, checkpoint(20)))
    assert checkpoints.newest() is None


def test_a_rank_that_has_moved_still_has_what_it_left_behind() -> None:
    checkpoints = sealed([10], [10])
    checkpoints.seal(Rank(1), Held(NodeId("n0"), 0, checkpoint(20)))
    assert checkpoints.newest() == (checkpoint(10), "memory")


def test_one_that_cannot_be_loaded_gives_way_to_the_next_older_one_of_either_tier() -> None:
    checkpoints = sealed([10, 20], [10, 20])
    checkpoints.persist(checkpoint(5))
    checkpoints.persist(checkpoint(20))
    checkpoints.discard(checkpoint(20))
    assert checkpoints.newest() == (checkpoint(10), "memory")
    checkpoints.discard(checkpoint(10))
    assert checkpoints.newest() == (checkpoint(5), "persistent")
    checkpoints.discard(checkpoint(5))
    assert checkpoints.newest() is None


def test_a_memory_checkpoint_is_gone_with_its_node() -> None:
    checkpoints = sealed([10], [10])
    checkpoints.persist(checkpoint(5))
    checkpoints.forget_node(NodeId("n1"))
    assert checkpoints.newest() == (checkpoint(5), "persistent")


def test_the_newer_of_both_tiers_is_taken_and_memory_among_equals() -> None:
    checkpoints = sealed([10], [10])
    checkpoints.persist(checkpoint(10))
    assert checkpoints.newest() == (checkpoint(10), "memory")
    checkpoints.persist(checkpoint(20))
    assert checkpoints.newest() == (checkpoint(20), "persistent")


def test_a_late_report_of_an_older_persistent_checkpoint_changes_nothing() -> None:
    checkpoints = Checkpoints(1)
    checkpoints.persist(checkpoint(20))
    checkpoints.persist(checkpoint(10))
    assert checkpoints.newest() == (checkpoint(20), "persistent")


def test_the_compact_form_of_checkpoints_comes_back_equal() -> None:
    checkpoints = sealed([10], [10, 20])
    checkpoints.persist(checkpoint(5))
    assert Checkpoints.thaw(2, checkpoints.freeze()) == checkpoints
