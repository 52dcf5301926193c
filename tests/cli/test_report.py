"""`everstep report`: where it writes, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from tests.observe.report.invented import invented

from everstep.controller.job import RunDir

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Everstep


def test_the_page_is_written_into_the_directory_of_the_run(everstep: Everstep, run: RunDir) -> None:
    result = everstep("report", str(run.path))
    assert result.exit_code == 0
    assert result.output == f"{run.path / 'report.html'}\n"
    assert (run.path / "report.html").read_text().startswith("<!doctype html>")


def test_the_page_and_each_picture_go_where_they_are_wanted(everstep: Everstep, run: RunDir, tmp_path: Path) -> None:
    run.recoveries.write_bytes(msgspec.json.encode(invented().recoveries[0]) + b"\n")
    page, folder = tmp_path / "new" / "a.html", tmp_path / "pictures"
    result = everstep("report", str(run.path), "-o", str(page), "--svg", str(folder))
    assert result.exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"consistency.svg", "recovery-0.svg", "recovery-times.svg"}
    assert set(result.output.split()) == {str(page), *(str(path) for path in folder.iterdir())}


def test_without_a_directory_it_is_the_newest_run(everstep: Everstep, run: RunDir) -> None:
    assert everstep("report").exit_code == 0
    assert (run.path / "report.html").exists()


def test_what_is_no_run_is_one_line(everstep: Everstep, tmp_path: Path) -> None:
    result = everstep("report", str(tmp_path / "no"))
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert "there is no such directory" in result.output


def test_a_place_that_cannot_be_written_is_one_line(everstep: Everstep, run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = everstep("report", str(run.path), "-o", str(tmp_path / "file" / "a.html"))
    assert result.exit_code == 2
    assert "cannot be written" in result.output
