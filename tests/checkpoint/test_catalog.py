"""What a checkpoint directory holds, and what makes a checkpoint one."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.checkpoint.conftest import COORDINATES, TIME_S, WORLD, Place, point

from everstep.checkpoint import catalog, names
from everstep.checkpoint.catalog import Condition
from everstep.checkpoint.commit import commit
from everstep.errors import CheckpointError, ConfigError
from everstep.types import Coordinate, Rank
from everstep.wire.messages import Receipt


def test_the_newest_comes_first_and_each_says_how_it_is(place: Place) -> None:
    for at in (point(90), point(20, generation=2), point(10, attempt=2)):
        place.commit(at)
    place.persist(point(15, attempt=2))
    (place.directory / "notes.txt").touch()
    (place.directory / "step-12-g1-a1").mkdir()
    found = catalog.find(place.store)
    assert [(each.checkpoint, each.condition) for each in found] == [
        (point(15, attempt=2), Condition.INCOMPLETE),
        (point(10, attempt=2), Condition.COMMITTED),
        (point(20, generation=2), Condition.COMMITTED),
        (point(90), Condition.COMMITTED),
    ]


def test_a_directory_that_is_not_there_holds_nothing(place: Place) -> None:
    assert catalog.find(place.store) == []


def test_the_hint_names_the_last_commit(place: Place) -> None:
    place.commit(point(10))
    place.commit(point(20))
    assert place.store.read(names.LATEST).decode() == "step-0000000020-g1-a1\n"


def test_a_commit_tells_all_that_a_reader_needs(place: Place) -> None:
    made = place.commit(point(10))
    [found] = catalog.find(place.store)
    assert found.commit == made
    assert (made.world_size, made.time_s, made.checkpoint) == (WORLD, TIME_S, point(10))
    assert [(share.file, share.replicate, share.shard) for share in made.shares] == [
        ("rank-00000.safetensors", 0, 0),
        ("rank-00001.safetensors", 1, 0),
    ]
    assert made.bytes == sum(place.file(point(10), rank).stat().st_size for rank in range(WORLD))
    assert set(made.versions) == {"everstep", "torch"}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda receipts: receipts[:1], "there is no receipt of rank 1"),
        (lambda receipts: [receipts[0], replace(receipts[1], error="disk full")], "disk full"),
        (lambda receipts: [receipts[0], replace(receipts[1], checkpoint=point(10, generation=2))], "generation=2"),
        (lambda receipts: [*receipts, replace(receipts[1], rank=Rank(2))], "rank=2"),
        (lambda receipts: [receipts[0], replace(receipts[1], size_bytes=7)], "its node wrote 7"),
        (lambda receipts: [receipts[0], replace(receipts[1], file="rank-00009.safetensors")], "all nodes share"),
    ],
)
def test_what_is_not_complete_is_not_committed(
    place: Place, spoil: Callable[[list[Receipt]], list[Receipt]], reason: str
) -> None:
    receipts = spoil(place.persist(point(10)))
    with pytest.raises(CheckpointError, match=reason):
        commit(place.store, point(10), receipts, COORDINATES, TIME_S)
    assert [each.condition for each in catalog.find(place.store)] == [Condition.INCOMPLETE]


def test_shards_are_told_apart_from_replicas(place: Place) -> None:
    coordinates = {Rank(0): Coordinate(0, 0), Rank(1): Coordinate(0, 1)}
    made = commit(place.store, point(10), place.persist(point(10)), coordinates, TIME_S)
    assert [(share.replicate, share.shard) for share in made.shares] == [(0, 0), (0, 1)]


def test_each_job_gets_a_number_of_its_own(place: Place) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: catalog.claim_attempt(place.store), range(24)))
    assert sorted(taken) == list(range(1, 25))


def test_a_job_does_not_take_a_number_that_a_checkpoint_has(place: Place) -> None:
    place.commit(point(10, attempt=4))
    assert catalog.claim_attempt(place.store) == 5


def test_a_run_its_directory_and_one_checkpoint_lead_to_the_same_place(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = place.commit(point(10))
    monkeypatch.chdir(place.directory / made.directory)
    for path in (place.root, place.directory, place.directory / made.directory, Path()):
        store, only = catalog.locate(path)
        assert os.path.samefile(store.where, place.directory)
        assert only == (point(10) if path.absolute() == place.directory / made.directory else None)
    with pytest.raises(ConfigError, match="nowhere is not a directory"):
        catalog.locate(Path("nowhere"))
