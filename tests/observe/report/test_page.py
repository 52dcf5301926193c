"""The page as a text: complete, escaped, and nothing in it that a browser would ask for."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.observe.report.invented import Fault, invented, with_checkpoints

from everstep.observe.report.page import MOST_PICTURES, page, pictures
from everstep.observe.report.run import Run, State
from everstep.observe.report.summary import goodput

VOID = {"meta", "link", "br"}
EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(1)> \x1b[31m "quoted" \udcff'


class Tags(HTMLParser):
    """Checks that all that is opened is closed, and collects."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def full() -> Run:
    return with_checkpoints(invented())


def test_all_that_is_opened_is_closed_and_ids_are_unique() -> None:
    tags = Tags(page(full()))
    assert tags.open == []
    ids = [attrs["id"] for _, attrs in tags.seen if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_links_lead_to_places_of_the_page() -> None:
    tags = Tags(page(full()))
    ids = {attrs.get("id") for _, attrs in tags.seen}
    assert {(attrs["href"] or "")[1:] for tag, attrs in tags.seen if tag == "a"} <= ids


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = page(full())
    for tag, attrs in Tags(text).seen:
        assert tag not in ("img", "iframe", "object", "video")
        assert not attrs.get("src")
        assert (attrs.get("href") or "#").startswith(("#", "data:,"))
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#es-backward", "#es-optimizer", "#es-ready", "#es-restore"}
    [policy] = [
        attrs["content"] for tag, attrs in Tags(text).seen if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in (policy or "")


def test_what_a_run_says_is_never_markup() -> None:
    run = invented(fault=Fault(evidence=EVIL))
    evil = replace(run, name=EVIL, program=EVIL, remarks=(EVIL,), reason=EVIL, state=State.FAILED)
    tags = Tags(page(evil))
    assert [tag for tag, _ in tags.seen].count("script") == 1
    assert "img" not in {tag for tag, _ in tags.seen}
    assert page(evil).encode()


def test_a_table_stands_behind_each_picture() -> None:
    text = page(full())
    assert text.count("<figure") == text.count("These values as a table") == 5


@pytest.mark.parametrize("state", State)
def test_every_state_of_a_run_has_a_page(state: State) -> None:
    text = page(Run("run", state, remarks=("Nothing is there.",)))
    assert "Nothing is there." in text
    assert state.value in text


def test_of_very_many_recoveries_the_longest_are_drawn_and_all_are_listed() -> None:
    run = invented()
    many = tuple(replace(run.recoveries[0], number=n, t_total_s=0.05 + n / 1000) for n in range(60))
    text = page(replace(run, recoveries=many))
    assert text.count('id="recovery-') == MOST_PICTURES
    assert 'id="recovery-59"' in text
    assert 'id="recovery-3"' not in text
    assert "rank 2 in Backward of step 3" in text


def test_each_picture_is_a_file_with_its_own_styles() -> None:
    files = {picture.name: picture.standalone() for picture in pictures(full())}
    assert set(files) == {"consistency", "recovery-0", "recovery-times", "checkpoints", "checkpoint-interval"}
    assert all(
        "screen and (prefers-color-scheme: dark)" in text and 'id="es-backward"' in text for text in files.values()
    )


def test_goodput_is_what_recoveries_and_redone_work_leave_of_the_wall_time() -> None:
    run = invented(jitter_s=0.0)
    made = goodput(run)
    assert made is not None
    [recovery] = run.recoveries
    assert made.recoveries_s == pytest.approx(recovery.t_total_s - recovery.t_first_step_s, abs=1e-5)
    assert made.redone_s == pytest.approx(0.016 + 0.012, abs=1e-5)  # Forward, and Backward to its half
    assert made.useful_s == pytest.approx(made.wall_s - made.recoveries_s - made.redone_s)
    assert 0 < made.share < 1


def test_an_update_that_counted_is_not_thrown_away() -> None:
    made = goodput(invented(fault=Fault(phase="COMMITTED")))
    assert made is not None
    assert made.redone_s == 0


def test_before_the_first_step_there_is_no_goodput() -> None:
    assert goodput(Run("run", State.EMPTY)) is None
