"""The second line of defence: what no replica has comes back from a checkpoint, to the bit.

Each case is a real job with real kills, compared with the clean run of the same training, which takes no checkpoints.
"""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from tests.e2e.conftest import Run, eventually
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from everstep.chaos.blackouts import Training
from everstep.chaos.exact.models import SmallGPT
from everstep.chaos.exact.recipe import Recipe
from everstep.chaos.exact.record import Outcome
from everstep.chaos.exact.variants import RECIPES
from everstep.chaos.trial import Ended, Trial, clean, run
from everstep.checkpoint import catalog
from everstep.checkpoint.store import open_store
from everstep.observe.checkpoints import Fate, read_checkpoints
from everstep.observe.records import Decision

STEPS = 12
EVERY_TWO = ("--max-failures-per-step", "20", "--checkpoint-every", "2")

Exact = Callable[..., Ended]


def recipe_of(variant: str) -> Recipe:
    return replace(RECIPES[variant], steps=STEPS)


@pytest.fixture
def exact(tmp_path: Path, cleans: Path) -> Exact:
    """Run a training with faults and checkpoints; it must strike them all and end on the bits of the clean run."""

    def go(variant: str, ranks: int, *faults: str, standbys: int = 1) -> Ended:
        trial = Trial(recipe_of(variant), ranks, standbys, faults, EVERY_TWO)
        wanted = clean(trial, cleans)
        ended = run(trial, tmp_path / "trial")
        assert not ended.against(wanted), f"{trial}\n{ended.text}"
        assert not ended.idle, f"{trial}\n{ended.text}"
        return ended

    return go


# ── from memory ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_has_no_replica_comes_back_from_memory(exact: Exact) -> None:
    """Each of three ranks has a third of all parameters. One is killed in each phase, also while it saves; at last when
    the others have left the loop, to which they have to return."""
    ended = exact(
        "fsdp",
        3,
        "kill rank=1 step=3 phase=backward",
        "kill rank=0 step=6 phase=checkpoint",
        "kill rank=2 step=7 phase=optimizer",
        "kill rank=1 step=9 phase=forward",
        f"kill rank=0 step={STEPS - 1} phase=optimizer when=after",
    )
    assert {recovery.decision for recovery in ended.recoveries} == {Decision.ROLLBACK}
    assert [recovery.target for recovery in ended.recoveries] == [2, 4, 6, 8, STEPS - 2]


def test_all_replicas_may_be_lost_at_once(exact: Exact) -> None:
    """With them their carried random streams and their statistics, which differ from rank to rank.

    The first dies behind the last collective before the barrier, so that the other is in its step too.
    """
    deaths = [
        *("kill rank=0 step=5 phase=backward when=after", "kill rank=1 phase=stop step=5"),
        *("kill rank=1 step=8 phase=backward when=after", "kill rank=0 phase=stop step=8"),
    ]
    ended = exact("conv-carry", 2, *deaths)
    assert {recovery.decision for recovery in ended.recoveries} == {Decision.ROLLBACK}


def test_what_one_rank_had_for_itself_comes_back_though_its_copy_is_lost_too(exact: Exact) -> None:
    """Rank 0 keeps the copy of rank 2's random streams. Rank 1 lives, and has all the rest."""
    ended = exact("mlp-carry", 3, "kill rank=2 step=6 phase=backward when=after", "kill rank=0 phase=stop step=6")
    assert [recovery.decision for recovery in ended.recoveries] == [Decision.ROLLBACK]
    assert "nobody has any more what one rank had for itself" in ended.text


# ── from storage ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_was_switched_off_three_times_ends_on_the_same_bits(tmp_path: Path, cleans: Path) -> None:
    """Every process of it is killed where nobody chose. The gradient buckets of DDP have to be laid out as they were,
    or sums are taken in another order."""
    trial = Trial(recipe_of("mlp-static"), 3, 0, (), EVERY_TWO)
    training = Training(trial, tmp_path / "trial", random.Random())
    blackouts = [training.black_out() for _ in range(3)]
    ended = training.end()
    assert not ended.against(clean(trial, cleans)) + training.wrong, f"{blackouts}\n{ended.text}"
    assert blackouts[-1].committed
    assert f"goes on from the checkpoint of step {blackouts[-1].committed}" in ended.text


