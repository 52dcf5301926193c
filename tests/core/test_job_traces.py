"""Long random traces of large jobs: the same core, the same world and the same properties as in the explorer.

The explorer tries everything in a small job; here hypothesis draws up to 64 ranks, meshes, nodes and standbys, and a
walk takes random steps with failures among them. Once failures stop, every walk has to end: DONE, or FAILED with a
reason. The walk itself comes from a seed, which hypothesis shrinks towards the smallest job that shows a mistake.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.core import planner
from everstep.core.events import JobPhase
from everstep.core.machine import Machine
from everstep.core.membership import Membership
from everstep.errors import ModelViolation
from everstep.sim.rules import OVER, Choice, Rules
from everstep.sim.world import Kind, Scope, World
from everstep.types import Mesh, WorkerId, WorkerPhase

QUICK = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


class Walk:
    """One random way through a scope."""

    def __init__(self, scope: Scope, seed: int, *, calm: int = 40) -> None:
        """About one step in ``calm`` is a failure while failures are left."""
        self.rules = Rules(replace(scope, reduce=False))  # a walk is to take any order, not one of each kind
        self.world = self.rules.first()
        self.trace: list[str] = []
        self.before = self.phase
        """The phase before the newest step."""
        self._random = random.Random(seed)
        self._calm = calm

    @property
    def phase(self) -> JobPhase:
        return self.rules.cores.views[self.world.core].phase

    def run(self) -> "Walk":
        """To the end of the job. It has one: steps that cost nothing never come back to where they were."""
        while self.phase not in OVER:
            self._step()
        return self

    def _step(self) -> None:
        choices = list(self.rules.steps(self.world))
        free = [choice for choice in choices if not choice.costs]
        failures = [choice for choice in choices if choice.costs]
        assert free, f"nothing can happen any more in {self.phase}:\n{self.shown()}"
        fails = failures and not self._random.randrange(self._calm)
        choice = self._random.choice(failures if fails else free)
        self.before = self.phase
        self.trace.append(self.rules.describe(choice.label))
        self.world = self._apply(choice)

    def _apply(self, choice: Choice) -> World:
        try:
            return self.rules.apply(self.world, choice)
        except ModelViolation as violation:
            raise AssertionError(f"{violation}\n{self.shown()}") from violation

    def shown(self) -> str:
        return "\n".join(self.trace[-60:])


@st.composite
def scopes(draw: st.DrawFn, *, most_ranks: int) -> Scope:
    replicas = draw(st.integers(1, most_ranks))
    shards = draw(st.integers(1, most_ranks // replicas))
    ranks = replicas * shards
    return Scope(
        ranks,
        standbys=draw(st.integers(0, 3)),
        failures=draw(st.integers(0, 8)),
        steps=draw(st.integers(1, 3)),
        nodes=draw(st.integers(1, min(ranks, 8))),
        mesh=Mesh(replicas, shards),
        checkpoint=(stored := draw(st.booleans())),
        resume=stored and draw(st.booleans()),
        seal=draw(st.booleans()),
    )


SEEDS = st.integers(0, 2**32)


@QUICK
@given(scope=scopes(most_ranks=6), seed=SEEDS)
def test_every_walk_of_a_small_job_ends_without_a_violation(scope: Scope, seed: int) -> None:
    assert Walk(scope, seed, calm=15).run().phase in OVER


@settings(QUICK, max_examples=5)
@given(scope=scopes(most_ranks=64), seed=SEEDS)
def test_every_walk_of_a_large_job_ends_without_a_violation(scope: Scope, seed: int) -> None:
    assert Walk(scope, seed, calm=200).run().phase in OVER


def test_a_walk_of_64_ranks_on_8_nodes_ends() -> None:
    scope = Scope(64, standbys=2, failures=6, steps=2, nodes=8, mesh=Mesh(16, 4), checkpoint=True)
    assert Walk(scope, seed=1, calm=300).run().phase in OVER


@settings(QUICK, max_examples=20)
@given(seed=SEEDS)
def test_with_three_replicas_two_failures_need_no_checkpoint(seed: int) -> None:
    """Unless one comes after the loop, when the last state is nowhere but on storage."""
    scope = Scope(6, standbys=1, failures=2, steps=2, mesh=Mesh(3, 2), kinds=(Kind.SUSPECT,))
    walk = Walk(scope, seed).run()
    assert walk.phase is JobPhase.DONE or walk.before is JobPhase.ENDING, walk.shown()


# ── the walks bite ───────────────────────────────────────────────────────────────────────────────────────


def walk_often(scope: Scope) -> None:
    for seed in range(200):
        Walk(scope, seed).run()


def assert_caught(scope: Scope, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        walk_often(scope)


TWO_BY_TWO: dict[str, Any] = {"ranks": 4, "standbys": 0, "steps": 1, "mesh": Mesh(2, 2), "kinds": (Kind.CRASH,)}


def test_a_donor_of_another_shard_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(members: Membership, newcomers: list[WorkerId]) -> dict[WorkerId, WorkerId]:
        return dict.fromkeys(newcomers, members.seated(WorkerPhase.IDLE)[0])

    monkeypatch.setattr(planner, "donors", mutant)
    assert_caught(Scope(**TWO_BY_TWO), "gives worker . another shard")


def test_a_donor_that_is_a_newcomer_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutant(members: Membership, newcomers: list[WorkerId]) -> dict[WorkerId, WorkerId]:
        right = donors(members, newcomers)
        return {newcomer: newcomers[-1] if len(newcomers) > 1 else right[newcomer] for newcomer in newcomers}

    donors = planner.donors
    monkeypatch.setattr(planner, "donors", mutant)
    scope = Scope(3, standbys=0, failures=2, steps=1, kinds=(Kind.CRASH,))
    assert_caught(scope, "nothing can happen any more in JobPhase.RESTORING")


def test_a_fence_that_is_dropped_is_caught() -> None:
    class Mutant(Machine):
        def _fence_pending(self) -> bool:
            return False

    scope = Scope(8, failures=2, kinds=(Kind.SUSPECT,), machine=Mutant)
    assert_caught(scope, "is decided before workers")
