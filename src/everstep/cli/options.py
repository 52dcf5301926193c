"""Options that several commands share, and what their values look like."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from everstep.chaos import spec
from everstep.controller.cadence import AUTO
from everstep.controller.job import CheckpointPlan, Job
from everstep.core.config import JobConfig
from everstep.errors import ConfigError
from everstep.launch.environment import parse_address
from everstep.launch.prepare import (
    OURS,
    Program,
    check_importable,
    check_port,
    find_program,
    job_name,
    worker_environment,
)
from everstep.launch.resume import Wish
from everstep.units import read_duration, read_size

INTERFACE = "GLOO_SOCKET_IFNAME"
COUNT = click.IntRange(0, 2**63 - 1)
"""No more than a message can carry."""

N = TypeVar("N")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The values of `job_options`, under the names of their options."""

    program: tuple[str, ...]
    as_module: bool
    standby: int
    run_dir: Path | None
    max_failures: int
    max_failures_per_step: int
    env: tuple[tuple[str, str], ...]
    preload: tuple[str, ...]
    no_zygote: bool
    interface: str | None
    chaos: tuple[str, ...]
    lease_s: float
    fence_s: float
    checkpoint_every: str
    checkpoint_dir: Path | None
    keep: int
    keep_every: int
    grace_s: float
    resume: str | None
    web: tuple[str, int] | None

    @property
    def wish(self) -> Wish:
        return Wish(self.checkpoint_every, self.keep, self.keep_every, self.grace_s, self.checkpoint_dir, self.resume)

    def check(self, cwd: Path) -> Program:
        """What can be told without a process."""
        if self.no_zygote and self.preload:
            raise ConfigError("--preload and --no-zygote: a plain interpreter preloads nothing; leave one of them out")
        self.wish.check(self.run_dir)
        for name in self.preload:
            check_importable(name, cwd)
        return find_program(self.program, self.as_module, cwd)

    def job(self, program: Program, cwd: Path, config: JobConfig, local_world_size: int, bind: tuple[str, int]) -> Job:
        return Job(
            name=job_name(program.stem),
            argv=program.argv,
            cwd=str(cwd),
            env=self._environment(),
            config=config,
            local_world_size=local_world_size,
            host=bind[0],
            port=bind[1],
            preload=tuple(dict.fromkeys((*_default(Job, "preload"), *self.preload))),
            zygote=not self.no_zygote,
            lease_s=self.lease_s,
            fence_s=self.fence_s,
            chaos=self.chaos,
            web=self.web,
        )

    def _environment(self) -> dict[str, str]:
        """Gloo left alone takes the address of the host's name, which the other ranks may not reach."""
        env = worker_environment(os.environ, dict(self.env))
        if self.interface is not None:
            env[INTERFACE] = self.interface
        return env

    def config(self, ranks: int, nodes: int) -> JobConfig:
        return JobConfig(
            ranks=ranks,
            standbys=self.standby,
            nodes=nodes,
            max_failures=self.max_failures,
            max_failures_per_step=self.max_failures_per_step,
        )


class Quantity(click.ParamType[N]):
    """A number with a unit."""

    def __init__(self, name: str, read: Callable[[str], N]) -> None:
        self.name = name
        self._read: Callable[[str], N] = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> N:
        try:
            return self._read(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


SECONDS = Quantity[float]("duration", read_duration)
BYTES = Quantity[int]("size", read_size)


class WebAddress(click.ParamType[tuple[str, int] | None]):
    """Where the live page is: ``PORT``, ``HOST:PORT``, or ``off``."""

    name = "port|host:port|off"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int] | None:
        if value == "off":
            return None
        if isinstance(value, tuple):
            return value
        text = f"127.0.0.1:{value}" if str(value).isdecimal() else str(value)
        try:
            host, port = parse_address(text)
        except ConfigError:
            self.fail(f"{value!r}: write a port, HOST:PORT, or off", param, ctx)
        if port:
            check_port(host, port, "--web")
        return host, port


