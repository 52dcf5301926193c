"""What is told to listeners: all at first, then what has changed, looked at once for everybody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.controller.web.conftest import Shown, Site
from tests.observe.test_ledger import checkpoint

from everstep.controller.web import feed as feed_module
from everstep.controller.web import shapes
from everstep.controller.web.feed import MAX_BACKLOG, Feed, Listener
from everstep.observe.records import encode

ROW = {"rank": 0, "worker": 3, "pid": 77, "node": "n0", "device": "d0", "phase": "FORWARD", "version": 4, "age_s": 0.1}
STATUS: dict[str, Any] = {"state": "RUNNING", "workers": [ROW], "progress": {"steps": 4, "elapsed_s": 5.0}}


def moved(**changes: object) -> dict[str, Any]:
    return STATUS | {"workers": [ROW | changes]}


def test_what_passes_without_anything_happening_is_no_change() -> None:
    later = moved(age_s=0.9) | {"progress": {"steps": 4, "elapsed_s": 6.0}}
    assert shapes.change(STATUS, later) == {}
    saved = {"checkpoints": {"committed": {"step": 4, "age_s": 1.0}}}
    aged = {"checkpoints": {"committed": {"step": 4, "age_s": 2.0}}}
    assert shapes.change(STATUS | saved, STATUS | aged) == {}


def test_a_worker_that_moves_is_told_in_short() -> None:
    assert shapes.change(STATUS, moved(phase="BACKWARD")) == {"moved": [[0, "BACKWARD", 4]]}


@pytest.mark.parametrize("changes", [{"worker": 9}, {"pid": 78}, {"node": "n1"}, {"device": "d1"}])
def test_another_worker_is_told_with_all_the_others(changes: dict[str, object]) -> None:
    assert shapes.change(STATUS, moved(**changes)) == {"workers": [ROW | changes]}


def test_fields_of_the_job_are_told_when_they_change() -> None:
    assert shapes.change(STATUS, STATUS | {"state": "STOPPING"}) == {"state": "STOPPING"}


def test_without_listeners_nobody_looks(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "PACE_S", 0.001)

    async def scenario() -> None:
        task = asyncio.create_task(shown.feed.run())
        with shown.feed.listener() as listener:
            await listener.hear()
            shown.job.step(1, 1.0)
            await listener.hear()
        looks = shown.looks
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert shown.looks <= looks + 1, "one look may have been under way"
        task.cancel()

    asyncio.run(scenario())


def test_one_look_serves_all_listeners(shown: Shown) -> None:
    async def scenario() -> None:
        listeners = []
        with shown.feed.listener() as first, shown.feed.listener() as second, shown.feed.listener() as third:
            listeners = [first, second, third]
            for listener in listeners:
                await listener.hear()
            assert shown.looks == 1
            task = asyncio.create_task(shown.feed.run())
            shown.job.step(1, 1.0)
            heard = [await listener.hear() for listener in listeners]
            assert heard[0] == heard[1] == heard[2]
            assert b'"steps":1' in (heard[0] or b"")
            assert shown.looks == 2
            task.cancel()

    asyncio.run(scenario())


def test_a_listener_that_does_not_read_has_to_come_again() -> None:
    async def scenario() -> None:
        listener = Listener()
        for number in range(2 * MAX_BACKLOG):
            listener.tell(b"%d" % number)
        heard = [event async for event in _all(listener)]
        assert heard == [b"%d" % number for number in range(MAX_BACKLOG)]

    asyncio.run(scenario())


async def _all(listener: Listener) -> Any:
    while (event := await listener.hear()) is not None:
        yield event


def test_silence_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "BEAT_S", 0.001)
    assert asyncio.run(Listener().hear()) == b": nothing new\n\n"


def test_records_are_told_as_they_are_written(site: Site, tmp_path: Path) -> None:
    job = site.shown.job
    events = site.listen()
    assert events.next("status")["state"] == "RUNNING"
    job.crash(1)
    job.recovered()
    (tmp_path / "recoveries.jsonl").write_bytes(encode(job.record))
    record = events.next("recovery")
    assert (record["number"], record["cause"]) == (0, "EXIT")
    assert record["sentence"] == job.record.sentence
    (tmp_path / "checkpoints.jsonl").write_bytes(checkpoint(10))
    assert events.next("checkpoint")["step"] == 10
    events.close()


def test_who_comes_later_hears_the_present_and_not_the_past(site: Site, tmp_path: Path) -> None:
    job = site.shown.job
    job.crash(1)
    job.recovered()
    (tmp_path / "recoveries.jsonl").write_bytes(encode(job.record))
    early = site.listen()
    assert early.next("status")["generation"] == 2
    job.step(5, 5.0)
    assert early.next()["progress"]["steps"] == 5
    late = site.listen()
    assert late.next("status")["progress"]["steps"] == 5
    for events in (early, late):
        events.close()


def test_the_end_is_the_last_thing_told(site: Site) -> None:
    events = site.listen()
    events.next("status")
    site.soon(site.shown.feed.end)
    text = events.rest().decode().strip().splitlines()
    assert text[-2] == "event: end"
    assert json.loads(text[-1].removeprefix("data: "))["state"] == "RUNNING"
    events.close()


def test_a_feed_without_listeners_ends_in_silence(shown: Shown) -> None:
    Feed(shown.outlook, shown.glance).end()
    assert shown.looks == 0
