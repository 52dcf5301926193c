"""One worker: what its main thread may do, what a command does to it, and who wins when both come at once (I5)."""

import pytest

from everstep.core.effects import Action, Assign, Command, Donate, Release, Reset, Restore, Resume, Role, Settle, Stop
from everstep.core.events import (
    Broken,
    Checkpoint,
    Committed,
    Connected,
    Ended,
    Position,
    Protected,
    Registered,
    Restored,
    Settled,
    Stopped,
)
from everstep.core.worker import Do, Move, Out, WorkerMachine
from everstep.errors import InvalidTransition
from everstep.types import Coordinate, Generation, Rank, Step, WorkerId, WorkerPhase

ME = WorkerId(0)
HERE = Coordinate(0, 0)
G1, G2, G3 = Generation(1), Generation(2), Generation(3)
TABLE = (ME, WorkerId(1))
IDLE, FORWARD, BACKWARD = WorkerPhase.IDLE, WorkerPhase.FORWARD, WorkerPhase.BACKWARD
READY, COMMITTED, ENDED, HOLLOW = WorkerPhase.READY, WorkerPhase.COMMITTED, WorkerPhase.ENDED, WorkerPhase.HOLLOW


def assigned(role: Role) -> WorkerMachine:
    worker = WorkerMachine(ME)
    worker.register()
    worker.command(Assign(Rank(0), 2, G1, role))
    return worker


def training(*moves: Move) -> WorkerMachine:
    """A founder that was resumed at step 0 and has made these moves."""
    worker = assigned(Role.FOUNDER)
    worker.protect(HERE, "")
    worker.command(Resume(G1, Step(0)))
    for move in moves:
        worker.move(move)
    return worker


IN_FORWARD = (Move.BEGIN,)
IN_BACKWARD = (Move.BEGIN, Move.BACKWARD)
IN_BARRIER = (*IN_BACKWARD, Move.READY)
IN_UPDATE = (*IN_BARRIER, Move.PASS)
AFTER_UPDATE = (*IN_UPDATE, Move.UPDATE)


def stopped(phase: WorkerPhase, version: int = 0, generation: Generation = G2) -> Stopped:
    return Stopped(ME, generation, Position(phase, Step(version)))


def settled(phase: WorkerPhase, version: int) -> Settled:
    return Settled(ME, G2, Position(phase, Step(version)))


def settle(worker: WorkerMachine, action: Action, target: int) -> list[Out]:
    return worker.command(Settle(G2, Step(target), action))


# ── from the start to the first step ─────────────────────────────────────────────────────────────────────


def test_a_founder_holds_state_at_protect() -> None:
    worker = WorkerMachine(ME)
    assert worker.register() == [Registered(ME)]
    assert worker.parked
    assert worker.command(Assign(Rank(0), 2, G1, Role.FOUNDER)) == [Do.GO]
    assert worker.protect(HERE, "digest") == [Protected(ME, HERE, "digest")]
    assert (worker.phase, worker.generation, worker.parked) == (IDLE, G1, True)


@pytest.mark.parametrize(("role", "generation"), [(Role.LOADER, G1), (Role.JOINER, Generation(0))])
def test_the_others_are_hollow_at_protect_and_a_joiner_has_no_groups(role: Role, generation: Generation) -> None:
    worker = assigned(role)
    worker.protect(HERE, "")
    assert (worker.phase, worker.generation) == (HOLLOW, generation)


def test_a_step_goes_from_idle_to_idle_and_adds_one_version() -> None:
    worker, seen = training(), []
    for move in AFTER_UPDATE:
        worker.move(move)
        seen.append(worker.phase)
    assert seen == [FORWARD, BACKWARD, READY, COMMITTED, IDLE]
    assert worker.version == 1


def test_only_the_first_commit_of_a_generation_is_reported() -> None:
    worker = training(*IN_BARRIER)
    assert worker.move(Move.PASS) == [Committed(ME, G1, Step(0))]
    worker.move(Move.UPDATE)
    assert [worker.move(move) for move in IN_UPDATE] == [[], [], [], []]


