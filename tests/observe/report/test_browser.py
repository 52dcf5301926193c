"""The report as a browser shows it: without errors, without a request, with everything in its place at every width."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from tests.browser import HANG_S, browser, log, look
from tests.observe.report.invented import FORWARD_S, Fault, invented, with_checkpoints

from everstep.observe.report.page import page, pictures
from everstep.observe.report.run import Run, State

EVIL = "killed </script><script>window.evil = 1</script><img src=http://localhost:9/x>"

GEOMETRY = """
const [picture, worker, phase] = arguments;
const svg = document.querySelector(`#${picture} .wide svg`);
const unit = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
const left = svg.getBoundingClientRect().left;
return [...svg.querySelectorAll(`.device[data-worker="${worker}"] [data-phase="${phase}"]`)].map(block => {
  const box = block.getBoundingClientRect();
  return {start: +block.dataset.start, end: +block.dataset.end, x: (box.left - left) / unit, width: box.width / unit};
});
"""
OUTSIDE = """
const seen = [...document.querySelectorAll("svg.picture")].filter(svg => svg.getBoundingClientRect().width > 0);
return seen.flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1);
  }).map(text => `${svg.dataset.name}: ${text.textContent}`);
});
"""
OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll("svg.picture")) {
  if (!svg.getBoundingClientRect().width) continue;
  const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  texts.forEach(([one, a], index) => texts.slice(index + 1).forEach(([other, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 2 && high > 4.5) found.push(`${svg.dataset.name}: ${one} / ${other}`);
  }));
}
return found;
"""


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser(tmp_path_factory.mktemp("chromium")) as chrome:
        yield chrome


def show(chrome: Chrome, folder: Path, run: Run) -> None:
    file = folder / "report.html"
    file.write_text(page(run), encoding="utf-8")
    for name in ("browser", "performance"):
        log(chrome, name)  # what was before
    chrome.get(file.as_uri())


def run_() -> Run:
    """Three recoveries, in each phase one, and checkpoints."""
    runs = [invented(fault=Fault(phase=phase)) for phase in ("BACKWARD", "COMMITTED")]
    runs.append(invented(fault=Fault(phase="FORWARD", cause="HANG", detect_s=3.0, evidence="has not moved for 3.0 s")))
    recoveries = tuple(replace(run.recoveries[0], number=number) for number, run in enumerate(runs))
    return with_checkpoints(replace(runs[0], recoveries=recoveries))


def requests(chrome: Chrome) -> list[str]:
    """What the page has asked for, the page itself left out."""
    events: list[dict[str, Any]] = [json.loads(entry["message"])["message"] for entry in log(chrome, "performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith(("file:", "data:,"))]


def test_it_opens_without_errors_and_asks_nobody(chrome: Chrome, tmp_path: Path) -> None:
    look(chrome, 1400)
    show(chrome, tmp_path, run_())
    assert log(chrome, "browser") == []
    assert requests(chrome) == []
    assert chrome.find_element(By.TAG_NAME, "h1").text.startswith("20260130-101500-train")


def test_blocks_are_where_their_recorded_times_say(chrome: Chrome, tmp_path: Path) -> None:
    look(chrome, 1400)
    show(chrome, tmp_path, invented())
    first, second, *_ = chrome.execute_script(GEOMETRY, "recovery-0", 0, "FORWARD")
    [optimizer] = chrome.execute_script(GEOMETRY, "recovery-0", 0, "COMMITTED")
    slope = (optimizer["x"] - second["x"]) / (optimizer["start"] - second["start"])
    assert second["end"] - second["start"] == pytest.approx(FORWARD_S, abs=1e-5)
    for block in (first, second, optimizer):
        assert block["width"] == pytest.approx((block["end"] - block["start"]) * slope, abs=0.1)
        assert block["x"] - first["x"] == pytest.approx((block["start"] - first["start"]) * slope, abs=0.1)


@pytest.mark.parametrize("width", [1400, 820, 390])
def test_no_word_is_cut_off_and_the_page_does_not_scroll_sideways(chrome: Chrome, tmp_path: Path, width: int) -> None:
    look(chrome, width)
    show(chrome, tmp_path, run_())
    assert chrome.execute_script(OUTSIDE) == []
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1400, 390])
def test_no_word_lies_on_another(chrome: Chrome, tmp_path: Path, width: int) -> None:
    look(chrome, width)
    show(chrome, tmp_path, run_())
    assert chrome.execute_script(OVERLAPS) == []


