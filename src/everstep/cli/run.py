"""`everstep run`: one machine, everything on it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from everstep.cli.options import INTERFACE, JobOptions, job_options
from everstep.cli.screen import PREFIX, open_screen
from everstep.cli.view import tidy
from everstep.controller.job import Job, RunDir
from everstep.errors import ConfigError
from everstep.launch import environment, machine
from everstep.launch.client import Result
from everstep.launch.local import Launcher, Screen
from everstep.launch.prepare import check_chaos, check_devices, check_shared_memory, run_directory
from everstep.launch.resume import Wish, begin, hold
from everstep.types import NodeId
from everstep.wire.auth import Token, find_token

_HELP = """Run a script on the devices of this machine, and keep it running.

\b
    everstep run train.py --lr 3e-4
    everstep run --nproc 4 --standby 1 -m pkg.train
    everstep run --nproc 4 --local-nodes 2 --chaos "kill rank=2 step=7" train.py

Options of everstep come before the script, those of the script after it. Ctrl-C stops the job, a second one kills it.

\b
Exit codes:
    0    done
    1    the job failed; its first cause is the last line
    2    it could not start: wrong usage or a machine that lacks something
    130  interrupted
"""


@click.command(help=_HELP, context_settings={"allow_interspersed_args": False})
@click.option("--nproc", type=click.IntRange(min=1), help="Ranks. Default: the CUDA devices, else the cores.")
@click.option(
    "--local-nodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Agents on this machine, each a node of its own: to try the loss of a node at home.",
)
@click.option("--devices", help="What each node offers: N, names a,b,c or a plugin NAME[:ARG]. Default: as --nproc.")
@job_options
def run(nproc: int | None, local_nodes: int, devices: str | None, **rest: Any) -> int:
    options = JobOptions(**rest)
    interface = options.interface or os.environ.get(INTERFACE) or "lo"
    options = replace(options, interface=interface)
    cwd = Path.cwd()
    program = options.check(cwd)
    cuda = environment.cuda_devices()
    if devices and not nproc:
        raise ConfigError(f"--devices {devices} without --nproc: give the number of ranks too")
    ranks = nproc or len(cuda) or environment.processors()
    if local_nodes > ranks:
        raise ConfigError(f"--local-nodes {local_nodes} with {ranks} ranks: give each node a rank, so at most {ranks}")
    offers = [devices] * local_nodes if devices else environment.node_devices(cuda, ranks, local_nodes)
    nodes = {NodeId(f"local-{index}"): offer for index, offer in enumerate(offers)}
    if devices:
        check_devices(devices, ranks, local_nodes)
    check_chaos(options.chaos, ranks, nodes)
    machine.check_room(ranks + options.standby)
    check_shared_memory(ranks + options.standby)
    machine.check_interface(interface, machine.interfaces())
    config = options.config(ranks, local_nodes)
    job = options.job(program, cwd, config, -(-ranks // local_nodes), ("127.0.0.1", 0))
    token = find_token() or Token.create()
    return start(job, run_directory(options.run_dir, program.stem), token, nodes, options.wish)


def start(job: Job, path: Path, token: Token, nodes: Mapping[NodeId, str], wish: Wish, note: str = "") -> int:
    """Lay out the run and see it through; the exit code."""
    run = RunDir(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        beginning = begin(job, run, wish)
        job = beginning.job
        hold(job.checkpoints)
        run.create(job, token)
    except OSError as error:
        raise ConfigError(f"--run-dir {path}: {error.strerror}; name a directory that can be written") from None
    screen = open_screen()
    with screen:
        screen.say(f"run directory {os.path.relpath(path)}, {job.config.ranks} ranks, {job.config.standbys} standby")
        for line in filter(None, (beginning.note, note)):
            screen.say(line)
        result = asyncio.run(_launch(run, token, nodes, screen))
    _conclude(result)
    return result.code


async def _launch(run: RunDir, token: Token, nodes: Mapping[NodeId, str], screen: Screen) -> Result:
    return await Launcher(run, token, nodes, screen).run()


def _conclude(result: Result) -> None:
    """The last line; for a failed job its first cause."""
    try:
        if result.reason:
            click.echo(PREFIX + tidy(result.reason), err=True)
        elif result.code == 0:
            click.echo(PREFIX + "done", err=True)
    except OSError:  # nobody listens any more: the exit code says it
        pass
