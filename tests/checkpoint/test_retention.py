"""Which checkpoints stay and which go."""

from __future__ import annotations

import pytest
from tests.checkpoint.conftest import Place, expected, load, point

from everstep.checkpoint import catalog, names, retention
from everstep.core.events import Checkpoint


def steps(place: Place) -> list[int]:
    return [each.checkpoint.step for each in catalog.find(place.store)]


def committed(place: Place, *at: Checkpoint) -> Checkpoint:
    for each in at:
        place.commit(each)
    return at[-1]


def test_the_last_ones_stay_and_the_others_are_hidden_and_then_removed(place: Place) -> None:
    newest = committed(place, *map(point, (10, 20, 30, 40, 50)))
    hidden = retention.retire(place.store, newest)
    assert hidden == [f"{names.TRASH}{names.directory_of(point(step))}" for step in (10, 20)]
    assert steps(place) == [50, 40, 30]
    assert set(hidden) <= set(place.store.names())
    retention.purge(place.store)
    assert not set(hidden) & set(place.store.names())


def test_two_good_ones_stay_whatever_is_asked_for(place: Place) -> None:
    newest = committed(place, *map(point, (10, 20, 30)))
    retention.retire(place.store, newest, keep=1)
    assert steps(place) == [30, 20]


def test_damaged_ones_do_not_count_and_go_when_enough_newer_good_ones_are_there(place: Place) -> None:
    newest = committed(place, *map(point, (10, 20, 30)))
    place.file(point(20), 1).write_bytes(b"")
    assert retention.retire(place.store, newest, keep=2) == []
    assert steps(place) == [30, 20, 10]
    retention.retire(place.store, committed(place, point(40)), keep=2)
    assert steps(place) == [40, 30]


def test_nothing_goes_if_the_newest_one_is_not_good(place: Place) -> None:
    newest = committed(place, *map(point, (10, 20, 30, 40)))
    place.file(newest, 0).unlink()
    assert retention.retire(place.store, newest, keep=2) == []
    assert steps(place) == [40, 30, 20, 10]


def test_what_was_never_committed_goes_when_it_is_overtaken(place: Place) -> None:
    committed(place, point(10), point(20))
    for unfinished in (25, 35):
        place.persist(point(unfinished))
    retention.retire(place.store, committed(place, point(30)), keep=3)
    assert steps(place) == [35, 30, 20, 10]


def test_the_first_of_each_so_many_steps_stays(place: Place) -> None:
    newest = committed(place, *map(point, (90, 110, 150, 190, 210, 250)))
    retention.retire(place.store, newest, keep=2, every=100)
    assert steps(place) == [250, 210, 110, 90]


def test_newer_is_what_was_taken_later_not_what_has_the_higher_step(place: Place) -> None:
    newest = committed(place, point(90), point(80, generation=2), point(20, attempt=2), point(30, attempt=2))
    retention.retire(place.store, newest, keep=3)
    assert steps(place) == [30, 20, 80]


def test_what_the_job_may_fall_back_to_stays(place: Place) -> None:
    """It went on from step 20, because what came later was of no use."""
    newest = committed(place, *map(point, (20, 30, 40)), point(25, attempt=2))
    retention.retire(place.store, newest, keep=2, needed=[point(20), newest])
    assert steps(place) == [25, 40, 20]


@pytest.mark.parametrize("left", ["nothing", "a half purged one"])
def test_a_hidden_one_that_could_not_be_purged_is_purged_the_next_time(place: Place, left: str) -> None:
    trash = place.directory / f"{names.TRASH}{names.directory_of(point(10))}"
    newest = committed(place, *map(point, (10, 20, 30)))
    if left != "nothing":
        trash.mkdir()
        (trash / "rank-00000.safetensors").touch()
    assert len(retention.retire(place.store, newest, keep=2)) == 1
    retention.purge(place.store)
    assert not [name for name in place.store.names() if name.startswith(names.TRASH)]
    assert load(place.store) == (point(30), expected(point(30)))