def test_the_end_of_the_loop_is_reported_and_waits_for_the_release() -> None:
    worker = training(*AFTER_UPDATE)
    assert worker.move(Move.LEAVE) == [Ended(ME, G1, Step(1))]
    assert worker.parked
    assert worker.command(Release(G1)) == [Do.GO]
    assert not worker.parked


@pytest.mark.parametrize(
    ("moves", "move"),
    [
        ((), Move.BACKWARD),
        ((), Move.PASS),
        (IN_FORWARD, Move.BEGIN),
        (IN_BACKWARD, Move.PASS),
        (IN_BARRIER, Move.UPDATE),
        (IN_UPDATE, Move.BEGIN),
        (IN_UPDATE, Move.LEAVE),
    ],
)
def test_a_move_from_elsewhere_is_refused(moves: tuple[Move, ...], move: Move) -> None:
    worker = training(*moves)
    with pytest.raises(InvalidTransition, match=f"{worker.phase.name}.*worker 0"):
        worker.move(move)


# ── Stop ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("moves", [(), IN_FORWARD, IN_BACKWARD, IN_BARRIER])
def test_a_stop_cuts_at_once_and_is_answered_at_the_next_safe_point(moves: tuple[Move, ...]) -> None:
    worker = training(*moves)
    phase = worker.phase
    assert worker.command(Stop(G2)) == [Do.CUT]
    assert worker.safe_point() == [stopped(phase)]
    assert worker.parked


def test_a_parked_worker_answers_a_stop_at_once() -> None:
    worker = training(*AFTER_UPDATE, Move.LEAVE)
    assert worker.command(Stop(G2)) == [Do.CUT, stopped(ENDED, 1)]


def test_a_committed_update_completes_after_the_stop_is_answered() -> None:
    worker = training(*IN_UPDATE)
    assert worker.command(Stop(G2)) == [Do.CUT, stopped(COMMITTED)]
    assert not worker.parked
    assert worker.safe_point() == []
    assert worker.move(Move.UPDATE) == []
    assert (worker.phase, worker.version, worker.parked) == (IDLE, 1, True)


@pytest.mark.parametrize(
    ("before", "move"),
    [((), Move.BEGIN), (IN_FORWARD, Move.BACKWARD), (IN_BACKWARD, Move.READY), (IN_BARRIER, Move.PASS)],
)
def test_after_a_stop_the_next_move_parks_instead(before: tuple[Move, ...], move: Move) -> None:
    worker = training(*before)
    phase = worker.phase
    worker.command(Stop(G2))
    assert worker.move(move) == [stopped(phase)]
    assert (worker.phase, worker.parked) == (phase, True)


def test_a_barrier_that_returns_success_after_the_stop_was_answered_moves_nobody() -> None:
    worker = training(*IN_BARRIER)
    worker.command(Stop(G2))
    worker.safe_point()
    with pytest.raises(InvalidTransition):
        worker.move(Move.PASS)
    assert worker.phase is READY


def test_a_stop_that_comes_again_is_answered_again_and_cuts_once() -> None:
    worker = training(*IN_BARRIER)
    worker.command(Stop(G2))
    assert worker.command(Stop(G2)) == []
    answer = worker.safe_point()
    assert worker.command(Stop(G2)) == answer


# ── failed collectives ───────────────────────────────────────────────────────────────────────────────────


def test_a_failed_collective_is_evidence_and_taints_the_step() -> None:
    worker = training(*IN_BACKWARD)
    assert worker.broken("peer closed") == [Broken(ME, G1, "peer closed")]
    assert not worker.parked  # the user's code runs on, and may swallow it
    assert worker.move(Move.READY) == []
    assert (worker.phase, worker.parked) == (BACKWARD, True)


