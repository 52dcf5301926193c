"""`everstep controller` and `everstep agent`: the parts of `everstep run`, for several machines."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import click

from everstep.cli.options import JobOptions, job_options
from everstep.cli.run import start
from everstep.errors import ConfigError
from everstep.launch import environment
from everstep.launch.environment import DEFAULT_PORT
from everstep.launch.local import agent_command
from everstep.launch.prepare import check_chaos, check_port, run_directory
from everstep.types import NodeId
from everstep.wire.auth import TOKEN_VARIABLE, Token, find_token

_CONTROLLER_HELP = f"""Run the controller of a job whose agents are on other machines, and wait for them.

\b
    everstep controller --nproc-total 16 --nodes 4 --bind 10.0.0.7:{DEFAULT_PORT} train.py --lr 3e-4
    everstep agent --controller 10.0.0.7:{DEFAULT_PORT} --token-file TOKEN      # on each node

The job token is in the file "token" of the run directory, for its owner only. Agents need it too: the file, or
{TOKEN_VARIABLE} in their environment. Exit codes are those of "everstep run".
"""

_AGENT_HELP = f"""Offer the devices of this machine to the controller of a job.

\b
    everstep agent --controller 10.0.0.7:{DEFAULT_PORT} --token-file runs/…/token
    srun --ntasks-per-node 1 everstep agent --token-file runs/…/token

The controller's address and the name of the node come from the options, else from Slurm or MASTER_ADDR, else from the
name of the host.
"""

_TOKEN_FILE = click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help=f"The file with the job token, mode 0600. Default: {TOKEN_VARIABLE} of the environment.",
)


@click.command(help=_CONTROLLER_HELP, context_settings={"allow_interspersed_args": False})
@click.option("--nproc-total", type=click.IntRange(min=1), required=True, help="Ranks of the job, over all nodes.")
@click.option(
    "--nodes", type=click.IntRange(min=1), help="Nodes to wait for. Default: what the scheduler says, else 1."
)
@click.option("--bind", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@_TOKEN_FILE
@job_options
def controller(nproc_total: int, nodes: int | None, bind: str, token_file: Path | None, **rest: Any) -> int:
    options = JobOptions(**rest)
    cwd = Path.cwd()
    program = options.check(cwd)
    nodes = nodes or environment.node_count(os.environ)
    if nproc_total % nodes:
        raise ConfigError(f"--nproc-total {nproc_total} over {nodes} nodes: give each node equally many ranks")
    check_chaos(options.chaos, nproc_total)
    address = environment.parse_address(bind, DEFAULT_PORT)
    check_port(*address)
    token = find_token(token_file) or Token.create()
    job = options.job(program, cwd, options.config(nproc_total, nodes), nproc_total // nodes, address)
    path = run_directory(options.run_dir, program.stem)
    return start(job, path, token, {}, options.wish, f"agents need the token in {path / 'token'}")


@click.command(help=_AGENT_HELP)
@click.option("--controller", "address", envvar="EVERSTEP_CONTROLLER", metavar="HOST:PORT", help="Where it listens.")
@click.option("--node", help="The name of this node, which no other agent of the job has.")
@click.option("--devices", default="", help="N, names a,b,c or a plugin NAME[:ARG]. Default: CUDA devices, else cores.")
@_TOKEN_FILE
def agent(address: str | None, node: str | None, devices: str, token_file: Path | None) -> None:
    address = address or environment.controller_host(os.environ)
    if address is None:
        raise ConfigError("where is the controller? give --controller HOST:PORT")
    where = environment.parse_address(address, DEFAULT_PORT)
    name = NodeId(node or environment.node_id(os.environ, socket.gethostname()))
    offer = environment.agent_devices(devices, environment.cuda_devices(), environment.processors())
    command = agent_command(where, name, offer)
    env = dict(os.environ)
    if (token := find_token(token_file)) is not None:
        env[TOKEN_VARIABLE] = token.text
    click.echo("everstep: agent {} asks {}:{} for work".format(name, *where), err=True)  # it may wait for minutes
    sys.stdout.flush()
    os.execve(command[0], command, env)  # the scheduler that started us watches, and signals, this process
