"""`everstep doctor`: a line for each check, JSON of the same, and an exit code that says whether to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Everstep


def test_a_machine_that_can_run_the_job_is_told_so(everstep: Everstep) -> None:
    result = everstep("doctor", "--nproc", "1")
    assert result.exit_code == 0
    for words in ("ok       torch ", "ok       pidfd ", "ok       interface      lo, 127.0.0.1", ", 0 to repair"):
        assert words in result.output


def test_something_that_would_break_is_exit_code_1_and_says_how_to_fix_it(everstep: Everstep) -> None:
    result = everstep("doctor", "--nproc", "1", "--interface", "nix0")
    assert result.exit_code == 1
    assert "failure  interface      nix0 does not exist" in result.output
    assert "breaks: Gloo cannot listen" in result.output
    assert "fix: " in result.output


def test_the_environment_names_the_interface_too(everstep: Everstep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nix1")
    assert "nix1 does not exist" in everstep("doctor", "--nproc", "1").output


def test_as_json_it_has_the_same(everstep: Everstep) -> None:
    result = everstep("doctor", "--nproc", "1", "--state-size", "900TB", "--checkpoint-every", "50", "--json")
    assert result.exit_code == 1
    shown = json.loads(result.output)
    assert shown["ok"] is False
    levels = {check["name"]: check["level"] for check in shown["checks"]}
    assert (levels["torch"], levels["/dev/shm"]) == ("ok", "failure")
    assert set(shown["checks"][0]) == {"name", "level", "found", "breaks", "fix"}


def test_each_check_is_documented(everstep: Everstep) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    cells = [line.removeprefix("| ").partition(" | ")[0] for line in page.splitlines()]
    documented = {name for cell in cells for name in cell.replace("`", "").split(", ")}
    checks = json.loads(everstep("doctor", "--nproc", "1", "--json").output)["checks"]
    assert {check["name"] for check in checks} <= documented


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("doctor --state-size lots", ["'--state-size'", "'lots' is no size", "512MB"]),
        ("doctor --checkpoint-every often", ["--checkpoint-every 'often'", "steps (50)"]),
        ("doctor --nproc 0", ["'--nproc'", "0 is not in the range"]),
    ],
)
def test_wrong_settings_are_told_in_one_line(everstep: Everstep, line: str, words: list[str]) -> None:
    result = everstep(*line.split())
    assert result.exit_code == 2
    [said] = result.output.splitlines()
    for word in words:
        assert word in said
