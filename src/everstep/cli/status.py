"""`everstep status`: where a job is."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import click
from rich.live import Live

from everstep.cli import terminal, view
from everstep.controller.job import RunDir
from everstep.errors import ConfigError, WireError
from everstep.launch.client import RETURN_S, Client, Result, Snapshot
from everstep.launch.local import POLL_S
from everstep.launch.prepare import RUNS

_HELP = """Show where the job of a run directory is. Default: the newest directory in ./runs.

\b
    everstep status
    everstep status runs/20260130-101500-train --json
    everstep status --watch

\b
The JSON has generation, state, target, job, reason,
    workers    list of rank, worker, pid, node, step, phase, version, age_s
    standbys   list of worker, pid, node
    failures   list of time (seconds since 1970) and text
    recoveries, last_recovery
               how many there were, and the record of the last one, or null
and, when the run is over, code instead of workers and standbys. Exit code 1: no controller answers.
"""


@click.command(help=_HELP)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON in one line.")
@click.option("--watch", is_flag=True, help="Show changes until the run is over.")
def status(directory: Path | None, as_json: bool, watch: bool) -> int:
    run = RunDir.open(directory or newest(RUNS))
    return asyncio.run(_watch(run, as_json) if watch else _once(run, as_json))


def newest(root: Path) -> Path:
    """The run that began last."""
    runs = [path.parent for path in root.glob("*/job.json")]
    if not runs:
        raise ConfigError(f"there is no run in {root.absolute()}: name the directory of the run")
    return max(runs, key=lambda path: (path / "job.json").stat().st_mtime)


async def _once(run: RunDir, as_json: bool) -> int:
    async with Client(run, RETURN_S) as client:
        found = await _look(run, client)
    if found is None:
        return 1
    if as_json:
        click.echo(_json(found))
    elif isinstance(found, Result):
        click.echo(f"{run.path}: {view.over(found)}")
    else:
        console = terminal.stdout()
        console.print(view.block(found, console.width, sys.maxsize))
    return 0


async def _watch(run: RunDir, as_json: bool) -> int:
    console = terminal.stdout()
    steady = not as_json and console.is_terminal
    shown = ""
    live = Live(console=console, auto_refresh=False)
    async with Client(run, RETURN_S) as client:
        with live if steady else nullcontext():
            while isinstance(found := await _look(run, client), Snapshot):
                if steady:
                    live.update(view.block(found, console.width, console.height), refresh=True)
                elif (text := _json(found) if as_json else _line(found)) != shown:
                    shown = text
                    click.echo(text)
                await asyncio.sleep(POLL_S)
    if found is None:
        return 1
    click.echo(_json(found) if as_json else f"{run.path}: {view.over(found)}")
    return 0


async def _look(run: RunDir, client: Client) -> Snapshot | Result | None:
    """None, and a line that says so: nobody answers."""
    if (result := Result.read(run)) is not None:
        return result
    try:
        return await client.ask()
    except (OSError, WireError) as error:
        # It may have ended while we asked.
        if (result := Result.read(run)) is None:
            click.echo(f"everstep: controller not reachable: {error}; the run may have been killed", err=True)
        return result


def _line(snapshot: Snapshot) -> str:
    return f"generation {snapshot.generation} {snapshot.state} step {snapshot.step}, {len(snapshot.failures)} failures"


def _json(found: Snapshot | Result) -> str:
    if isinstance(found, Snapshot):
        return found.raw
    state = "DONE" if found.code == 0 else "FAILED"
    return json.dumps({"state": state, "code": found.code, "reason": found.reason})