def test_a_worker_in_a_broken_barrier_waits_there() -> None:
    worker = training(*IN_BARRIER)
    worker.broken()
    assert (worker.phase, worker.parked) == (READY, True)
    assert worker.command(Stop(G2)) == [Do.CUT, stopped(READY)]


def test_a_collective_that_we_cut_is_no_evidence() -> None:
    worker = training(*IN_BARRIER)
    worker.command(Stop(G2))
    assert worker.broken() == [stopped(READY)]


# ── Settle: finish or drop ───────────────────────────────────────────────────────────────────────────────


def parked(*moves: Move) -> WorkerMachine:
    worker = training(*moves)
    worker.command(Stop(G2))
    if not worker.parked and worker.phase is not COMMITTED:
        worker.safe_point()
    return worker


def test_finish_lets_the_update_run_in_place() -> None:
    worker = parked(*IN_BARRIER)
    assert settle(worker, Action.FINISH, 1) == [Do.PROCEED]
    assert (worker.phase, worker.parked) == (COMMITTED, False)
    assert worker.move(Move.UPDATE) == [settled(IDLE, 1)]


@pytest.mark.parametrize("updated_first", [False, True])
def test_finish_is_answered_at_the_end_of_a_committed_update(updated_first: bool) -> None:
    worker = parked(*IN_UPDATE)
    if updated_first:
        worker.move(Move.UPDATE)
        assert settle(worker, Action.FINISH, 1) == [settled(IDLE, 1)]
    else:
        assert settle(worker, Action.FINISH, 1) == []
        assert worker.move(Move.UPDATE) == [settled(IDLE, 1)]


@pytest.mark.parametrize("moves", [IN_FORWARD, IN_BACKWARD, IN_BARRIER])
def test_redo_drops_the_step_and_keeps_the_version(moves: tuple[Move, ...]) -> None:
    worker = parked(*moves)
    assert settle(worker, Action.REDO, 0) == [Do.DROP]
    assert worker.dropped() == [settled(IDLE, 0)]
    assert worker.parked


def test_between_two_steps_there_is_nothing_to_drop() -> None:
    assert settle(parked(*AFTER_UPDATE), Action.REDO, 1) == [settled(IDLE, 1)]


def test_a_rollback_drops_everything() -> None:
    worker = parked(*AFTER_UPDATE)
    assert settle(worker, Action.ROLLBACK, 0) == [settled(HOLLOW, 1)]


def test_a_settle_that_comes_again_gets_the_same_answer() -> None:
    worker = parked(*AFTER_UPDATE)
    assert settle(worker, Action.REDO, 1) == settle(worker, Action.REDO, 1)


def test_what_it_answered_before_a_command_is_not_said_again_while_that_is_carried_out() -> None:
    worker = parked(*IN_BACKWARD)
    assert settle(worker, Action.REDO, 0) == [Do.DROP]
    assert settle(worker, Action.REDO, 0) == []  # it does not stand in Backward any more, and has not settled yet


def test_a_newer_stop_makes_a_settle_void() -> None:
    worker = parked(*IN_BACKWARD)
    settle(worker, Action.REDO, 0)
    worker.command(Stop(G3))
    assert worker.dropped() == [stopped(IDLE, 0, G3)]


# ── Reset, Restoration, Resume ───────────────────────────────────────────────────────────────────────────


def recovered(*moves: Move) -> WorkerMachine:
    worker = parked(*moves)
    settle(worker, Action.REDO, worker.version)
    if worker.phase in (FORWARD, BACKWARD, READY):
        worker.dropped()
    return worker


def test_reset_makes_the_groups_of_the_new_generation() -> None:
    worker = recovered(*IN_BACKWARD)
    assert worker.command(Reset(G2, TABLE)) == [Do.CONNECT]
    assert (worker.generation, worker.table, worker.stopping) == (G2, TABLE, False)
    assert worker.connected() == [Connected(ME, G2)]


