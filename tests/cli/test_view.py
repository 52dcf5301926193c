"""The block from a status: all of it in a wide terminal, what matters in a narrow one, nothing that breaks either."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from everstep.cli import view
from everstep.errors import WireError
from everstep.launch.client import CheckpointRow, Result, SavedRow, Snapshot, parse


@pytest.fixture
def snapshot(status: dict[str, Any]) -> Snapshot:
    return parse(json.dumps(status))


def draw(snapshot: Snapshot, width: int, height: int = 40) -> list[str]:
    console = Console(record=True, width=width, height=height, file=io.StringIO())
    console.print(view.block(snapshot, width, height, elapsed_s=75.0))
    return console.export_text().splitlines()


def test_a_wide_terminal_shows_everything(snapshot: Snapshot) -> None:
    lines = [line.rstrip() for line in draw(snapshot, 100)]
    assert lines[:3] == [
        "train-1a2b3c  RUNNING  step 41  generation 3  1:15",
        "  rank  worker   pid  node     step  phase    version    age",
        "     0       7  4000  local-0    41  READY         41  0.2 s",
    ]
    assert lines[6] == "  standby: worker 12 on local-1"
    assert lines[7].endswith("rank 2 (worker 5 on local-0) exited: killed by SIGKILL")
    assert len(lines) == 9


def test_a_narrow_terminal_shows_what_matters(snapshot: Snapshot) -> None:
    lines = draw(snapshot, 40)
    assert all(len(line) <= 40 for line in lines)
    assert [line.split() for line in lines[1:4]] == [
        ["rank", "step", "phase"],
        ["0", "41", "READY"],
        ["1", "41", "FORWARD"],
    ]
    assert len(lines) == 9, "nothing wraps"


def test_ranks_that_do_not_fit_are_counted(snapshot: Snapshot) -> None:
    many = replace(snapshot, workers=snapshot.workers * 25)
    lines = draw(many, 100, height=24)
    assert len(lines) <= 24
    assert "… and 84 more ranks" in "\n".join(lines)


def saved(**more: Any) -> CheckpointRow:
    in_memory, on_storage = SavedRow(40, 3, 1), SavedRow(30, 3, 1, age_s=12.0)
    facts: dict[str, Any] = {"every": 10, "why": "asked for", "sealed": in_memory, "committed": on_storage}
    return CheckpointRow(**facts | {"skipped": 0, "busy": False, "error": ""} | more)


def test_what_a_failure_would_go_back_to_is_shown(snapshot: Snapshot) -> None:
    lines = "\n".join(draw(replace(snapshot, checkpoints=saved()), 100))
    assert "checkpoint: step 30 on storage, 0:12 ago; step 40 in memory" in lines
    assert "checkpoint" not in "\n".join(draw(replace(snapshot, checkpoints=saved(sealed=None, committed=None)), 100))


def test_a_storage_that_cannot_follow_is_shown(snapshot: Snapshot) -> None:
    lines = "\n".join(draw(replace(snapshot, checkpoints=saved(busy=True, error="step 20: disk full")), 100))
    assert "step 40 in memory; storage is busy" in lines
    assert "not on storage: step 20: disk full" in lines


def test_what_was_not_seen_yet_is_a_dash(snapshot: Snapshot) -> None:
    new = replace(snapshot.workers[0], pid=0, step=-1, version=-1)
    assert draw(replace(snapshot, workers=(new,)), 100)[2].split() == [
        "0",
        "7",
        *"–",
        "local-0",
        *"–",
        "READY",
        *"–",
        "0.2",
        "s",
    ]


def test_a_failure_is_one_line_that_no_terminal_obeys(snapshot: Snapshot) -> None:
    [_, text] = view.failures(snapshot)
    assert text.endswith(" rank 1 hangs … in ?[2Jtrain.py:7")
    assert view.tidy("\n") == ""


def test_of_a_traceback_the_line_tells_what_was_raised() -> None:
    text = "rank 0: exited (code 1:\nTraceback (most recent call last):\n  File ...\nValueError: no (really)\n)\n"
    assert view.tidy(text) == "rank 0: exited (code 1: … ValueError: no (really)"


def test_brackets_are_no_markup(snapshot: Snapshot) -> None:
    assert draw(replace(snapshot, job="[red]x[/red]"), 100)[0].startswith("[red]x[/red]  RUNNING")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result(0, "all ranks are done"), "the run is over: done"),
        (Result(1, "rank 1 hangs\nthere"), "the run is over: failed with code 1: rank 1 hangs … there"),
        (Result(130, "interrupted"), "the run is over: interrupted"),
    ],
)
def test_how_a_run_ended_in_a_sentence(result: Result, text: str) -> None:
    assert view.over(result).startswith(text)


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0:00"), (75, "1:15"), (3600 * 30 + 61, "30:01:01")])
def test_durations(seconds: float, text: str) -> None:
    assert view.duration(seconds) == text


def test_a_status_of_another_version_is_told_apart() -> None:
    with pytest.raises(WireError, match="another version of everstep"):
        parse('{"state": 7}')
