"""The persister process and the agent's side of it: orders, receipts, deaths."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import IO, TypeVar

import psutil
import pytest
from tests.checkpoint.conftest import Place, expected, fill, load, manifest, point
from tests.checkpoint.disks import FailingDisk

from everstep.checkpoint.client import TRIES, Persister
from everstep.checkpoint.persister import persist
from everstep.checkpoint.slot import SlotWriter
from everstep.checkpoint.store import DirectoryStore

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0
OLD, NEW = point(10), point(20)


def run(work: Awaitable[T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(limited())


async def reached(gate: Path) -> IO[str]:
    """When the persister is about to rename; it goes on when this is closed."""
    return await asyncio.to_thread(gate.open, "w")


def actor(place: Place) -> Persister:
    return Persister((sys.executable, "-m", "tests.checkpoint.actors.persister", str(place.root)))


@pytest.fixture
def gate(place: Place) -> Path:
    os.mkfifo(place.root / "gate")
    return place.root / "gate"


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_receipt_comes_when_the_file_is_there(place: Place) -> None:
    async def work() -> None:
        assert Persister().pid is None, "it is not started before it is needed"
        persister = Persister()
        receipt = await persister.persist(place.order(NEW, 1))
        assert (receipt.rank, receipt.checkpoint, receipt.error) == (1, NEW, "")
        assert receipt.size_bytes == place.file(NEW, 1).stat().st_size
        pid = persister.pid
        assert pid is not None
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        first, second = await asyncio.gather(*(persister.persist(place.order(OLD, rank)) for rank in (0, 1)))
        assert (first.rank, second.rank) == (0, 1)
        await persister.close()

    run(work())


def test_it_does_not_import_torch() -> None:
    script = "import sys, everstep.checkpoint.client; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("crashes", [1, TRIES])
def test_one_that_dies_is_started_again_once(place: Place, crashes: int) -> None:
    (place.root / "crashes").write_text(str(crashes))

    async def work() -> None:
        persister = actor(place)
        receipt = await persister.persist(place.order(NEW, 1))
        assert receipt.error == ("" if crashes < TRIES else f"the persister died {TRIES} times while it wrote it")
        again = await persister.persist(place.order(NEW, 1))  # and the next order finds a new one in any case
        assert again.error == ""
        await persister.close()

    run(work())
    place.commit(NEW)
    assert load(place.store) == (NEW, expected(NEW))


def test_closing_waits_for_what_is_being_written(place: Place, gate: Path) -> None:
    async def work() -> None:
        persister = actor(place)
        writing = asyncio.create_task(persister.persist(place.order(NEW, 1)))
        pipe = await reached(gate)
        waiting = asyncio.create_task(persister.persist(place.order(OLD, 0)))
        closing = asyncio.create_task(persister.close(DEADLINE_S))
        pipe.close()
        await closing
        assert (await writing).error == ""
        assert (await waiting).error == "the agent is ending"

    run(work())
    assert place.file(NEW, 1).exists()


def test_closing_without_time_kills_it_and_leaves_nothing_under_its_name(place: Place, gate: Path) -> None:
    async def work() -> None:
        persister = actor(place)
        writing = asyncio.create_task(persister.persist(place.order(NEW, 1)))
        with await reached(gate):
            pid = persister.pid
            assert pid is not None
            await persister.close()
        assert (await writing).error == "the agent is ending"
        assert not psutil.pid_exists(pid)

    run(work())
    assert not place.file(NEW, 1).exists()


def test_who_gives_up_waiting_does_not_confuse_the_next(place: Place, gate: Path) -> None:
    async def work() -> None:
        persister = actor(place)
        writing = asyncio.create_task(persister.persist(place.order(OLD, 0)))
        with await reached(gate):
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            following = asyncio.create_task(persister.persist(place.order(NEW, 1)))
        receipt = await following
        assert (receipt.rank, receipt.checkpoint, receipt.error) == (1, NEW, "")
        await persister.close()

    run(work())


def test_it_dies_with_its_agent(place: Place, gate: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from tests.checkpoint.conftest import Place, point
from tests.checkpoint.test_persister import actor
place = Place(Path(sys.argv[1]))
async def work():
    persister = actor(place)
    await persister.persist(place.order(point(20), 1))
asyncio.run(work())
"""
    agent = subprocess.Popen([sys.executable, "-c", script, str(place.root)])
    with gate.open("w"):
        [persister] = psutil.Process(agent.pid).children()
        agent.send_signal(signal.SIGKILL)
        agent.communicate(timeout=DEADLINE_S)
        gone, _ = psutil.wait_procs([persister], DEADLINE_S)
    assert gone == [persister]
    assert not place.file(NEW, 1).exists()


