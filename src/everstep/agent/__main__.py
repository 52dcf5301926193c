"""`python -m everstep.agent --controller HOST:PORT --node ID [--devices …] [--run-dir DIR]`: one node of a job."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from everstep.agent.agent import EXIT_USAGE, AgentConfig, run_agent
from everstep.agent.console import ConsoleHandler
from everstep.errors import ConfigError
from everstep.launch.environment import node_id, parse_address
from everstep.types import NodeId
from everstep.wire.auth import Token, find_token


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    handler = ConsoleHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"agent {options.node}: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    gc.freeze()  # what was imported stays: to look through it takes longer than a step of a recovery
    try:
        return run_agent(
            AgentConfig(
                node=NodeId(options.node),
                controller=parse_address(options.controller) if options.controller else None,
                run_dir=options.run_dir,
                devices=options.devices,
                token=_token(options.token_file, options.run_dir),
            )
        )
    except ConfigError as error:
        logging.error("%s", error)
        return EXIT_USAGE
    finally:
        handler.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="everstep.agent", description=__doc__)
    parser.add_argument("--controller", metavar="HOST:PORT")
    parser.add_argument(
        "--node", default=node_id(os.environ, socket.gethostname()), help="no other agent of the job has this name"
    )
    parser.add_argument("--devices", default="", help="N, names a,b,c, or a plugin: cpu, cuda, file:DIR")
    parser.add_argument("--run-dir", type=Path, help="where the controller writes its address, if that is shared")
    parser.add_argument("--token-file", type=Path)
    return parser


def _token(path: Path | None, run_dir: Path | None) -> Token | None:
    """From the file that the user named, the environment, or the run directory."""
    if path is None and (token := find_token()) is not None:
        return token
    beside = run_dir / "token" if run_dir is not None else None
    return find_token(path or (beside if beside is not None and beside.exists() else None))


if __name__ == "__main__":
    sys.exit(main())
