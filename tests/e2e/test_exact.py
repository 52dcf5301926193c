"""The promise: whatever is killed, wherever it is, the run ends on the same bits as the one without failures.

Each case is a real job with real kills, compared with the clean run of the same training: hashes of the parameters, the
buffers, the optimizer, the scheduler, the scaler and the average, and the loss of every step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import SCRIPTS, Run

from everstep.chaos.exact.recipe import Recipe
from everstep.chaos.exact.record import differences
from everstep.chaos.exact.variants import VARIANTS
from everstep.chaos.trial import Ended, Trial, clean, plain, run

FIRST, MIDDLE, LAST = 0, 4, 7
RANKS = {
    "mlp": 2,
    "conv": 3,
    "conv-view": 2,
    "gpt": 4,
    "mlp-unused": 2,
    "mlp-static": 3,
    "mlp-static-accumulate": 2,
    "mlp-closure": 2,
    "mlp-compiled": 2,
    "conv-private": 2,
    "gpt-accumulate": 2,
}
"""The variants that are used here, and how many ranks train each."""

Exact = Callable[..., Ended]


@pytest.fixture
def exact(tmp_path: Path, cleans: Path) -> Exact:
    """Run a training with faults; it must strike them all and end on the bits of the clean run."""

    def go(variant: str, *faults: str, standbys: int = 1, ranks: int = 0, recipe: Recipe | None = None) -> Ended:
        trial = Trial(recipe or VARIANTS[variant], ranks or RANKS[variant], standbys, faults)
        wanted = clean(trial, cleans)
        ended = run(trial, tmp_path / "trial")
        assert not ended.against(wanted), f"{trial}\n{ended.text}"
        assert not ended.idle, f"{trial}\n{ended.text}"
        return ended

    return go


# ── one kill in each phase, at the first step, in the midst, at the last ─────────────────────────────────

PLACES = {
    "idle": "phase=idle",
    "forward": "phase=forward",
    "backward": "phase=backward",
    "barrier before": "phase=barrier when=before",
    "barrier mid": "phase=barrier when=mid",
    "barrier after": "phase=barrier when=after",
    "optimizer before": "phase=optimizer when=before",
    "optimizer mid": "phase=optimizer when=mid",
    "optimizer after": "phase=optimizer when=after",
}
WITH_STANDBY = (
    "mlp",
    "conv",
    "gpt",
    "mlp-unused",
    "mlp-static",
    "mlp-compiled",
    "conv-private",
    "gpt-accumulate",
    "mlp-closure",
)
WITHOUT = (
    "conv-private",
    "gpt-accumulate",
    "mlp-closure",
    "mlp-static",
    "conv",
    "gpt",
    "mlp-unused",
    "conv",
    "mlp-static-accumulate",
)


@pytest.mark.parametrize(
    ("place", "variant", "standbys"),
    [(place, variant, 1) for place, variant in zip(PLACES, WITH_STANDBY, strict=True)]
    + [(place, variant, 0) for place, variant in zip(PLACES, WITHOUT, strict=True)],
)
def test_a_kill_costs_no_bit(exact: Exact, place: str, variant: str, standbys: int) -> None:
    """Three kills in each run. With a standby rank 0 dies first and last, without one another rank does."""
    other = RANKS[variant] - 1
    victims = (0, other, 0) if standbys else (other, 0, other)
    steps = zip(victims, (FIRST, MIDDLE, LAST), strict=True)
    exact(variant, *(f"kill rank={rank} step={step} {PLACES[place]}" for rank, step in steps), standbys=standbys)


def test_a_job_may_lose_ten_devices(exact: Exact) -> None:
    faults = [f"kill rank={step % 2} step={step} {place}" for step, place in enumerate(list(PLACES.values())[:8])]
    ended = exact("mlp", *faults, "kill rank=1 step=8 phase=idle", "kill rank=0 step=5 phase=forward")
    assert ended.text.count("SIGKILL") >= 10


def test_who_is_cut_off_between_two_parts_of_a_step_syncs_its_buffers_again(exact: Exact) -> None:
    """With `no_sync` DDP sends rank 0's buffers in the first part only, and each rank remembers for itself whether it
    has come to that. Rank 1 is held in the first part; the replacement has never been there."""
    ended = exact("conv-view", "slow rank=1 step=3 phase=backward for=1", "kill rank=0 step=3 phase=backward")
    assert [recovery.cause for recovery in ended.recoveries] == ["EXIT"]


# ── several at once ──────────────────────────────────────────────────────────────────────────────────────


def test_a_barrier_that_some_have_passed_and_some_have_not(exact: Exact) -> None:
    """Rank 0 has passed and dies, rank 1 has heard of the success and not gone on, rank 2 has gone on."""
    exact(
        "conv",
        "slow rank=1 step=2 phase=barrier when=after for=0.5",
        "kill rank=0 step=2 phase=optimizer",
        "slow rank=0 step=5 phase=barrier when=after for=0.5",
        "kill rank=2 step=5 phase=barrier when=after",
    )


def test_two_die_at_once_in_the_same_place(exact: Exact) -> None:
    exact(
        "gpt",
        *(f"kill rank={rank} step=3 phase=backward" for rank in (0, 2)),
        *(f"kill rank={rank} step=5 phase=optimizer when=after" for rank in (1, 3)),
    )


def test_two_die_at_once_in_different_places(exact: Exact) -> None:
    exact(
        "gpt",
        "kill rank=0 step=2 phase=optimizer",
        "kill rank=1 step=3 phase=forward",
        "kill rank=3 step=5 phase=barrier",
        "kill rank=0 step=5 phase=backward when=after",
    )


# ── in a recovery ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("standbys", [0, 1])
def test_newcomers_die_in_each_phase_of_the_recovery(exact: Exact, standbys: int) -> None:
    phases = ("script", "reset", "restore", "resume")
    exact("mlp", "kill rank=0 step=4", *(f"kill rank=0 phase={phase}" for phase in phases), standbys=standbys)


def test_survivors_die_in_each_phase_of_the_recovery(exact: Exact) -> None:
    """The first to die is behind the last collective before the barrier: so all are in its step, and do it again."""
    here = "phase=backward when=after"
    exact(
        "gpt",
        *("kill rank=0 step=2 phase=backward", "kill rank=1 phase=stop"),
        *(f"kill rank=0 step=4 {here}", "kill rank=2 phase=reset step=4"),
        *(f"kill rank=3 step=5 {here}", "kill rank=1 phase=clean step=5"),
        *(f"kill rank=2 step=6 {here}", "kill rank=0 phase=restore step=6", "kill rank=1 phase=resume step=6"),
    )


# ── who does not die by itself ───────────────────────────────────────────────────────────────────────────


def test_a_frozen_rank_is_replaced(exact: Exact) -> None:
    exact("conv", "stop rank=0 step=4 phase=backward", "stop rank=1 step=6 phase=optimizer", standbys=0)


def test_a_rank_that_hangs_is_replaced(exact: Exact) -> None:
    """After its first steps, which may take long."""
    exact("mlp", "hang rank=1 step=5 phase=forward")


# ── without failures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("variant", ["mlp-carry", "conv-carry"])
def test_with_carried_streams_a_run_is_that_of_plain_torch(variant: str, tmp_path: Path, cleans: Path) -> None:
    ours = clean(Trial(VARIANTS[variant]), cleans)
    theirs = plain(VARIANTS[variant], 2, tmp_path / "plain")
    assert not differences(theirs, ours)


# ── what scripts do besides ──────────────────────────────────────────────────────────────────────────────


def test_what_a_script_changes_before_its_update_is_put_back(start: Callable[..., Run], tmp_path: Path) -> None:
    """Each rank survives once and is replaced once."""

    def ends(name: str, *faults: str) -> list[str]:
        options = (word for fault in faults for word in ("--chaos", fault))
        job = start("--nproc", "2", "--run-dir", str(tmp_path / name), *options, str(SCRIPTS / "habits.py"))
        assert job.wait() == 0, job.text()
        assert job.text().count("recovered in") == len(faults)
        return sorted(line for line in job.text().splitlines() if "ends on" in line)

    places = (f"kill rank={rank} step={step} phase=backward when=after" for rank, step in ((1, 3), (0, 5)))
    assert ends("killed", *places) == ends("clean")
