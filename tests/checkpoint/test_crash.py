"""A crash at every single call of a persister or a committer, and a loss of power there: what is loaded afterwards.

It is always one committed checkpoint, all of it, and the newest whose commit had returned or a newer one. What comes
after the crash works as if there had been none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.checkpoint.conftest import COORDINATES, TIME_S, Place, expected, load, point
from tests.checkpoint.disks import PowerDisk

from everstep.checkpoint import catalog, names, retention
from everstep.checkpoint.catalog import Condition
from everstep.checkpoint.commit import commit
from everstep.checkpoint.store import DirectoryStore
from everstep.core.events import Checkpoint

ROOT = Path(__file__).parents[2]
FIRST, SECOND, NEW = point(10), point(20), point(30)


class WithoutHint(DirectoryStore):
    """The hint cannot be written. It is only a hint: the checkpoint is as durable without it."""

    def put(self, name: str, data: bytes) -> None:
        if name == names.LATEST:
            raise OSError(28, "No space left on device")
        super().put(name, data)


class Crasher:
    """A process that forks one for each crash."""

    def __init__(self, what: str, folder: Path, template: Path) -> None:
        self.folder = folder
        self._template = template
        actor = [sys.executable, "-m", "tests.checkpoint.actors.crash", what, str(folder), str(NEW.step)]
        self.process = subprocess.Popen(actor, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def crashes(self) -> Iterator[Place]:
        """What is left by a crash at each call in turn; at last what is left without one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        code = -9
        number = 0
        while code == -9:
            shutil.copytree(self._template, self.folder / str(number))
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
            code = int(self.process.stdout.readline())
            yield Place(self.folder / str(number))
            number += 1
        assert code == 0
        assert number > 5


@contextmanager
def crasher(what: str, tmp_path: Path) -> Iterator[Crasher]:
    template = Place(tmp_path / "template")
    for at in (FIRST, SECOND):
        template.commit(at)
    (tmp_path / "crashes").mkdir()
    crasher = Crasher(what, tmp_path / "crashes", template.root)
    try:
        yield crasher
    finally:
        crasher.process.communicate()


def test_a_persister_that_crashes_at_any_call_leaves_the_last_commit_and_can_do_it_again(tmp_path: Path) -> None:
    with crasher("persist", tmp_path) as persister:
        for place in persister.crashes():
            assert load(place.store) == (SECOND, expected(SECOND))
            assert catalog.find(place.store)[0].condition is not Condition.BAD
            if (place.root / "receipt").exists():
                assert place.file(NEW, 1).exists()
            place.commit(NEW)  # the persister that is started after it gets the same order
            assert load(place.store) == (NEW, expected(NEW))


def test_a_committer_that_crashes_at_any_call_leaves_the_last_commit_or_the_new_one(tmp_path: Path) -> None:
    with crasher("commit", tmp_path) as committer:
        for place in committer.crashes():
            found = load(place.store)
            assert found is not None
            at, loaded = found
            assert loaded == expected(at)
            assert at in ((NEW,) if (place.root / "committed").exists() else (SECOND, NEW))
            assert len(list(catalog.good(place.store))) >= 2
            place.commit(NEW)  # the controller that is started after it finishes what this one had begun
            retention.retire(place.store, NEW, keep=2)
            retention.purge(place.store)
            assert {each.checkpoint for each in catalog.find(place.store)} == {SECOND, NEW}
            assert not [name for name in place.store.names() if name.startswith(names.TRASH)]
            assert load(place.store) == (NEW, expected(NEW))


def test_a_loss_of_power_at_any_call_leaves_all_that_was_promised(tmp_path: Path) -> None:
    promised: list[Checkpoint] = []
    cuts = 0

    def look() -> None:
        nonlocal cuts
        where = tmp_path / f"cut-{cuts}"
        where.mkdir()
        for outcome in disk.outcomes(where):
            found = load(DirectoryStore(outcome))
            conditions = [each.condition for each in catalog.find(DirectoryStore(outcome))]
            assert Condition.BAD not in conditions, "what has a COMMIT is whole"
            if found is None:
                assert not promised
                continue
            at, loaded = found
            assert loaded == expected(at)
            assert not promised or at.age >= promised[-1].age
            assert len(list(catalog.good(DirectoryStore(outcome)))) >= min(2, len(promised))
        shutil.rmtree(where)
        cuts += 1

    place = Place(tmp_path / "job")
    disk = PowerDisk(place.directory, look)
    place.disk = disk
    for at in (FIRST, SECOND, NEW):
        receipts = place.persist(at)
        store = WithoutHint(place.directory, disk) if at == FIRST else place.store
        commit(store, at, receipts, COORDINATES, TIME_S)
        promised.append(at)
        retention.retire(place.store, at, keep=2)
        retention.purge(place.store)
    look()
    assert cuts > 60


@pytest.mark.parametrize("again", [point(30, generation=2), point(30, attempt=2), point(10, generation=3)])
def test_two_attempts_never_mix(place: Place, again: Checkpoint) -> None:
    """The first one had come to half of its files. The second one may be of an earlier step, after a rollback."""
    for at in (FIRST, SECOND):
        place.commit(at)
    late = place.persist(NEW)
    place.file(NEW, 1).unlink()
    place.commit(again)
    assert load(place.store) == (again, expected(again))
    zombie = place.persist(NEW)  # of the old generation: it writes, and nobody commits it
    assert load(place.store) == (again, expected(again))
    assert zombie == late
    retention.retire(place.store, again, keep=2)
    assert NEW not in [each.checkpoint for each in catalog.find(place.store)]
    assert load(place.store) == (again, expected(again))