def test_a_job_goes_on_with_other_ranks_and_torch_reads_what_it_saves(
    tmp_path: Path, cleans: Path, start: Callable[..., Run]
) -> None:
    """Three ranks leave a checkpoint of the last step. Two load it, have nothing to do, and save it as it is: so both
    have the same numbers, and so has plain torch."""
    recipe = recipe_of("fsdp")
    script = ("-m", "everstep.chaos.exact", *recipe.words(), "--out", str(tmp_path))
    store = ("--checkpoint-dir", str(tmp_path / "store"), "--checkpoint-every", "100")
    assert start("--nproc", "3", *store, *script).wait() == 0
    (tmp_path / "run").rename(tmp_path / "before")
    job = start("--nproc", "2", *store, "--resume", "latest", *script)
    assert job.wait() == 0, job.text()
    assert f"step {STEPS} was saved by 3 ranks in another layout; 2 ranks load it now" in job.text()
    found = catalog.find(open_store(str(tmp_path / "store")))
    assert [(each.commit.step, each.commit.world_size) for each in found if each.commit] == [(STEPS, 2), (STEPS, 3)]
    two, three = (_plain_model(tmp_path / "store" / each.directory) for each in found)
    assert {name: tensor.tolist() for name, tensor in two.items()} == {
        name: tensor.tolist() for name, tensor in three.items()
    }


def _plain_model(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Parameters and moments as torch reads them, without everstep."""
    parameters = dict(SmallGPT(frozen=False).named_parameters())
    wanted = {
        "model": {name: torch.zeros_like(it) for name, it in parameters.items()},
        "optimizer.state": {f"{name}.exp_avg": torch.zeros_like(it) for name, it in parameters.items()},
    }
    with pytest.warns(UserWarning, match="assuming the intent is to load in a single process"):
        load(wanted, storage_reader=HuggingFaceStorageReader(str(checkpoint)))
    return {f"{part}.{name}": tensor for part, tensors in wanted.items() for name, tensor in tensors.items()}


# ── when storage is slow ─────────────────────────────────────────────────────────────────────────────────


def test_training_goes_on_while_both_slots_are_busy(start: Callable[..., Run]) -> None:
    """The persister stands still for a while, so checkpoints are left out, and that is told. The last one is not."""
    steps = 400
    script = ("-m", "everstep.chaos.exact", "--steps", str(steps), "--out", ".")
    job = start("--nproc", "2", "--standby", "0", "--checkpoint-every", "4", *script)

    def persister() -> psutil.Process | None:
        children = (child for process in job.family() for child in process.children())
        return next((child for child in children if "everstep.checkpoint.persister" in child.cmdline()), None)

    process = eventually(persister, "a persister")
    process.suspend()
    job.when(lambda status: status["checkpoints"]["skipped"] > 0, "a checkpoint is left out")
    process.resume()
    assert job.wait() == 0, job.text()
    assert "leaves out the checkpoint of step" in job.text()
    records = read_checkpoints(job.dir / "checkpoints.jsonl")
    assert any(record.fate is Fate.SKIPPED and "both slots are busy" in record.reason for record in records)
    assert (records[-1].step, records[-1].fate) == (steps, Fate.COMMITTED)


@pytest.mark.parametrize(("asked", "code"), [(EVERY_TWO, 1), ((), 0)], ids=["asked for", "auto"])
def test_with_too_little_memory_a_job_ends_before_its_first_step_if_checkpoints_were_asked_for(
    start: Callable[..., Run], asked: tuple[str, ...], code: int
) -> None:
    """Here because no file may be as large as a slot."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))  # processes that are started have it too
    try:
        job = start("--nproc", "2", "--standby", "0", *asked, "-m", "everstep.chaos.exact", "--out", ".")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert job.wait() == code, job.text()
    if code:
        last = job.text().strip().splitlines()[-1]
        assert "no room for checkpoints: " in last
        assert not Outcome.read(job.dir.parent, 2).losses
    else:
        assert "the job trains without checkpoints, because rank" in job.text()
    assert "slot-" in job.text()
    assert "--checkpoint-every off" in job.text()