def test_the_step_after_a_recovery_is_clean_and_its_commit_reported() -> None:
    worker = training(*IN_BACKWARD)
    worker.broken()
    worker.command(Stop(G2))
    worker.safe_point()
    settle(worker, Action.REDO, 0)
    worker.dropped()
    worker.command(Reset(G2, TABLE))
    worker.connected()
    assert worker.command(Resume(G2, Step(0))) == [Do.GO]
    for move in IN_BARRIER:
        worker.move(move)
    assert worker.move(Move.PASS) == [Committed(ME, G2, Step(0))]


def joined() -> WorkerMachine:
    worker = assigned(Role.JOINER)
    worker.protect(HERE, "")
    worker.command(Reset(G2, TABLE))
    worker.connected()
    return worker


@pytest.mark.parametrize(
    "restore",
    [Restore(G2, Step(5), WorkerId(1)), Restore(G2, Step(5), None, Checkpoint(Step(5), G1))],
    ids=["donor", "checkpoint"],
)
def test_a_newcomer_is_filled_and_then_a_holder(restore: Restore) -> None:
    worker = joined()
    assert worker.command(restore) == [Do.FILL]
    assert worker.filled(Step(5)) == [Restored(ME, G2, Step(5))]
    assert (worker.phase, worker.version) == (IDLE, 5)
    assert worker.command(restore) == [Restored(ME, G2, Step(5))]


def test_a_restoration_that_fails_leaves_a_newcomer_hollow() -> None:
    worker = joined()
    worker.command(Restore(G2, Step(5), WorkerId(1)))
    assert worker.broken("donor gone") == [Broken(ME, G2, "donor gone")]
    assert (worker.phase, worker.parked) == (HOLLOW, True)
    assert worker.command(Stop(G3)) == [Do.CUT, stopped(HOLLOW, 0, G3)]


def test_a_stop_in_a_restoration_is_answered_with_what_came_of_it() -> None:
    worker = joined()
    worker.command(Restore(G2, Step(5), WorkerId(1)))
    worker.command(Stop(G3))
    assert worker.filled(Step(5)) == [stopped(IDLE, 5, G3)]


def test_a_donor_serves_while_it_is_parked() -> None:
    worker = recovered()
    worker.command(Reset(G2, TABLE))
    worker.connected()
    assert worker.command(Donate(G2, (WorkerId(1),))) == [Do.SERVE]
    assert worker.parked


def test_who_has_left_the_loop_stays_ended_when_the_job_goes_on() -> None:
    worker = recovered(*AFTER_UPDATE, Move.LEAVE)
    worker.command(Reset(G2, TABLE))
    worker.connected()
    assert worker.command(Resume(G2, Step(1), over=True)) == [Ended(ME, G2, Step(1)), Do.GREET]


# ── what comes late, twice or in the wrong place ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "command",
    [Stop(G1), Settle(G1, Step(0), Action.REDO), Reset(G1, TABLE), Resume(G1, Step(0)), Release(G1), Donate(G1, ())],
    ids=lambda command: type(command).__name__,
)
def test_a_command_of_an_old_generation_changes_nothing(command: Command) -> None:
    worker = parked(*IN_BACKWARD)
    before = worker.freeze()
    assert worker.command(command) == []
    assert worker.freeze() == before


def test_an_assignment_that_comes_again_changes_nothing() -> None:
    worker = training(*IN_BACKWARD)
    before = worker.freeze()
    worker.command(Assign(Rank(0), 2, G1, Role.FOUNDER))
    assert worker.freeze() == before


def test_a_command_that_makes_no_sense_is_an_error_with_state_and_command() -> None:
    worker = training(*AFTER_UPDATE, Move.LEAVE)
    with pytest.raises(InvalidTransition, match=r"ENDED of generation 1 on Restore\("):
        worker.command(Restore(G1, Step(0), None))


def test_the_compact_form_comes_back_equal() -> None:
    worker = parked(*IN_BARRIER)
    copy = WorkerMachine.thaw(worker.freeze())
    assert copy.freeze() == worker.freeze()
    assert settle(copy, Action.FINISH, 1) == settle(worker, Action.FINISH, 1)
