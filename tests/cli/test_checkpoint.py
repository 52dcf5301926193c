"""What `everstep checkpoint` says of a directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.checkpoint.conftest import Place, point

from everstep.cli import terminal

if TYPE_CHECKING:
    from tests.cli.conftest import Everstep

OLD, NEW = point(10), point(20)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    for at in (OLD, NEW):
        place.commit(at)
    place.persist(point(30))
    return place


def test_list_shows_each_of_them(everstep: Everstep, place: Place) -> None:
    result = everstep("checkpoint", "list", str(place.root))
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines() if "step-" in line]
    assert [(row[0], row[1]) for row in rows] == [("30", "–"), ("20", "2"), ("10", "2")]
    assert "incomplete" in rows[0]


def test_a_table_in_a_pipe_is_not_cut(everstep: Everstep, place: Place) -> None:
    lines = everstep("checkpoint", "list", str(place.root)).output.splitlines()
    for at in (OLD, NEW):
        assert any(line.rstrip().endswith(f"step-{at.step:010}-g1-a1") for line in lines)
    assert not any("…" in line for line in lines)


def test_a_terminal_of_80_columns_shows_it_whole(
    everstep: Everstep, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "PIPE_COLUMNS", 80)
    lines = everstep("checkpoint", "list", str(place.root)).output.splitlines()
    assert sum(line.rstrip().endswith("-g1-a1") for line in lines) == 3
    assert not any("…" in line for line in lines)


def test_list_as_json(everstep: Everstep, place: Place) -> None:
    listed = json.loads(everstep("checkpoint", "list", "--json", str(place.root)).output)
    assert [(each["step"], each["condition"], each["world_size"]) for each in listed] == [
        (30, "incomplete", None),
        (20, "committed", 2),
        (10, "committed", 2),
    ]


def test_verify_names_the_damage_marks_it_and_fails(everstep: Everstep, place: Place) -> None:
    result = everstep("checkpoint", "verify", str(place.directory))
    assert (result.exit_code, result.output.count(": good, 2 files")) == (0, 2)
    path = place.file(NEW, 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = everstep("checkpoint", "verify", str(place.directory))
    assert result.exit_code == 1
    assert f"step-0000000020-g1-a1: damaged: {path}: the checksum of model.b is wrong\n" in result.output
    listed = everstep("checkpoint", "list", str(place.directory)).output
    assert f"\nstep-0000000020-g1-a1: {path}: the checksum of model.b is wrong\n" in listed


def test_verify_of_one_checkpoint_looks_at_no_other(everstep: Everstep, place: Place) -> None:
    place.file(OLD, 0).unlink()
    assert everstep("checkpoint", "verify", str(place.file(NEW, 0).parent)).exit_code == 0


def test_show_lists_files_and_tensors(everstep: Everstep, place: Place) -> None:
    result = everstep("checkpoint", "show", str(place.root))
    assert result.exit_code == 0
    assert "step 20, generation 1, attempt 1" in result.output
    rows = [line.split() for line in result.output.splitlines() if "model.a" in line]
    assert rows == [["model.a", "F32", "[5,", "3]", "1"]]


def test_show_says_why_there_is_nothing_to_show(everstep: Everstep, place: Place) -> None:
    result = everstep("checkpoint", "show", str(place.file(point(30), 0).parent))
    assert result.exit_code == 1
    assert result.stderr.endswith("step-0000000030-g1-a1 is incomplete: it was not committed\n")


def test_a_directory_without_checkpoints_is_an_error(everstep: Everstep, tmp_path: Path) -> None:
    result = everstep("checkpoint", "list", str(tmp_path))
    assert (result.exit_code, result.stderr) == (2, f"everstep: there is no checkpoint in {tmp_path}\n")
