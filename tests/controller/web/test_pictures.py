"""Pictures come from a process of their own: drawn when they are asked for, kept while they are true."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
from tests.controller.web.conftest import Shown, Site
from tests.e2e.conftest import eventually

from everstep.controller.web import pictures as module
from everstep.controller.web.pictures import NARROW, RUN_PICTURES, WIDE, DrawError, Pictures
from everstep.observe.records import encode


def fail(shown: Shown) -> None:
    """One more recovery, long over."""
    shown.job.crash(1)
    shown.job.recovered()
    (shown.root / "recoveries.jsonl").write_bytes(b"".join(map(encode, shown.job.records)))
    shown.job.now += 100.0


def drawing() -> bool:
    """A process of ours draws."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            found.append("everstep.launch.draw" in child.cmdline())
    return any(found)


@pytest.fixture
def pictures(shown: Shown) -> Pictures:
    return Pictures(shown.root, shown.outlook.ledger, shown.outlook.now_s)


def test_a_recovery_is_drawn_for_screens_and_for_phones(site: Site) -> None:
    fail(site.shown)
    for query, width in (("", WIDE), ("?narrow", NARROW)):
        answer = site.ask(f"/picture/recovery-0.svg{query}")
        assert (answer.code, answer.headers["Content-Type"]) == (200, "image/svg+xml")
        assert ElementTree.fromstring(answer.body).attrib["viewBox"].startswith(f"0 0 {width} ")
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_what_a_picture_shows_is_there_as_json(site: Site) -> None:
    fail(site.shown)
    answer = site.ask("/api/lanes/0")
    assert (answer.code, answer.headers["Content-Type"]) == (200, "application/json")
    shown, [record] = json.loads(answer.body), site.shown.job.records
    assert shown["recovery"] == record.number
    assert shown["failed_s"] == pytest.approx(record.time - record.t_detect_s)
    assert shown.keys() == {"recovery", "start_s", "end_s", "failed_s", "lanes", "hidden", "stages", "steps"}
    assert site.ask("/api/lanes/1").code == site.ask("/api/lanes/x").code == 404


@pytest.mark.parametrize("name", RUN_PICTURES)
def test_each_picture_of_a_run_is_there_when_there_is_nothing_to_show_yet(site: Site, name: str) -> None:
    assert ElementTree.fromstring(site.ask(f"/picture/{name}.svg").body).attrib["data-name"] == name


@pytest.mark.parametrize(
    "name", ["recovery-0", "recovery-", "recovery-00", "recovery--1", "nix", "recovery-²", "lanes-0"]
)
def test_what_there_is_no_picture_of_is_not_drawn(pictures: Pictures, name: str) -> None:
    assert not pictures.known(name)


def test_an_unknown_picture_is_not_found(site: Site) -> None:
    assert site.ask("/picture/recovery-0.svg").code == 404


def test_a_picture_is_drawn_once_for_all_who_ask(shown: Shown, pictures: Pictures) -> None:
    fail(shown)

    async def scenario() -> None:
        first, second = await asyncio.gather(*(pictures.get("recovery-0", WIDE) for _ in range(2)))
        assert first is second

    asyncio.run(scenario())


def test_it_is_drawn_again_when_there_is_more_to_show(
    shown: Shown, pictures: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STAND_S", 0.0)
    monkeypatch.setattr(module, "IDLE_SHARE", 0)

    async def scenario() -> None:
        fail(shown)
        before = await pictures.get("recovery-times", WIDE)
        assert await pictures.get("recovery-times", WIDE) is before
        fail(shown)
        after = await pictures.get("recovery-times", WIDE)
        assert b"2 recoveries" in after
        assert b"2 recoveries" not in before

    asyncio.run(scenario())


def test_why_it_cannot_be_drawn_is_told(site: Site, tmp_path: Path) -> None:
    fail(site.shown)
    assert site.shown.outlook.ledger.counts == (0, 0)
    site.ask("/api/recoveries")
    (tmp_path / "recoveries.jsonl").unlink()  # the page knows of it, the one who draws does not find it
    answer = site.ask("/picture/recovery-0.svg")
    assert answer.code == 503
    assert b"this run has no picture 'recovery-0'" in answer.body


def test_who_draws_for_too_long_is_ended(shown: Shown, pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAW_S", 0.001)
    with pytest.raises(DrawError, match="not drawn within"):
        asyncio.run(pictures.get("consistency", WIDE))
    assert not drawing()


def test_a_page_that_ends_takes_along_who_draws(site: Site) -> None:
    fail(site.shown)
    with socket.create_connection(("127.0.0.1", site.port), 10) as sock:
        sock.sendall(b"GET /picture/recovery-0.svg HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(drawing, "it is being drawn")
        site.close()
        assert not drawing()
