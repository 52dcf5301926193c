"""Files of records: what is written is read, what is torn is left out, what is foreign is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from everstep.errors import ConfigError
from everstep.observe.checkpoints import CheckpointRecord, Fate, encode, read_checkpoints, scan_checkpoints

FIRST = CheckpointRecord(
    step=100,
    generation=1,
    attempt=0,
    fate=Fate.COMMITTED,
    reason="",
    time_s=1000.0,
    k0_s=0.5,
    sealed_s=1000.6,
    k1_s=20.0,
    committed_s=1021.0,
    bytes=4096,
    every=100,
    why="asked for",
)
SECOND = replace(FIRST, step=200, fate=Fate.SKIPPED, reason="both slots busy", sealed_s=None, k1_s=None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints.jsonl"


def test_what_is_written_is_read_back(path: Path) -> None:
    path.write_bytes(encode(FIRST) + encode(SECOND))
    assert read_checkpoints(path) == [FIRST, SECOND]


def test_a_file_that_is_not_there_holds_nothing(path: Path) -> None:
    assert read_checkpoints(path) == []
    assert not scan_checkpoints(path).torn


def test_a_line_that_is_still_being_written_is_left_out(path: Path) -> None:
    path.write_bytes(encode(FIRST) + encode(SECOND)[:-1])
    assert read_checkpoints(path) == [FIRST]
    assert scan_checkpoints(path).torn


@pytest.mark.parametrize("line", [b"{}", b'{"why":"\xff"}', b"not json", b'{"step": "seven"}', b"\xff\xfe", b""])
def test_a_foreign_line_is_named_and_the_others_are_read(path: Path, line: bytes) -> None:
    path.write_bytes(encode(FIRST) + line + b"\n" + encode(SECOND))
    found = scan_checkpoints(path)
    assert found.records == [FIRST, SECOND]
    [sentence] = found.foreign
    assert sentence.startswith("line 2 of checkpoints.jsonl is of another version of everstep, or damaged: ")


def test_who_wants_all_of_it_is_told_that_there_is_more(path: Path) -> None:
    path.write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match=r"line 1 of checkpoints\.jsonl is of another version"):
        read_checkpoints(path)


def test_a_key_that_a_later_version_adds_is_passed_over(path: Path) -> None:
    path.write_bytes(encode(FIRST).replace(b"{", b'{"later":1,'))
    assert read_checkpoints(path) == [FIRST]
