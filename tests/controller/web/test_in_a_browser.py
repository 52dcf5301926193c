"""The live page in a real browser: it follows the job, asks nobody else, and shows what a run says as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.controller.web import browser as browsers
from tests.controller.web.conftest import Shown, Site
from tests.e2e.conftest import eventually
from tests.observe.test_ledger import checkpoint

from everstep.core.events import Cause, Verdict
from everstep.observe.records import encode

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = browsers.open_browser()
    yield driver
    driver.quit()


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(Shown(tmp_path, getattr(request, "param", 3)))
    yield site
    site.close()


def visit(browser: Any, site: Site) -> None:
    browser.get(f"http://127.0.0.1:{site.port}/")
    until(browser, "return document.querySelectorAll('#grid .cell').length", site.shown.job.config.ranks)


def until(browser: Any, script: str, value: object) -> None:
    eventually(lambda: browser.execute_script(script) == value, f"{script} is {value}")


def text(browser: Any, name: str) -> str:
    return str(browser.execute_script("return document.getElementById(arguments[0]).textContent", name))


def test_it_shows_the_job_and_follows_it(browser: Any, site: Site) -> None:
    visit(browser, site)
    assert (text(browser, "job"), text(browser, "state")) == ("train-1", "RUNNING")
    job = site.shown.job
    site.shown.seen(7)
    until(browser, "return document.getElementById('step').textContent", "7")
    until(browser, "return document.querySelector('.cell').className", "cell forward")
    assert browser.execute_script("return document.querySelector('.cell').textContent") == "0Forward"
    job.silent.add(job.worker(1))  # it hangs, and its device is not free before it is gone
    job.tell(Verdict(job.worker(1), Cause.HANG))
    until(browser, "return document.getElementById('state').textContent", "STOPPING")
    until(browser, "return document.querySelectorAll('.cell.vacant').length", 1)
    assert browser.execute_script("return document.querySelector('.cell.vacant').textContent") == "1No device"
    assert text(browser, "ranks") == "2 of 3"


def test_it_asks_nobody_else_and_has_no_complaint(browser: Any, site: Site, tmp_path: Path) -> None:
    job = site.shown.job
    job.crash(1)
    job.recovered()
    (tmp_path / "recoveries.jsonl").write_bytes(encode(job.record))
    (tmp_path / "checkpoints.jsonl").write_bytes(checkpoint(10))
    browsers.complaints(browser), browsers.asked(browser)
    visit(browser, site)
    until(browser, "return document.querySelectorAll('figure svg').length", 5)
    assert browsers.complaints(browser) == []
    home = f"http://127.0.0.1:{site.port}/"
    assert [url for url in browsers.asked(browser) if not url.startswith(home)] == []


def test_what_a_run_says_is_shown_as_text(browser: Any, site: Site, tmp_path: Path) -> None:
    job = site.shown.job
    job.crash(1)
    job.recovered()
    failures = tuple(replace(failure, evidence=EVIL) for failure in job.record.failures)
    record = replace(job.record, evidence=EVIL, reason=EVIL, node=EVIL, failures=failures)
    (tmp_path / "recoveries.jsonl").write_bytes(encode(record))
    visit(browser, site)
    until(browser, "return document.querySelectorAll('#recoveries svg').length", 1)
    assert EVIL in browser.execute_script("return document.querySelector('#recoveries summary').textContent")
    assert browser.execute_script("return document.querySelectorAll('main img, main script').length") == 0
    assert "owned" not in browser.title


def test_a_recovery_appears_when_it_ends(browser: Any, site: Site, tmp_path: Path) -> None:
    visit(browser, site)
    job = site.shown.job
    job.crash(1)
    job.recovered()
    (tmp_path / "recoveries.jsonl").write_bytes(encode(job.record))
    until(browser, "return document.querySelectorAll('#recoveries details[open]').length", 1)
    assert job.record.sentence in browser.execute_script(
        "return document.querySelector('#recoveries summary').textContent"
    )
    (tmp_path / "checkpoints.jsonl").write_bytes(checkpoint(10))
    until(browser, "return document.querySelectorAll('#checkpoints tr').length", 1)


def test_the_end_stays_when_the_controller_has_gone(browser: Any, site: Site) -> None:
    visit(browser, site)
    events = site.listen()
    site.soon(site.shown.feed.end)
    events.rest()
    events.close()
    until(browser, "return document.getElementById('line').textContent.startsWith('the job is over')", True)
    site.close()
    assert text(browser, "line").startswith("the job is over")
    assert text(browser, "state") == "RUNNING"


@pytest.mark.parametrize("site", [1024], indirect=True)
def test_a_thousand_devices_fit_into_a_phone(browser: Any, site: Site) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        site.shown.seen(3)
        visit(browser, site)
        until(browser, "return document.querySelectorAll('.cell.forward').length", 1024)
        assert browser.execute_script("return document.querySelector('.cell').textContent") == "0F"
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        cut = "return [...document.querySelectorAll('.cell')].filter((c) => c.scrollWidth > c.clientWidth).length"
        assert browser.execute_script(cut) == 0
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
