"""The promise for sharded training: a lost piece comes from its replica, to the bit; without one the job says so.

The meshes are of two rows: [0, 1] and [2, 3] are replicas of each other, and 0 and 2 hold the same pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.conftest import SCRIPTS, Run

from everstep.chaos.cells import PLACES
from everstep.chaos.exact.recipe import Recipe
from everstep.chaos.exact.variants import RECIPES
from everstep.chaos.trial import Ended, Trial, clean, run

Start = Callable[..., Run]
Exact = Callable[..., Ended]


@pytest.fixture
def exact(tmp_path: Path, cleans: Path) -> Exact:
    """Run a training on four ranks with faults; it must strike them all and end on the bits of the clean run."""

    def go(recipe: Recipe, *faults: str, steps: int, standbys: int = 1) -> Ended:
        trial = Trial(replace(recipe, steps=steps), 4, standbys, faults)
        wanted = clean(trial, cleans)
        ended = run(trial, tmp_path / "trial")
        assert not ended.against(wanted), f"{trial}\n{ended.text}"
        assert not ended.idle, f"{trial}\n{ended.text}"
        return ended

    return go


def kill(rank: int, step: int, place: str) -> str:
    return f"kill rank={rank} step={step} {PLACES[place]}"


# ── a piece that has a replica ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("variant", ["hsdp", "tp-dp-carry"])
def test_a_kill_in_each_phase_costs_no_bit(exact: Exact, variant: str) -> None:
    """One in each step, of each rank in turn. So each donor was filled by one that was filled before."""
    ended = exact(
        RECIPES[variant], *(kill(step % 4, step, place) for step, place in enumerate(PLACES)), steps=len(PLACES)
    )
    assert "have no replica" not in ended.text


@pytest.mark.parametrize(("variant", "standbys"), [("hsdp-recompute", 2), ("tp-dp-carry", 0)])
def test_two_of_one_row_or_of_both_die_at_once(exact: Exact, variant: str, standbys: int) -> None:
    """A row has all pieces once, so it can be lost as a whole; both newcomers are filled, each by its own donor. What
    each rank has for itself, as its carried random streams, has its copy in the other row."""
    ended = exact(
        RECIPES[variant],
        *(kill(0, 1, "backward"), "kill rank=1 phase=stop"),
        *(kill(0, 3, "optimizer mid"), kill(3, 3, "barrier before")),
        *(kill(2, 5, "forward"), kill(3, 5, "optimizer after")),
        *(kill(0, 8, "barrier mid"), kill(1, 8, "optimizer before")),
        standbys=standbys,
        steps=len(PLACES),
    )
    assert {2, 3} in [{donor.rank for donor in recovery.donors} for recovery in ended.recoveries]


def test_newcomers_and_survivors_die_in_the_recovery(exact: Exact) -> None:
    """Survivors after one that is behind the last collective before the barrier: all are in its step, and redo it."""
    exact(
        RECIPES["hsdp"],
        *(kill(1, 2, "backward"), "kill rank=1 phase=restore", "kill rank=1 phase=resume"),
        *("kill rank=2 step=5 phase=backward when=after", "kill rank=3 phase=reset step=5"),
        *("kill rank=1 step=6 phase=backward when=after", "kill rank=0 phase=clean step=6"),
        steps=len(PLACES),
    )


# ── a piece that has none ────────────────────────────────────────────────────────────────────────────────


def test_without_a_replica_or_a_checkpoint_the_job_ends_and_says_what_is_lost(tmp_path: Path) -> None:
    """Three ranks have all parameters between them. That they depend on each other is told at protect()."""
    trial = Trial(RECIPES["fsdp"], 3, 1, (kill(1, 3, "backward"),), ("--checkpoint-every", "off"))
    ended = run(trial, tmp_path / "trial")
    assert ended.code == 1
    told = [line for line in ended.text.splitlines() if "have no replica" in line]
    assert len(told) == 1
    assert "kB have no replica, on ranks 0, 1, 2:" in told[0]
    last = ended.text.strip().splitlines()[-1]
    assert "no live replica holds shards [1] any more, which ranks [1] had, and there is no checkpoint" in last
    assert "a mesh with a dimension of replicas keeps each shard more than once" in last
    assert "rank 1 (worker 1 on local-0): exited (killed by SIGKILL in BACKWARD of step 3)" in last


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def says(start: Start) -> Callable[[str], str]:
    def go(case: str) -> str:
        limits = ("--max-failures-per-step", "1", "--standby", "0")
        job = start("--nproc", "2", *limits, str(SCRIPTS / "sharded.py"), case)
        job.wait()
        return job.text()

    return go


def test_what_cannot_be_finished_alone_is_refused_by_name(says: Callable[[str], str]) -> None:
    text = says("objects")
    assert "refused: optimizer is a ZeroRedundancyOptimizer: it communicates" in text
    assert "refused: optimizer is a Muon of sharded parameters: its step() needs whole matrices" in text
    assert "a device_mesh inside a larger one (use replicate() there) is not supported" in text


def test_a_second_update_that_follows_communication_is_refused_with_the_reason(says: Callable[[str], str]) -> None:
    text = says("second update")
    assert "after the update of the step: all communication of a protected step happens" in text
    assert "with several optimizers: all backward() first, then all step()" in text