# ── what is wrong with the slot or the storage is in the receipt ────────────────────────────────────────────


@pytest.mark.parametrize(("room_bytes", "error"), [(0, errno.ENOSPC), (3000, errno.ENOSPC), (4100, errno.EROFS)])
def test_storage_that_refuses_leaves_nothing_and_says_why(place: Place, room_bytes: int, error: int) -> None:
    place.disk = FailingDisk(room_bytes, error)
    receipt = persist(place.order(NEW, 0), lambda _: place.store)
    assert receipt.error == f"{place.directory}: {os.strerror(error)}"
    assert place.store.names(place.file(NEW, 0).parent.name) == []


def test_a_limit_on_the_size_of_files_is_an_error_and_not_the_end_of_the_process(place: Place) -> None:
    async def work() -> None:
        persister = Persister(("prlimit", "--fsize=4100", sys.executable, "-P", "-m", "everstep.checkpoint.persister"))
        for at in (OLD, NEW):
            receipt = await persister.persist(place.order(at, 0))
            assert receipt.error.endswith("File too large")
        await persister.close()

    run(work())


def test_a_persister_that_cannot_be_started_is_an_error_and_no_end(place: Place) -> None:
    async def work() -> None:
        persister = Persister(("/no/such/program",))
        assert "No such file" in (await persister.persist(place.order(NEW, 0))).error
        await persister.close()

    run(work())


def test_a_directory_that_has_vanished_is_made_again(place: Place) -> None:
    place.commit(OLD)
    shutil.rmtree(place.directory)
    place.commit(NEW)
    assert load(place.store) == (NEW, expected(NEW))


def test_a_directory_that_is_none_is_an_error(place: Place) -> None:
    place.directory.write_text("a file")
    receipt = persist(place.order(NEW, 0))
    assert receipt.error.startswith(str(place.directory))
    assert receipt.error.endswith("File exists") or receipt.error.endswith("Not a directory")


def test_a_slot_that_has_another_checkpoint_by_now_is_not_written(place: Place) -> None:
    order = place.order(OLD, 0)
    fill(Path(order.slot), NEW, 0)
    assert "has Checkpoint(step=20" in persist(order).error
    assert place.store.names() == []


def test_a_slot_that_is_gone_is_an_error(place: Place) -> None:
    order = place.order(OLD, 0)
    Path(order.slot).unlink()
    assert persist(order).error == f"{order.slot}: No such file or directory"


def test_a_slot_that_is_overwritten_while_it_is_read_is_not_published(place: Place) -> None:
    order = place.order(OLD, 0)

    class Overwritten(FailingDisk):
        def write(self, fd: int, data: memoryview, offset: int) -> int:
            with SlotWriter(Path(order.slot)) as slot:
                slot.begin(manifest(NEW, 0)).release()
            return super().write(fd, data, offset)

    place.disk = Overwritten(1 << 20, 0)
    assert "the slot is WRITING" in persist(order, lambda _: DirectoryStore(place.directory, place.disk)).error
    assert place.store.names(place.file(OLD, 0).parent.name) == []
