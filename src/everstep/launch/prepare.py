"""What has to be right before the first process starts, each with the sentence that says what to do if it is not.

Imports nothing of the user's: the code of a job runs in its workers.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from everstep.agent import shm
from everstep.agent.devices import open_devices
from everstep.chaos.spec import parse
from everstep.errors import ConfigError, ResourceError
from everstep.types import NodeId
from everstep.wire.auth import TOKEN_VARIABLE

RUNS = Path("runs")
"""Where run directories are by default, below the working directory."""

SHARED_BYTES_PER_WORKER = 128 * 1024
"""The board of a worker, and room for the directories."""

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NAME_CHARS = 24  # paths of Unix sockets have to be short


@dataclass(frozen=True, slots=True)
class Program:
    """What the workers run."""

    argv: tuple[str, ...]
    """What follows ``python``."""
    stem: str
    """Its name, for people."""


def find_program(words: Sequence[str], as_module: bool, cwd: Path) -> Program:
    """A script, or a module after ``-m``, and its arguments."""
    if not words:
        raise ConfigError(
            "nothing to run: give a script (everstep run train.py) or a module (everstep run -m pkg.train)"
        )
    for word in words:
        _check_text(f"argument {word!r}", word)
    if as_module:
        check_module(words[0], cwd)
        return Program(("-m", *words), words[0])
    path = cwd / words[0]
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise ConfigError(f"{words[0]} is a directory without a __main__.py: name the script in it")
    if not path.exists():
        hint = "write -m before the name of a module" if "/" not in words[0] else "check the path"
        raise ConfigError(f"script {words[0]!r} does not exist in {cwd}: {hint}")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"script {words[0]!r} cannot be read: check its permissions")
    return Program(tuple(words), path.stem)


def check_module(name: str, cwd: Path) -> None:
    """Whether ``python -m name`` would find it."""
    spec = _find(name, cwd)
    if spec is not None and spec.submodule_search_locations is not None and _find(f"{name}.__main__", cwd) is None:
        raise ConfigError(f"module {name!r} is a package without a __main__: name a module in it")
    if spec is None:
        raise ConfigError(f"module {name!r} is not found from {cwd}: check the name, or install it in {sys.prefix}")


def check_importable(name: str, cwd: Path) -> None:
    if _find(name, cwd) is None:
        raise ConfigError(f"--preload {name!r}: there is no such module; check the name, or install it in {sys.prefix}")


def _find(name: str, cwd: Path) -> ModuleSpec | None:
    """Like `importlib.util.find_spec`, but parents are looked into, not imported."""
    top, *rest = name.split(".")
    if not all(part.isidentifier() for part in (top, *rest)):
        return None
    try:
        spec = PathFinder.find_spec(top, [str(cwd)]) or find_spec(top)
    except ValueError:  # the module is loaded and says nothing about its origin
        return None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec


def worker_environment(environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """That of this process and what the user adds; the token and what a rank sets are not in it."""
    env = {name: value for name, value in environ.items() if name != TOKEN_VARIABLE and name not in OURS} | dict(extra)
    for name, value in env.items():
        _check_text(f"the environment variable {name!r}", name + value)
    return env


def _check_text(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{what} is not UTF-8: write it so, or leave it out") from None


def run_directory(wanted: Path | None, stem: str, root: Path = RUNS) -> Path:
    """The directory that the user named, or a new one named for the time and the script."""
    if wanted is not None:
        if wanted.exists() and not wanted.is_dir():
            raise ConfigError(f"--run-dir {wanted} is a file: name a directory")
        return wanted
    plain = f"{time.strftime('%Y%m%d-%H%M%S')}-{_tidy(stem)}"
    for name in (plain, *(f"{plain}-{count}" for count in range(2, 100))):
        with suppress(FileExistsError):  # of another run that began in the same second
            (root / name).mkdir(parents=True)
            return root / name
    raise ConfigError(f"{root / plain} is taken: give --run-dir")


def job_name(stem: str) -> str:
    """Unique on this machine: shared memory is named after it."""
    return f"{_tidy(stem)[:_NAME_CHARS]}-{secrets.token_hex(3)}"


def _tidy(stem: str) -> str:
    return re.sub(r"[^\w.-]", "_", stem, flags=re.ASCII).lstrip(".-") or "run"


def check_shared_memory(workers: int, root: Path = shm.ROOT) -> None:
    needed = workers * SHARED_BYTES_PER_WORKER
    try:
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise ResourceError(f"{root}: {error.strerror}; mount a tmpfs there") from None
    if free < needed:
        raise ResourceError(
            f"{root} has {free} bytes free, {workers} workers need {needed}: enlarge it "
            "(mount -o remount,size=..., docker run --shm-size) or free some"
        )


def check_devices(offer: str, ranks: int, nodes: int) -> None:
    """Whether so many nodes that offer this have a device for every rank."""
    offered = len(open_devices(offer).devices()) * nodes
    if offered < ranks:
        what = f"--devices {offer}: {offered} devices for {ranks} ranks"
        raise ConfigError(f"{what}: name more, or give --nproc {offered}")


def check_chaos(specs: Sequence[str], ranks: int, nodes: Collection[NodeId] = ()) -> None:
    """Whether whom each fault names can be there. Without nodes their names are not known yet."""
    for fault in map(parse, specs):
        if fault.rank is not None and fault.rank >= ranks:
            raise ConfigError(f"--chaos {str(fault)!r}: there is no rank {fault.rank}, they are 0 to {ranks - 1}")
        if nodes and fault.node is not None and fault.node not in nodes:
            raise ConfigError(f"--chaos {str(fault)!r}: there is no node {fault.node}, there are {', '.join(nodes)}")


def check_port(host: str, port: int, option: str = "--bind") -> None:
    """Whether the controller will be able to listen there, as this option wants."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"cannot listen on {host}:{port} ({reason}): give {option} another address") from None
