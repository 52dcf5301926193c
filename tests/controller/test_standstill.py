"""A stall is acted upon when all have said where they stand, and not before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everstep.controller import standstill
from everstep.controller.standstill import Standstill
from everstep.core.events import Event, Stalled
from everstep.types import Generation, WorkerId
from everstep.wire.messages import Stack

STALLED = Stalled(Generation(3), "nobody moves")
WORKERS = (WorkerId(4), WorkerId(7))


class Told:
    def __init__(self, run: Path) -> None:
        self.asked: list[tuple[WorkerId, ...]] = []
        self.taken: list[Event] = []
        self.standstill = Standstill(run, self.asked.append, self.taken.append)


def test_the_stacks_of_all_come_first(tmp_path: Path) -> None:
    async def stall() -> None:
        told = Told(tmp_path)
        told.standstill.look_into(STALLED, WORKERS)
        told.standstill.on_stack(Stack(WORKERS[0], "in recv"))
        assert told.taken == []
        told.standstill.on_stack(Stack(WORKERS[1], "in send"))
        assert told.taken == [STALLED]

    asyncio.run(stall())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "stacks-g3-w4.txt": "in recv",
        "stacks-g3-w7.txt": "in send",
    }


def test_a_stall_that_is_found_again_meanwhile_is_the_same_one(tmp_path: Path) -> None:
    async def stall() -> None:
        told = Told(tmp_path)
        for _ in range(3):
            told.standstill.look_into(STALLED, WORKERS)
        assert [set(asked) for asked in told.asked] == [set(WORKERS)]
        for worker in WORKERS:
            told.standstill.on_stack(Stack(worker, ""))
        assert told.taken == [STALLED]

    asyncio.run(stall())


def test_who_cannot_answer_holds_it_up_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "LIMIT_S", 0.01)

    async def stall() -> None:
        taken: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        patient = Standstill(tmp_path, lambda _: None, taken.set_result)
        patient.look_into(STALLED, WORKERS)
        patient.on_stack(Stack(WORKERS[0], ""))
        assert await taken == STALLED
        patient.on_stack(Stack(WORKERS[1], "late"))

    asyncio.run(stall())
    assert (tmp_path / "stacks-g3-w7.txt").read_text() == "late"
