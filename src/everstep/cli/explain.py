"""`everstep explain`: what happened in a recovery, in sentences."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import click

from everstep.cli.view import over
from everstep.controller.replay import survivors
from everstep.errors import ConfigError
from everstep.launch.recorded import Recorded, read_run
from everstep.observe.explain import explain as sections
from everstep.observe.explain import headline
from everstep.observe.records import Recovery

_HELP = """Explain recovery N of a run in plain sentences; without N, list all of them.

\b
    everstep explain runs/20260130-101500-train
    everstep explain runs/20260130-101500-train 3

Recoveries count from 0. It works during the run and after it.
"""


@click.command(help=_HELP)
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("number", metavar="[N]", required=False, type=click.IntRange(min=0))
def explain(directory: Path, number: int | None) -> None:
    run = read_run(directory, time.time())
    for note in run.notes:
        _say(f"note: {note}")
    if number is None:
        _say_all(_list(run))
    else:
        _say_all(_one(run, _find(run, number)))


def _find(run: Recorded, number: int) -> Recovery:
    for recovery in run.recoveries:
        if recovery.number == number:
            return recovery
    known = ", ".join(str(recovery.number) for recovery in run.recoveries)
    there = f"it has number {known}" if known else "it has none"
    raise ConfigError(f"there is no recovery {number} in {run.path}: {there}")


def _list(run: Recorded) -> Iterable[str]:
    for recovery in run.recoveries:
        yield f"{recovery.number:>3}  {_clock(recovery.time)}  {recovery.sentence}"
    if not run.recoveries:
        yield "no recovery so far" if run.result is None else "no recovery: nothing failed that had a rank"
    if run.result is not None:
        yield over(run.result)


def _one(run: Recorded, recovery: Recovery) -> Iterable[str]:
    yield f"{_clock(recovery.time)}  {headline(recovery)}"
    for section in sections(recovery, survivors(run.journal)):
        yield ""
        yield section.title
        yield from (f"  {line}" for line in section.lines)


def _clock(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


def _say_all(lines: Iterable[str]) -> None:
    for line in lines:
        _say(line)


def _say(line: str) -> None:
    """Without characters that a terminal obeys: evidence is what a script has printed."""
    click.echo("".join(char if char.isprintable() else "?" for char in line.expandtabs()))
