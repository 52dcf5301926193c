"""Each example runs, and goes on through the loss of a device; the demo shows it and compares."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.conftest import Run

from everstep.observe.records import read_recoveries

EXAMPLES = Path(__file__).parents[2] / "examples"
Start = Callable[..., Run]


def test_the_five_lines_protect_a_training(start: Start) -> None:
    fault = "kill rank=1 step=70 phase=optimizer"
    run = start("--nproc", "2", "--standby", "1", "--chaos", fault, str(EXAMPLES / "ddp.py"))
    assert run.wait() == 0, run.text()
    assert [step for step in range(9, 100, 10) if f"[rank 0] step {step}: loss" not in run.text()] == []
    assert [record.rank for record in read_recoveries(run.dir / "recoveries.jsonl")] == [1]
    checkpoints = run.dir / "checkpoints"
    assert _reads_without_everstep(checkpoints / (checkpoints / "latest").read_text().strip()) > 50


def _reads_without_everstep(checkpoint: Path) -> int:
    """Percent that the trained model knows."""
    hides = "import runpy, sys; sys.modules['everstep'] = None; del sys.argv[0]; runpy.run_path(sys.argv[0])"
    command = [sys.executable, "-c", hides, str(EXAMPLES / "read_checkpoint.py"), str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.partition("%")[0])


def test_the_gpt_learns_and_all_ranks_end_on_one_hash(start: Start) -> None:
    script = (str(EXAMPLES / "gpt.py"), "--steps", "40", "--width", "32")
    run = start("--nproc", "2", "--standby", "0", "--chaos", "kill rank=0 step=25 phase=backward", *script)
    assert run.wait() == 0, run.text()
    ends = re.findall(r"rank (\d) ends on (\w{64})", run.text())
    assert sorted(rank for rank, _ in ends) == ["0", "1"]
    assert len({end for _, end in ends}) == 1
    first, last = (float(loss) for loss in re.findall(r"loss ([\d.]+)", run.text()))
    assert last < first


@pytest.mark.parametrize(("script", "steps"), [("hsdp.py", 60), ("tensor_parallel.py", 100)])
def test_sharded_models_learn_on_through_the_loss_of_a_whole_row(start: Start, script: str, steps: int) -> None:
    faults = [word for rank in (2, 3) for word in ("--chaos", f"kill rank={rank} step=30 phase=backward when=after")]
    run = start("--nproc", "4", "--standby", "1", *faults, str(EXAMPLES / script))
    assert run.wait() == 0, run.text()
    losses = [float(loss) for loss in re.findall(r"\[rank 0\] step \d+: loss ([\d.]+)", run.text())]
    assert len(losses) == steps // 10
    assert losses[-1] < losses[0]
    assert {record.decision for record in read_recoveries(run.dir / "recoveries.jsonl")} == {"redo"}


def test_the_steps_run_without_torch(start: Start) -> None:
    run = start("--nproc", "2", str(EXAMPLES / "steps.py"))
    assert run.wait() == 0, run.text()
    assert "[rank 1] rank 1 has done 10 steps" in run.text()


@pytest.mark.timeout(180)
def test_the_demo_ends_on_the_same_bits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "everstep.cli", "demo", "--steps", "20", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout[done.stdout.index("What each failure cost") :]
    for place in ("2, Forward", "0, Backward", "3, Optimizer Step", "1, barrier"):
        assert f"rank {place}" in table
    hashes = re.findall(r"s  ([0-9a-f]{40})", table)
    assert len(hashes) == 2
    assert len(set(hashes)) == 1
    assert "the same bits" in table
