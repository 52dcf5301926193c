"""`everstep chaos`: break something in a running job, on purpose."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from everstep.chaos.spec import parse
from everstep.cli import view
from everstep.controller.job import RunDir
from everstep.errors import EverstepError
from everstep.launch.client import RETURN_S, Client, Result
from everstep.wire.messages import Inject

_HELP = """Inject a fault into the job of a run directory.

\b
    everstep chaos runs/20260130-101500-train kill rank=2
    everstep chaos runs/20260130-101500-train kill rank=2 step=700 phase=optimizer when=mid
    everstep chaos runs/20260130-101500-train partition node=local-1 delay=5

\b
ACTION  kill, stop, segv, exit, raise, hang, gil, slow, agent-kill, controller-kill, partition
KEYS    rank, node, step, phase, when (before, mid, after), times, delay

Exit code 1: the job did not take it.
"""


@click.command(help=_HELP)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("action")
@click.argument("keys", nargs=-1, metavar="[KEY=VALUE]...")
def chaos(directory: Path, action: str, keys: tuple[str, ...]) -> int:
    spec = " ".join((action, *keys))
    parse(spec)
    run = RunDir.open(directory)
    if (result := Result.read(run)) is not None:
        click.echo(f"everstep: {spec!r} was not injected: {view.over(result)}", err=True)
        return 1
    try:
        asyncio.run(_inject(run, spec))
    except (OSError, EverstepError) as error:
        click.echo(f"everstep: {spec!r} was not injected: {error}", err=True)
        return 1
    click.echo(f"injected: {spec}")
    return 0


async def _inject(run: RunDir, spec: str) -> None:
    async with Client(run, RETURN_S) as client:
        await client.tell(Inject(spec))