def test_a_phone_gets_pictures_of_its_own_width(chrome: Chrome, tmp_path: Path) -> None:
    look(chrome, 390)
    show(chrome, tmp_path, invented())
    shown = chrome.find_elements(By.CSS_SELECTOR, "svg.picture[data-name='recovery-0']")
    assert [picture.is_displayed() for picture in shown] == [False, True]


def test_it_is_dark_where_the_reader_wants_it_dark(chrome: Chrome, tmp_path: Path) -> None:
    show(chrome, tmp_path, invented())
    grounds = []
    for dark in (False, True):
        look(chrome, 1400, dark=dark)
        grounds.append(chrome.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(246, 248, 250)", "rgb(11, 15, 19)"]


def test_on_paper_the_wide_pictures_are_shown_dark_on_light(chrome: Chrome, tmp_path: Path) -> None:
    look(chrome, 390, dark=True, paper=True)
    show(chrome, tmp_path, invented())
    shown = chrome.find_elements(By.CSS_SELECTOR, "svg.picture[data-name='recovery-0']")
    assert [picture.is_displayed() for picture in shown] == [True, False]
    inks = ["fill", "color"]
    words = [chrome.find_element(By.CSS_SELECTOR, "svg.picture text"), chrome.find_element(By.TAG_NAME, "h1")]
    found = [word.value_of_css_property(ink) for word, ink in zip(words, inks, strict=True)]
    assert all("22, 32, 42" in ink for ink in found)
    look(chrome, 1400)


def test_arrow_keys_tell_exact_values(chrome: Chrome, tmp_path: Path) -> None:
    look(chrome, 1400)
    show(chrome, tmp_path, invented())
    picture = chrome.find_element(By.CSS_SELECTOR, "#recovery-0 .wide svg")
    chrome.execute_script("arguments[0].focus()", picture)
    said = []
    for _ in range(4):
        picture.send_keys(Keys.ARROW_RIGHT)
        said.append(chrome.find_element(By.ID, "tip").text)
    assert len(set(said)) == 4
    assert any("Forward of step 3" in words and "ms" in words for words in said)
    picture.send_keys(Keys.ESCAPE)
    assert not chrome.find_element(By.ID, "tip").is_displayed()


def test_tables_open_without_the_script(chrome: Chrome, tmp_path: Path) -> None:
    look(chrome, 1400)
    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(chrome, tmp_path, invented())
        details = chrome.find_element(By.CSS_SELECTOR, "#recovery-0 details")
        details.find_element(By.TAG_NAME, "summary").click()
        assert "Optimizer Step" in details.text
    finally:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_what_a_run_says_does_nothing(chrome: Chrome, tmp_path: Path) -> None:
    look(chrome, 1400)
    show(chrome, tmp_path, replace(invented(fault=Fault(evidence=EVIL)), remarks=(EVIL,), program=EVIL))
    assert chrome.execute_script("return window.evil") is None
    assert requests(chrome) == []
    assert log(chrome, "browser") == []


def test_an_empty_run_has_a_page_too(chrome: Chrome, tmp_path: Path) -> None:
    show(chrome, tmp_path, Run("empty", State.EMPTY, remarks=("Nothing is recorded.",)))
    assert "Nothing is recorded." in chrome.find_element(By.TAG_NAME, "header").text
    assert log(chrome, "browser") == []


def test_a_thousand_devices_open_and_show_all_on_request(chrome: Chrome, tmp_path: Path, record_property: Any) -> None:
    """How fast is a number for `bench`, not for a test: here only that it does not hang."""
    look(chrome, 1400)
    show(chrome, tmp_path, invented(1024))
    [timing] = chrome.execute_script("return performance.getEntriesByType('navigation').map(e => e.toJSON())")
    record_property("load_s", timing["loadEventEnd"] / 1000)
    assert timing["loadEventEnd"] < HANG_S * 1000
    assert chrome.execute_script("return document.getElementsByTagName('*').length") < 5000
    everybody = chrome.find_element(By.CSS_SELECTOR, "details.everybody")
    everybody.find_element(By.TAG_NAME, "summary").click()
    assert everybody.find_element(By.TAG_NAME, "svg").is_displayed()


@pytest.mark.parametrize("width", [1400, 390])
def test_each_picture_alone_is_shown_by_a_browser(chrome: Chrome, tmp_path: Path, width: int) -> None:
    look(chrome, width)
    for picture in pictures(run_()):
        file = tmp_path / f"{picture.name}.svg"
        file.write_text(picture.standalone(), encoding="utf-8")
        chrome.get(file.as_uri())
        assert log(chrome, "browser") == []
        assert chrome.execute_script("return document.documentElement.tagName") == "svg"