class Variable(click.ParamType[tuple[str, str]]):
    """``NAME=VALUE`` for the environment of the workers."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name or "\0" in text:
            self.fail(f"{value!r}: write it as NAME=VALUE", param, ctx)
        if name in OURS or name.startswith("EVERSTEP_"):
            self.fail(f"{name} is set by everstep for each rank: leave it out", param, ctx)
        return name, text


class Fault(click.ParamType[str]):
    """A fault to inject, as `everstep.chaos.spec` reads it."""

    name = "spec"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            spec.parse(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Modules(click.ParamType[tuple[str, ...]]):
    """Names, separated by commas."""

    name = "mod,mod"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in str(value).split(","))
        if not all(names):
            self.fail(f"{value!r}: separate names of modules by single commas", param, ctx)
        return names


def _default(cls: type[Any], name: str) -> Any:
    """Of a field, so that it is written in one place."""
    return next(field.default for field in fields(cls) if field.name == name)


CHECKPOINT_EVERY = click.option(
    "--checkpoint-every",
    default=AUTO,
    show_default=True,
    metavar="auto|off|STEPS|TIME",
    help="When to take checkpoints: 50 (steps), 30s, or as often as it pays best.",
)

_JOB = (
    click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT|MODULE [ARGS]..."),
    click.option("-m", "as_module", is_flag=True, help="Run a module, as python -m does."),
    click.option(
        "--standby",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="Workers that have imported everything and wait to replace one that fails.",
    ),
    click.option(
        "--run-dir",
        type=click.Path(path_type=Path),
        help="Where journal, logs and results go. Default: runs/<time>-<name>",
    ),
    click.option(
        "--max-failures",
        type=COUNT,
        default=_default(JobConfig, "max_failures"),
        show_default=True,
        help="Give up after so many failures in the whole job.",
    ),
    click.option(
        "--max-failures-per-step",
        type=COUNT,
        default=_default(JobConfig, "max_failures_per_step"),
        show_default=True,
        help="Give up after so many recoveries in a row that lead to no completed step.",
    ),
    click.option("--env", type=Variable(), multiple=True, help="A variable for the workers; repeatable."),
    click.option(
        "--preload", type=Modules(), default=(), help="Modules that a new worker has imported already, besides torch."
    ),
    click.option("--no-zygote", is_flag=True, help="Start plain interpreters, for scripts that cannot be forked."),
    click.option(
        "--interface",
        help=f"Network interface between the ranks, e.g. eth0. Default: {INTERFACE}, else lo with `run`.",
    ),
    click.option("--chaos", type=Fault(), multiple=True, help='A fault, e.g. "kill rank=2 step=7"; repeatable.'),
    click.option(
        "--lease",
        "lease_s",
        type=SECONDS,
        default=_default(Job, "lease_s"),
        show_default=True,
        help="Seconds after which an agent without its controller stops its workers.",
    ),
    click.option(
        "--fence",
        "fence_s",
        type=SECONDS,
        default=_default(Job, "fence_s"),
        show_default=True,
        help="Seconds for a killed worker to go; after them its device is not used again.",
    ),
    CHECKPOINT_EVERY,
    click.option(
        "--checkpoint-dir",
        type=click.Path(path_type=Path),
        help="Where they go; all nodes must have it. Default: checkpoints in the run directory.",
    ),
    click.option(
        "--keep",
        type=click.IntRange(min=2),
        default=_default(CheckpointPlan, "keep"),
        show_default=True,
        help="So many of the newest good checkpoints stay.",
    ),
    click.option(
        "--keep-every",
        type=click.IntRange(min=0),
        default=_default(CheckpointPlan, "keep_every"),
        metavar="STEPS",
        help="Of older ones the first of each so many steps stays; 0: none.",
    ),
    click.option(
        "--grace",
        "grace_s",
        type=SECONDS,
        default=_default(CheckpointPlan, "grace_s"),
        show_default=True,
        help="Seconds at the end for the last checkpoint to reach storage.",
    ),
    click.option(
        "--resume",
        metavar="latest|STEP|DIR",
        help="Go on from a checkpoint. A run directory that has had a run goes on from its latest one.",
    ),
    click.option(
        "--web",
        type=WebAddress(),
        default="{}:{}".format(*_default(Job, "web")),
        show_default=True,
        help="Where the live page is; port 0: any that is free. Elsewhere than on loopback it asks for a token.",
    ),
)


def job_options(command: F) -> F:
    """What `run` and `controller` have in common."""
    for decorate in reversed(_JOB):
        command = decorate(command)
    return command
