"""`everstep trace`: a recorded run for Perfetto."""

from __future__ import annotations

from pathlib import Path

import click

from everstep.cli.status import newest
from everstep.controller.job import RunDir
from everstep.errors import ResourceError
from everstep.launch.prepare import RUNS
from everstep.observe.trace import write_trace

_HELP = """Write what the workers and the controller of a run did, and when, as a Chrome trace. Default: the newest
directory in ./runs. Open the file at https://ui.perfetto.dev or in chrome://tracing.

\b
    everstep trace
    everstep trace runs/20260130-101500-train -o trace.json
"""


@click.command(help=_HELP)
@click.argument("directory", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Default: trace.json in the run directory.")
def trace(directory: Path | None, out: Path | None) -> None:
    run = RunDir.open(directory or newest(RUNS))
    path = out or run.path / "trace.json"
    try:
        count = write_trace(run.path, path)
    except OSError as error:
        raise ResourceError(f"{error.filename or path}: {error.strerror}") from None
    click.echo(f"{path}: {count} events; open it at https://ui.perfetto.dev")
