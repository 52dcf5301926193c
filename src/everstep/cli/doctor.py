"""`everstep doctor`: what would break on this machine, and how to fix it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from everstep.cli import terminal
from everstep.cli.options import BYTES, CHECKPOINT_EVERY, INTERFACE
from everstep.controller.cadence import Every
from everstep.doctor.examine import examine
from everstep.doctor.finding import Finding, Level, Settings
from everstep.launch import environment
from everstep.launch.prepare import RUNS

_HELP = """Check this machine and the settings of a job: what would break, and how to fix it. It changes nothing.

\b
    everstep doctor --nproc 4 --state-size 2GB
    everstep doctor --nproc 8 --nodes 4 --interface eth0 --json

Give it the options that you would give to `everstep run`. Exit code 1: something would break.
"""

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


@click.command(help=_HELP)
@click.option("--nproc", type=click.IntRange(min=1), help="Ranks here. Default: the CUDA devices, else the cores.")
@click.option("--standby", type=click.IntRange(min=0), default=1, show_default=True, help="Workers that wait here.")
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Machines of the job.")
@click.option(
    "--state-size",
    "state_bytes",
    type=BYTES,
    help="Parameters, buffers and optimizer state of what this machine trains, each piece once: 2GB.",
)
@CHECKPOINT_EVERY
@click.option("--interface", help=f"Network interface between the ranks. Default: {INTERFACE}, else lo on one machine.")
@click.option("--run-dir", type=click.Path(path_type=Path), default=RUNS, show_default=True, help="Where runs go.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in one line.")
def doctor(nproc: int | None, checkpoint_every: str, interface: str | None, as_json: bool, **options: Any) -> int:
    cuda, cores = len(environment.cuda_devices()), environment.processors()
    settings = Settings(
        nproc=nproc or cuda or cores,
        cuda=cuda,
        cores=cores,
        every=Every.read(checkpoint_every),
        interface=interface or os.environ.get(INTERFACE),
        **options,
    )
    findings = examine(settings)
    broken = any(finding.level is Level.FAILURE for finding in findings)
    if as_json:
        click.echo(json.dumps({"ok": not broken, "checks": [asdict(finding) for finding in findings]}))
    else:
        _draw(terminal.stdout(), findings)
    return int(broken)


def _draw(console: Console, findings: Sequence[Finding]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=max(map(len, Level)))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.level, _STYLES[finding.level]), finding.name, Text(finding.found))
        if finding.level is not Level.OK:
            table.add_row("", "", Text(f"breaks: {finding.breaks}"))
            table.add_row("", "", Text(f"fix: {finding.fix}"))
    console.print(table)
    levels = [finding.level for finding in findings]
    good, warnings, failures = map(levels.count, Level)
    console.print(f"{good} ok, {warnings} to mind, {failures} to repair")
