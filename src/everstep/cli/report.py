"""`everstep report`: a run as pictures."""

from __future__ import annotations

import time
from pathlib import Path

import click

from everstep.errors import ConfigError
from everstep.launch.lookback import look_back
from everstep.observe.report.page import page, pictures

_HELP = """Draw a run: its recoveries, a step, its checkpoints, in one HTML file that needs no network.

\b
    everstep report runs/20260130-101500-train
    everstep report runs/20260130-101500-train -o report.html --svg pictures

It works during the run and after it, and with what is there of a run that was killed.
"""


@click.command(help=_HELP)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The file. Default: report.html in the directory."
)
@click.option(
    "--svg", "svg_dir", type=click.Path(path_type=Path), help="Write each picture alone, too, to this folder."
)
def report(directory: Path, output: Path | None, svg_dir: Path | None) -> None:
    run = look_back(directory, time.time())
    _write(output or directory / "report.html", page(run))
    if svg_dir is not None:
        for picture in pictures(run):
            _write(svg_dir / f"{picture.name}.svg", picture.standalone())


def _write(path: Path, text: str) -> None:
    """And say where."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; give -o or --svg another place") from None
    click.echo(path)
