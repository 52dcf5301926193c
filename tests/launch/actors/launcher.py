"""`launcher.py RUN_DIR MODE NODE,NODE`: the launcher, with the other two scripts in place of controller and agent."""

from __future__ import annotations

import sys
from pathlib import Path

from everstep.cli.run import start
from everstep.controller.cadence import OFF
from everstep.controller.job import Job
from everstep.core.config import JobConfig
from everstep.launch import local
from everstep.launch.resume import Wish
from everstep.types import NodeId
from everstep.wire.auth import Token


def main(path: Path, mode: str, nodes: str) -> int:
    def command(part: str, *arguments: str) -> tuple[str, ...]:
        return (sys.executable, str(Path(__file__).with_name(part)), str(path), mode, *arguments)

    local.controller_command = lambda run: command("controller.py")
    local.agent_command = lambda address, node, devices, run_dir=None: command("agent.py", node)
    job = Job("job", ("train.py",), str(path), {}, JobConfig(ranks=1), 1)
    return start(job, path, Token.create(), {NodeId(name): "1" for name in nodes.split(",")}, Wish(OFF, 3, 0, 1.0))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
