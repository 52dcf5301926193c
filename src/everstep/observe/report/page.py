"""The report: one HTML file with everything in it, for any screen, paper or phone. It asks for nothing from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import everstep
from everstep.observe.records import Recovery
from everstep.observe.report import words
from everstep.observe.report.audit import UNCOMPARED, audit_table
from everstep.observe.report.checkpoint import checkpoint_timeline
from everstep.observe.report.consistency import consistency
from everstep.observe.report.devices import all_devices
from everstep.observe.report.failure import failure_timeline
from everstep.observe.report.markup import Child, Markup, tag
from everstep.observe.report.run import Run, State
from everstep.observe.report.scene import SAMPLE
from everstep.observe.report.summary import Tile, failures_by, tiles
from everstep.observe.report.svg import Svg, asset, patterns
from everstep.observe.report.tables import (
    Table,
    checkpoints_table,
    consistency_table,
    recoveries_table,
    recovery_table,
    times_table,
    waste_table,
)
from everstep.observe.report.times import recovery_times
from everstep.observe.report.waste import waste_curve

WIDE, NARROW = 1120.0, 360.0
"""Each picture is drawn for a screen and for a phone; the browser shows the one that fits."""
MOST_PICTURES = 40
"""Of recoveries: the longest ones. All are in the table."""
MOST_ROWS = 8192
"""Of devices, over all pictures of all devices: a page of some megabytes opens at once."""
MOST_LINES = 1000
"""Of a table."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""No browser is to ask anybody for anything, whatever a run has in its evidence."""

Draw = Callable[[float], Svg]


def page(run: Run) -> str:
    pictured = _pictured(run.recoveries)
    sections = [
        _section("summary", "Summary", _summary(run)),
        _section("recoveries", "Recoveries", _recoveries(run, pictured)),
        _section("step", "One step, and where failures fell", _figure(run, consistency, consistency_table(run))),
        *_times(run),
        *_checkpoints(run),
    ]
    body = tag(
        "body",
        tag("svg", patterns(), class_="picture defs", width="0", height="0", aria_hidden="true"),
        _header(run),
        tag("main", sections),
        tag("footer", tag("p", f"Written by everstep {everstep.__version__}. Times are those of the controller.")),
        tag("div", id="tip", role="status", aria_live="polite", hidden=True),
        tag("script", Markup(asset("page.js"))),
    )
    return f"<!doctype html>\n{tag('html', _head(run), body, lang='en')}\n"


def pictures(run: Run) -> Iterator[Svg]:
    """Each picture by itself, as files for papers and READMEs."""
    yield consistency(run)
    for recovery in _pictured(run.recoveries):
        yield failure_timeline(run, recovery)
    if run.recoveries:
        yield recovery_times(run)
    if run.checkpoints:
        yield checkpoint_timeline(run)
        yield waste_curve(run)


def _pictured(recoveries: Sequence[Recovery]) -> list[Recovery]:
    longest = sorted(recoveries, key=lambda recovery: -recovery.t_total_s)[:MOST_PICTURES]
    return sorted(longest, key=lambda recovery: recovery.number)


# ── frame ────────────────────────────────────────────────────────────────────────────────────────────────


def _head(run: Run) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"everstep report: {run.name}"),
        tag("style", Markup(asset("page.css") + asset("picture.css"))),
    )


def _header(run: Run) -> Markup:
    facts = [
        run.program,
        words.plural(run.ranks, "device") if run.ranks else "",
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.began_s)) if run.began_s is not None else "",
    ]
    links = (("recoveries", "recoveries"), ("step", "one step"), ("times", "times"), ("checkpoints", "checkpoints"))
    state = run.state.value + (f": {run.reason}" if run.reason and run.state is not State.DONE else "")
    return tag(
        "header",
        tag("h1", run.name, " ", tag("span", state, class_=f"state state-{run.state.name.lower()}")),
        tag("p", " · ".join(fact for fact in facts if fact), class_="facts"),
        tag("ul", (tag("li", remark) for remark in run.remarks), class_="remarks") if run.remarks else None,
        tag("nav", (tag("a", name, href=f"#{target}") for target, name in links), aria_label="Parts of this report"),
    )


