"""Whatever happens to the bytes of a checkpoint is found, named and skipped: never loaded."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.checkpoint.conftest import COORDINATES, TIME_S, Place, expected, load, manifest, point, reads, share

from everstep.checkpoint import catalog, files, names
from everstep.checkpoint.catalog import Condition
from everstep.checkpoint.commit import commit
from everstep.checkpoint.disk import Disk
from everstep.errors import CheckpointError, StateError

OLD, NEW = point(10), point(20)


@pytest.fixture
def both(place: Place) -> Place:
    for at in (OLD, NEW):
        place.commit(at)
    return place


def test_what_is_loaded_is_what_was_written(both: Place) -> None:
    assert load(both.store) == (NEW, expected(NEW))


def flips(path: Path) -> Iterator[bytes]:
    """The file with one bit turned, at as many places as there is time for."""
    whole = path.read_bytes()
    for number, at in enumerate(range(0, len(whole), 1 if path.name == names.COMMIT else 13)):
        yield whole[:at] + bytes([whole[at] ^ (1 << number % 8)]) + whole[at + 1 :]


def cuts(path: Path) -> Iterator[bytes]:
    whole = path.read_bytes()
    for end in (0, 5, 8, 2000, 4095, 4096, 4097, len(whole) - 1):
        yield whole[:end]
    yield whole + b"\0"


def test_a_turned_bit_anywhere_in_a_file_is_named(both: Place) -> None:
    path = both.file(NEW, 1)
    [newest, *_] = catalog.find(both.store)
    assert newest.commit is not None
    count = 0
    for data in flips(path):
        path.write_bytes(data)
        [error] = catalog.verify(both.store, newest.commit)
        assert str(error).startswith(str(path))
        count += 1
    assert count > 300


def test_a_file_of_another_length_is_named(both: Place) -> None:
    path = both.file(NEW, 0)
    [newest, *_] = catalog.find(both.store)
    assert newest.commit is not None
    for data in cuts(path):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            catalog.check(both.store, newest.commit)


def test_a_turned_bit_in_the_commit_is_found_or_changes_nothing(both: Place) -> None:
    path = both.directory / names.directory_of(NEW) / names.COMMIT
    [newest, *_] = catalog.find(both.store)
    harmless = 0
    for data in flips(path):
        path.write_bytes(data)
        found = catalog.find(both.store)[0]
        if found.condition is Condition.COMMITTED:  # a space between two fields
            assert found.commit == newest.commit
            harmless += 1
        else:
            assert found.condition is Condition.BAD or "format" in found.reason
            assert str(path) in found.reason
    assert harmless < len(path.read_bytes()) / 2


def test_a_cut_commit_is_damage_and_not_an_unfinished_checkpoint(both: Place) -> None:
    path = both.directory / names.directory_of(NEW) / names.COMMIT
    path.write_bytes(path.read_bytes()[:100])
    assert catalog.find(both.store)[0].condition is Condition.BAD
    assert load(both.store) == (OLD, expected(OLD))


def test_a_damaged_checkpoint_is_marked_and_the_one_before_is_loaded(both: Place) -> None:
    both.file(NEW, 1).unlink()
    assert load(both.store) == (OLD, expected(OLD))
    [newest, _] = catalog.find(both.store)
    assert (newest.condition, newest.reason) == (Condition.BAD, f"{both.file(NEW, 1)} is missing")


def test_in_a_read_only_directory_damage_is_skipped_without_a_mark(both: Place) -> None:
    class ReadOnly(Disk):
        def create(self, path: Path) -> int:
            raise OSError(30, "Read-only file system", str(path))

    both.file(NEW, 1).unlink()
    both.disk = ReadOnly()
    assert load(both.store) == (OLD, expected(OLD))
    assert catalog.find(both.store)[0].condition is Condition.COMMITTED
    assert not (both.directory / names.directory_of(NEW) / names.BAD).exists()


def test_storage_that_does_not_answer_is_not_damage(both: Place) -> None:
    path = both.file(NEW, 1)
    path.unlink()
    path.symlink_to(path.name)  # to open it is an error of the system, as from a server that is away
    assert load(both.store) == (OLD, expected(OLD))
    assert not (path.parent / names.BAD).exists()


def test_a_file_of_another_rank_or_checkpoint_is_not_taken(both: Place) -> None:
    [newest, _] = catalog.find(both.store)
    assert newest.commit is not None
    for other in (both.file(NEW, 0), both.file(OLD, 1)):
        shutil.copy(other, both.file(NEW, 1))
        with pytest.raises(CheckpointError):
            catalog.check(both.store, newest.commit)


def test_a_commit_that_gives_a_file_to_another_rank_is_not_believed(place: Place) -> None:
    first, second = place.persist(NEW)
    swapped = [replace(first, rank=second.rank), replace(second, rank=first.rank)]
    made = commit(place.store, NEW, swapped, COORDINATES, TIME_S)
    with pytest.raises(CheckpointError, match="is the share of rank 1"):
        catalog.check(place.store, made)


def test_the_manifest_of_a_file_alone_tells_whose_it_is(place: Place) -> None:
    """Without a COMMIT to compare with, as in a file that was sent by mail."""
    place.persist(NEW)
    with files.ShareFile(place.store, f"{names.directory_of(NEW)}/rank-00001.safetensors") as file:
        assert file.manifest == manifest(NEW, 1)


def test_a_file_of_somebody_else_is_not_read(place: Place) -> None:
    header = msgspec.json.encode({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
    place.directory.mkdir()
    (place.directory / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(CheckpointError, match="not written by everstep"):
        files.ShareFile(place.store, "x.safetensors")


def test_two_tensors_of_one_name_are_refused(place: Place) -> None:
    made = manifest(NEW, 0)
    twice = [msgspec.structs.replace(entry, key="model.a") for entry in made.entries]
    with pytest.raises(StateError, match="two tensors of one share have the key"):
        files.write(place.store, "x", msgspec.structs.replace(made, entries=twice), reads(share(NEW, 0)))


def test_values_that_no_reader_would_take_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HEADER_LIMIT_BYTES", 8192)
    with pytest.raises(StateError, match="keep large things as tensors"):
        files.write(place.store, "x", manifest(NEW, 0, values=bytes(9000)), reads(share(NEW, 0)))
