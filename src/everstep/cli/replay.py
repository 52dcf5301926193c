"""`everstep replay`: what the controller saw and decided, from its journal."""

from __future__ import annotations

import json
from pathlib import Path

import click

from everstep.controller import replay as journal
from everstep.controller.job import RunDir
from everstep.controller.replay import ReplayLine
from everstep.errors import ConfigError

_HELP = """Run a journal through the state machine again: each event, the state after it, and the reasons.

\b
    everstep replay runs/20260130-101500-train
    everstep replay runs/20260130-101500-train/journal --json
"""


@click.command(help=_HELP)
@click.argument("source", metavar="JOURNAL|DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
def replay(source: Path, as_json: bool) -> None:
    path = RunDir.open(source).journal if source.is_dir() else source
    begin: float | None = None
    try:
        for line in journal.replay(path):
            begin = line.time_s if begin is None else begin
            click.echo(_json(line) if as_json else _text(line, line.time_s - begin))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a run directory or its journal") from None


def _text(line: ReplayLine, since_s: float) -> str:
    head = f"{since_s:+10.3f} s  g{line.generation:<3} {line.phase.name:<10} {line.event}"
    return "\n".join((head, *(f"{'':27}→ {note}" for note in line.notes)))


def _json(line: ReplayLine) -> str:
    return json.dumps(
        {
            "time": line.time_s,
            "event": line.event,
            "state": line.phase.name,
            "generation": line.generation,
            "notes": line.notes,
        }
    )
