"""`everstep plan`: from options, from the directory of a run, and what it says of what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everstep.cli.plan import plan
from everstep.controller.job import RunDir
from everstep.observe.plan import ASSUMED
from everstep.units import write_duration

if TYPE_CHECKING:
    from tests.cli.conftest import Everstep

OPTIONS = ("--mtbf", "3h", "--k0", "2s", "--k1", "90s", "--step", "0.5s", "--phi", "1.03", "--q", "0.95")


def test_it_shows_t_the_waste_around_it_and_the_three_policies(everstep: Everstep) -> None:
    result = everstep("plan", *OPTIONS, "--run", "7d", "--restart", "5m", "--recover", "1s")
    assert result.exit_code == 0
    assert "t = 23m45s, every 2850 steps" in result.output
    for name in ("t*/2", "t*", "2 t*", "replicas + checkpoints", "checkpoints alone", "restart from disk"):
        assert f"  {name}  " in result.output


def test_as_json_it_has_the_same(everstep: Everstep) -> None:
    shown = json.loads(everstep("plan", *OPTIONS, "--json").output)
    assert shown["steps"] == 2850
    assert shown["optimum_s"] == shown["t_s"] == pytest.approx(1425.0, abs=0.1)
    assert shown["inputs"]["mtbf_s"] == {"value": 10_800.0, "source": "given"}
    assert [row["name"] for row in shown["intervals"]] == ["t*/2", "t*", "2 t*"]
    assert shown["policies"][0]["name"] == "replicas + checkpoints"
    assert set(shown["policies"][0]) == {"name", "t_s", "waste_s", "share"}


def test_a_run_that_has_recorded_little_says_so(everstep: Everstep, run: RunDir) -> None:
    run.recoveries.touch()
    result = everstep("plan", str(run.path), "--mtbf", "3h")
    assert result.exit_code == 0
    for words in ("note: the job is running", "note: there is no journal", "note: this run has recorded no checkpoint"):
        assert words in result.output
    assert json.loads(everstep("plan", str(run.path), "--json").output)["inputs"]["k0_s"]["source"] == "assumed"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan", ["nothing to plan with", "--mtbf, --k0 and --k1"]),
        ("plan --q 0.5", ["nothing to plan with"]),
        ("plan nix", ["nix is not the directory of a run: there is no such directory"]),
        ("plan --mtbf soon", ["'--mtbf'", "'soon' is no duration"]),
        ("plan --k0 0s", ["'--k0'", "'0s' is no duration", "more than 0"]),
        ("plan --k0 1e13", ["k0_s is 10000000000000.0", "it must be a number of seconds"]),
        ("plan --k0 1 --q 1", ["--q 1", "less than 1"]),
        ("plan --k0 1 --q nan", ["--q nan"]),
        ("plan --k0 1 --phi 0.03", ["--phi 0.03", "1 for no slowdown"]),
    ],
)
def test_what_cannot_be_is_told_in_one_line(everstep: Everstep, tmp_path: Path, line: str, words: list[str]) -> None:
    result = everstep(*line.split())
    assert result.exit_code == 2
    [said] = result.output.splitlines()
    for word in words:
        assert word in said


def test_what_is_assumed_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    options = {option.name: option.opts[0] for option in plan.params}
    for name, (value, _) in ASSUMED.items():
        shown = f"{value:g}" if name in ("healed_share", "slowdown") else write_duration(value)
        row = next(line for line in page.splitlines() if line.startswith(f"| `{options[name]}` ") and "|" in line[2:])
        assert f" | {shown} | " in row
