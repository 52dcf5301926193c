"""The live page in a real browser: it follows the job, asks nobody else, and shows what a run says as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from tests.browser import asked, browser, complaints, look
from tests.controller.web.conftest import Shown, Site
from tests.e2e.conftest import eventually
from tests.observe.test_ledger import checkpoint

from everstep.core.events import Cause, Verdict
from everstep.observe.records import encode

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser(tmp_path_factory.mktemp("chromium")) as chrome:
        yield chrome


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(Shown(tmp_path, getattr(request, "param", 3)))
    yield site
    site.close()


def visit(chrome: Chrome, site: Site) -> None:
    chrome.get(f"http://127.0.0.1:{site.port}/")
    until(chrome, "return document.querySelectorAll('#grid .cell').length", site.shown.job.config.ranks)


def until(chrome: Chrome, script: str, value: object) -> None:
    eventually(lambda: chrome.execute_script(script) == value, f"{script} is {value}")


def text(chrome: Chrome, name: str) -> str:
    return str(chrome.execute_script("return document.getElementById(arguments[0]).textContent", name))


def test_it_shows_the_job_and_follows_it(chrome: Chrome, site: Site) -> None:
    visit(chrome, site)
    assert (text(chrome, "job"), text(chrome, "state")) == ("train-1", "RUNNING")
    job = site.shown.job
    site.shown.seen(7)
    until(chrome, "return document.getElementById('step').textContent", "7")
    until(chrome, "return document.querySelector('.cell').className", "cell forward")
    assert chrome.execute_script("return document.querySelector('.cell').textContent") == "0Forward"
    job.silent.add(job.worker(1))  # it hangs, and its device is not free before it is gone
    job.tell(Verdict(job.worker(1), Cause.HANG))
    until(chrome, "return document.getElementById('state').textContent", "STOPPING")
    until(chrome, "return document.querySelectorAll('.cell.vacant').length", 1)
    assert chrome.execute_script("return document.querySelector('.cell.vacant').textContent") == "1No device"
    assert text(chrome, "ranks") == "2 of 3"


def test_it_asks_nobody_else_and_has_no_complaint(chrome: Chrome, site: Site, tmp_path: Path) -> None:
    job = site.shown.job
    job.crash(1)
    job.recovered()
    (tmp_path / "recoveries.jsonl").write_bytes(encode(job.record))
    (tmp_path / "checkpoints.jsonl").write_bytes(checkpoint(10))
    complaints(chrome), asked(chrome)
    visit(chrome, site)
    until(chrome, "return document.querySelectorAll('figure svg').length", 5)
    assert complaints(chrome) == []
    home = f"http://127.0.0.1:{site.port}/"
    assert [url for url in asked(chrome) if not url.startswith(home)] == []


def test_what_a_run_says_is_shown_as_text(chrome: Chrome, site: Site, tmp_path: Path) -> None:
    job = site.shown.job
    job.crash(1)
    job.recovered()
    failures = tuple(replace(failure, evidence=EVIL) for failure in job.record.failures)
    record = replace(job.record, evidence=EVIL, reason=EVIL, node=EVIL, failures=failures)
    (tmp_path / "recoveries.jsonl").write_bytes(encode(record))
    visit(chrome, site)
    until(chrome, "return document.querySelectorAll('#recoveries svg').length", 1)
    assert EVIL in chrome.execute_script("return document.querySelector('#recoveries summary').textContent")
    assert chrome.execute_script("return document.querySelectorAll('main img, main script').length") == 0
    assert "owned" not in chrome.title


def test_a_recovery_appears_when_it_ends(chrome: Chrome, site: Site, tmp_path: Path) -> None:
    visit(chrome, site)
    job = site.shown.job
    job.crash(1)
    job.recovered()
    (tmp_path / "recoveries.jsonl").write_bytes(encode(job.record))
    until(chrome, "return document.querySelectorAll('#recoveries details[open]').length", 1)
    assert job.record.sentence in chrome.execute_script(
        "return document.querySelector('#recoveries summary').textContent"
    )
    (tmp_path / "checkpoints.jsonl").write_bytes(checkpoint(10))
    until(chrome, "return document.querySelectorAll('#checkpoints tr').length", 1)


def test_the_end_stays_when_the_controller_has_gone(chrome: Chrome, site: Site) -> None:
    visit(chrome, site)
    events = site.listen()
    site.soon(site.shown.feed.end)
    events.rest()
    events.close()
    until(chrome, "return document.getElementById('line').textContent.startsWith('the job is over')", True)
    site.close()
    assert text(chrome, "line").startswith("the job is over")
    assert text(chrome, "state") == "RUNNING"


@pytest.mark.parametrize("site", [1024], indirect=True)
def test_a_thousand_devices_fit_into_a_phone(chrome: Chrome, site: Site) -> None:
    look(chrome, 390)
    site.shown.seen(3)
    visit(chrome, site)
    until(chrome, "return document.querySelectorAll('.cell.forward').length", 1024)
    assert chrome.execute_script("return document.querySelector('.cell').textContent") == "0F"
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= 390
    cut = "return [...document.querySelectorAll('.cell')].filter((c) => c.scrollWidth > c.clientWidth).length"
    assert chrome.execute_script(cut) == 0
