"""`everstep trace` says where the trace is, and in one line what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.controller.job import RunDir

if TYPE_CHECKING:
    from tests.cli.conftest import Everstep


def test_the_newest_run_is_written_beside_its_record(everstep: Everstep, run: RunDir) -> None:
    result = everstep("trace")
    path = Path("runs") / run.path.name / "trace.json"
    assert (result.exit_code, result.output.split(":")[0]) == (0, str(path))
    assert {event["ph"] for event in json.loads(path.read_text())["traceEvents"]} == {"M"}, "nothing ran"


def test_the_file_can_be_chosen(everstep: Everstep, run: RunDir, tmp_path: Path) -> None:
    assert everstep("trace", str(run.path), "-o", "here.json").exit_code == 0
    assert (tmp_path / "here.json").exists()


def test_a_folder_without_a_run_is_refused(everstep: Everstep, tmp_path: Path) -> None:
    result = everstep("trace", str(tmp_path))
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert "is not the directory of a run" in result.output


def test_a_file_that_cannot_be_written_is_named(everstep: Everstep, run: RunDir) -> None:
    result = everstep("trace", str(run.path), "-o", "nowhere/trace.json")
    assert (result.exit_code, result.output) == (2, "everstep: nowhere/trace.json: No such file or directory\n")
