"""Who breaks a rule of a protected training is told which one, by name, and the job ends with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import SCRIPTS, Run

from everstep.chaos.exact.recipe import Recipe
from everstep.chaos.exact.variants import MANY_BUCKETS, VARIANTS
from everstep.chaos.trial import Trial, clean, run

Start = Callable[..., Run]
BREAKS = str(SCRIPTS / "breaks.py")
RULE = "all communication of a protected step happens inside `with step:` and before optimizer.step()"


@pytest.fixture
def broken(start: Start, tmp_path: Path) -> Callable[..., str]:
    """What a job prints that breaks this rule, and fails."""

    def go(case: str, *options: str) -> str:
        limits = ("--max-failures-per-step", "1", "--standby", "0")
        job = start("--nproc", "2", *limits, *options, BREAKS, case, str(tmp_path))
        assert job.wait() == 1, job.text()
        return job.text()

    return go


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def test_an_exception_is_repeated_until_the_limit_of_its_step(broken: Callable[..., str]) -> None:
    text = broken("exception")
    assert "max_failures_per_step=1 around step 3" in last_line(text)
    assert "rank 1" in last_line(text)
    assert "ValueError: the data is wrong" in last_line(text)
    assert text.count("[rank 1] ValueError: the data is wrong") == 2, "once, and once more by the replacement"


@pytest.mark.parametrize("case", ["collective after the update", "collective between steps"])
def test_communication_at_the_wrong_place_names_the_rule(broken: Callable[..., str], case: str) -> None:
    text = broken(case)
    assert RULE in last_line(text)
    assert text.count("goes to a new process") == 2, "to try again would not help"


@pytest.mark.parametrize(("case", "named"), [("other sizes", "[5, 4]"), ("other names", "last.weight")])
def test_another_model_on_the_replacement_is_refused_by_its_tensor(
    broken: Callable[..., str], case: str, named: str
) -> None:
    text = broken(case, "--chaos", "kill rank=1 step=3 phase=backward")
    assert "rank 1" in last_line(text)
    assert named in last_line(text)


def test_ranks_that_all_wait_for_each_other_get_one_more_try(broken: Callable[..., str], tmp_path: Path) -> None:
    text = broken("both receive")
    assert "stalled again after a redo" in last_line(text)
    assert "ranks 0, 1 wait in step 99" in last_line(text)
    stacks = sorted((tmp_path / "run").glob("stacks-*"))
    assert stacks, "where they wait is in files"
    assert all("dist.recv(torch.ones(1), 1 - job.rank)" in path.read_text() for path in stacks)


def test_what_cannot_be_sent_is_refused_by_its_key(broken: Callable[..., str]) -> None:
    text = broken("no bytes")
    assert "gadget" in text
    assert "handle" in text


def test_state_that_comes_to_differ_is_named_after_the_first_step(broken: Callable[..., str]) -> None:
    assert "extra.seen differ between the ranks after the first step" in last_line(broken("extra of one rank"))


def test_state_that_comes_to_differ_on_a_replacement_is_named(broken: Callable[..., str]) -> None:
    text = broken("scheduler forgotten", "--chaos", "kill rank=1 step=3 phase=backward")
    assert "optimizer (its values) differ between the ranks after the first step behind a recovery" in last_line(text)


def test_private_state_that_changes_behind_the_barrier_is_refused(broken: Callable[..., str]) -> None:
    assert "private state (late) was changed behind the barrier" in last_line(broken("late private state"))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("gradients carried", "gradients were carried from one step into the next"),
        ("closure twice", "Twice evaluates its closure twice in one step"),
        ("optimizer forgotten", "Adam.step() changes protected parameters, and protect() was not given that optimizer"),
        ("late group", "was made after protect(): a replacement would not have it"),
    ],
)
def test_what_a_redo_or_a_replacement_could_not_do_is_an_error(
    broken: Callable[..., str], case: str, said: str
) -> None:
    assert said in last_line(broken(case))


def test_what_a_replacement_could_not_have_is_refused_at_protect(start: Start) -> None:
    job = start("--nproc", "1", "--standby", "0", str(SCRIPTS / "refused.py"))
    assert job.wait() == 0, job.text()
    refusals = [line.partition("refused: ")[2] for line in job.text().splitlines() if "refused: " in line]
    for wanted, found in zip(
        (
            "model: the communication hook 'powerSGD_hook' is not supported",
            "model: an optimizer inside Backward updates before the barrier",
            "model: DistributedDataParallel with parameters frozen or unfrozen between its making and protect()",
            "optimizer is a LBFGS: it communicates or computes again inside step()",
            "protect(rng='never'): it is \"step\"",
            "protect(extra=int): give a dict",
            "protect() needs a model=torch.nn.Module and an optimizer=torch.optim.Optimizer",
        ),
        refusals,
        strict=True,
    ):
        assert wanted in found


def test_a_break_ends_the_loop_on_all_ranks_also_in_a_recovery(start: Start) -> None:
    """Behind the loop collectives are ordinary again."""
    job = start(
        "--nproc", "2", "--standby", "0", "--chaos", "kill rank=1 step=5 phase=idle", str(SCRIPTS / "leaves.py")
    )
    assert job.wait() == 0, job.text()
    assert sorted(line for line in job.text().splitlines() if "left at" in line) == [
        f"[rank {rank}] left at 5, then 20.0" for rank in (0, 1)
    ]


def test_a_loop_that_was_left_and_is_held_ends_with_its_script(start: Start) -> None:
    job = start("--nproc", "2", "--standby", "0", str(SCRIPTS / "leaves.py"), "holds it")
    assert job.wait() == 0, job.text()
    job.leaves_nothing()


def test_private_state_that_is_lost_with_its_copy_ends_the_job(tmp_path: Path) -> None:
    """Rank 0 keeps the copy of rank 2's. The job could go on without it, on other bits.

    Rank 2 dies behind the last collective before the barrier: by then all are in its step.
    """
    faults = ("kill rank=2 step=4 phase=backward when=after", "kill rank=0 phase=stop step=4")
    ended = run(Trial(VARIANTS["mlp-carry"], 3, 0, faults), tmp_path / "trial")
    assert ended.code == 1, ended.text
    assert "lost what nobody else has" in last_line(ended.text)
    assert "private state of this rank (rng) at step 4 was lost together with its only copy" in last_line(ended.text)


def test_who_swallows_the_error_of_a_cut_step_is_not_ready(tmp_path: Path, cleans: Path) -> None:
    """`try: loss.backward() except RuntimeError: pass` goes on to the optimizer with incomplete gradients."""
    faults = ("kill rank=0 step=3 phase=backward", "kill rank=2 step=5 phase=backward")
    trial = Trial(Recipe(swallow=True, bucket_cap=MANY_BUCKETS), 3, 1, faults)
    ended = run(trial, tmp_path / "trial")
    assert not ended.against(clean(trial, cleans)), ended.text
    assert not ended.idle
    assert list((tmp_path / "trial" / "out").glob("note-swallowed-*")), "nothing was swallowed, so nothing is shown"
