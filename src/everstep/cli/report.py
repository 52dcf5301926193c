"""`everstep report`: a run as pictures."""

from __future__ import annotations

import time
from pathlib import Path

import click

from everstep.cli.status import newest
from everstep.errors import ConfigError
from everstep.launch.lookback import look_back
from everstep.launch.prepare import RUNS
from everstep.observe.report.page import page, pictures

_HELP = """Draw a run: its recoveries, a step, its checkpoints, in one HTML file that needs no network. Default: the
newest directory in ./runs.

\b
    everstep report
    everstep report runs/20260130-101500-train -o report.html --svg pictures

It works during the run and after it, and with what is there of a run that was killed.
"""


@click.command(help=_HELP)
@click.argument("directory", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Default: report.html in the run directory.")
@click.option(
    "--svg", "folder", type=click.Path(path_type=Path), help="Write each picture alone, too, into this folder."
)
def report(directory: Path | None, out: Path | None, folder: Path | None) -> None:
    directory = directory or newest(RUNS)
    run = look_back(directory, time.time())
    _write(out or directory / "report.html", page(run))
    if folder is not None:
        for picture in pictures(run):
            _write(folder / f"{picture.name}.svg", picture.standalone())


def _write(path: Path, text: str) -> None:
    """And say where."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; give --out or --svg another place") from None
    click.echo(path)