def _section(name: str, title: str, *children: Child) -> Markup:
    return tag("section", tag("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title")


def _figure(run: Run, draw: Callable[[Run, float], Svg], table: Table | None) -> Markup:
    return figure(lambda width: draw(run, width), table)


def figure(draw: Draw, table: Table | None, *more: Child, id_: str | None = None, heading: str | None = None) -> Markup:
    """A picture for wide and for narrow screens, with its table behind it."""
    wide, narrow = draw(WIDE), draw(NARROW)
    return tag(
        "figure",
        tag("figcaption", heading or wide.title),
        tag("div", wide.inline(), class_="wide"),
        tag("div", narrow.inline(), class_="narrow"),
        _behind("These values as a table", table),
        *more,
        id=id_,
    )


def _behind(summary: str, table: Table | None, *more: Child) -> Markup | None:
    if table is None or not table.rows:
        return None
    shown, rest = table, None
    if len(table.rows) > MOST_LINES:
        shown = Table(table.caption, table.head, table.rows[:MOST_LINES])
        rest = tag("p", f"The first {MOST_LINES:,} of {len(table.rows):,} rows.")
    return tag("details", tag("summary", summary), shown.html(), rest, *more)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────


def _summary(run: Run) -> Iterable[Child]:
    yield tag("dl", (_tile(tile) for tile in tiles(run)), class_="tiles")
    head, rows = failures_by(run)
    if rows:
        yield Table("Failures by cause and phase", head, rows).html()
    yield _behind("Hash audit: which digests were compared", audit_table(run), tag("p", UNCOMPARED, class_="note"))


def _tile(tile: Tile) -> Markup:
    return tag("div", tag("dt", tile.name), tag("dd", tile.value, class_="value"), tag("dd", tile.note, class_="note"))


def _recoveries(run: Run, pictured: Sequence[Recovery]) -> Iterable[Child]:
    if not run.recoveries:
        yield tag("p", "There was none: no device has failed.")
        return
    yield recoveries_table(run.recoveries[-MOST_LINES:], (recovery.number for recovery in pictured)).html()
    if len(pictured) < len(run.recoveries):
        yield tag("p", f"Pictures of the {len(pictured)} longest of {len(run.recoveries)} recoveries follow.")
    most = max(16, MOST_ROWS // len(pictured))
    for recovery in pictured:
        yield _recovery(run, recovery, most)


def _recovery(run: Run, recovery: Recovery, most: int) -> Markup:
    picture = failure_timeline(run, recovery, WIDE)
    many = run.ranks > SAMPLE + 1 + len(recovery.failures)
    everybody = _everybody(run, recovery, most) if many else None
    return figure(
        lambda width: picture if width == WIDE else failure_timeline(run, recovery, width),
        recovery_table(run, recovery),
        everybody,
        id_=f"recovery-{recovery.number}",
    )


def _everybody(run: Run, recovery: Recovery, most: int) -> Markup:
    drawing = all_devices(run, recovery, WIDE, most)
    summary = tag("summary", f"Show all devices: {drawing.summary}")
    return tag("details", summary, tag("div", drawing.inline(), class_="all"), class_="everybody")


def _times(run: Run) -> Iterator[Markup]:
    yield _section("times", "Recovery times", _figure(run, recovery_times, times_table(run.recoveries)))


def _checkpoints(run: Run) -> Iterator[Markup]:
    table = checkpoints_table(run.checkpoints, run.began_s) if run.checkpoints else None
    parts = [_figure(run, checkpoint_timeline, table)]
    if run.checkpoints:
        parts.append(_figure(run, waste_curve, waste_table(run)))
    yield _section("checkpoints", "Checkpoints", *parts)
