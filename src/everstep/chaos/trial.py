"""One job of the exact run, with faults or without, and what came out of it. For the tests and the matrix.

Runs `everstep run` as a user does, in a folder of its own; knows of it the command line and the files that it leaves.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from everstep.chaos.exact.recipe import Recipe
from everstep.chaos.exact.record import Outcome, differences
from everstep.observe.records import Recovery, read_recoveries

DEADLINE_S = 120.0
"""Against hangs: a trial takes some seconds."""

INTERRUPT_S = 35.0
"""`everstep run` kills a job that does not stop within 30 s."""

_LIMITS = ("--max-failures-per-step", "20")


@dataclass(frozen=True, slots=True)
class Trial:
    recipe: Recipe
    ranks: int = 2
    standbys: int = 1
    faults: tuple[str, ...] = ()
    options: tuple[str, ...] = _LIMITS
    """More options of `everstep run`."""

    @property
    def clean(self) -> Self:
        """The same without failures and without checkpoints; a standby changes nothing there."""
        return replace(self, faults=(), standbys=0, options=("--checkpoint-every", "off"))

    def words(self, folder: Path | str) -> list[str]:
        """What follows `everstep`."""
        words = ["run", "--nproc", str(self.ranks), "--standby", str(self.standbys), "--run-dir", f"{folder}/run"]
        words += self.options
        for fault in self.faults:
            words += ["--chaos", fault]
        return [*words, "-m", "everstep.chaos.exact", *self.recipe.words(), "--out", f"{folder}/out"]

    def __str__(self) -> str:
        """The command line that repeats it."""
        return f"mkdir -p again/out && everstep {shlex.join(self.words('again'))}"


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that is over."""

    trial: Trial
    code: int
    text: str
    """Of everything that it printed."""
    outcome: Outcome
    recoveries: tuple[Recovery, ...]
    struck: frozenset[int]
    """Which faults came to happen, by their index."""

    @property
    def idle(self) -> list[str]:
        """Faults that did not happen: a test with them shows nothing."""
        return [fault for index, fault in enumerate(self.trial.faults) if index not in self.struck]

    def against(self, clean: Outcome) -> list[str]:
        """What is wrong with it, in sentences."""
        if self.code != 0:
            return [f"exit code {self.code}: {self.text.strip().splitlines()[-1] if self.text else ''}"]
        return differences(clean, self.outcome)

    def without_replica(self) -> list[str]:
        """What is wrong with it if what it lost was nowhere else: it has to end, and to say so."""
        if self.code == 1 and "no live replica" in self.text:
            return []
        return [f"exit code {self.code} after the loss of a piece that has no replica"]


def run(trial: Trial, folder: Path) -> Ended:
    """In an empty folder, which keeps the run directory, the records and the output."""
    (folder / "out").mkdir(parents=True)
    return finish(trial, folder, start(trial, folder))


def start(trial: Trial, folder: Path) -> subprocess.Popen[bytes]:
    """In a folder where this trial may have been before: then the job goes on."""
    command = [sys.executable, "-m", "everstep.cli", *trial.words(folder)]
    with (folder / "output.txt").open("wb") as sink:
        return subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )


def finish(trial: Trial, folder: Path, process: subprocess.Popen[bytes]) -> Ended:
    """Wait for its end."""
    try:
        code = process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        code = _give_up(process, folder)
    return read(trial, folder, code)


def read(trial: Trial, folder: Path, code: int) -> Ended:
    """What a job has left in its folder."""
    return Ended(
        trial,
        code,
        (folder / "output.txt").read_text(errors="replace"),
        Outcome.read(folder / "out", trial.ranks),
        tuple(read_recoveries(folder / "run" / "recoveries.jsonl")),
        frozenset(int(path.name.partition("-")[0]) for path in (folder / "run" / "chaos").glob("*-*")),
    )


def clean(trial: Trial, cache: Path) -> Outcome:
    """Of the same training without failures: run once for all who share the cache, in whatever process they are."""
    trial = trial.clean
    folder = cache / "_".join((f"{trial.ranks}", *trial.recipe.words())).replace("/", "-")
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "code"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that was broken off
            ended = run(trial, folder)
            gaps = ended.outcome.gaps(trial.recipe.steps)
            if ended.code or gaps:
                raise AssertionError(f"a run without failures ended with {ended.code}, {gaps}:\n{ended.text}")
            done.write_text(str(ended.code))
        return read(trial, folder, int(done.read_text())).outcome


def plain(recipe: Recipe, ranks: int, folder: Path) -> Outcome:
    """The same script under torch's own process group, started as torchrun does."""
    out = folder / "out"
    out.mkdir(parents=True)
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "everstep.chaos.exact", "--plain", *recipe.words(), "--out", str(out)]
    with (folder / "output.txt").open("wb") as sink:
        processes = [
            subprocess.Popen(
                command,
                env={**os.environ, **common, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(DEADLINE_S) for process in processes]
        finally:
            _kill(processes)
    outcome = Outcome.read(out, ranks)
    gaps = outcome.gaps(recipe.steps)
    if any(codes) or gaps:
        raise AssertionError(f"plain torch ended with {codes}, {gaps}:\n{(folder / 'output.txt').read_text()}")
    return outcome


def _give_up(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Keep what helps to understand it, then end it."""
    with (folder / "status.txt").open("wb") as sink:
        status = [sys.executable, "-m", "everstep.cli", "status", "--json", str(folder / "run")]
        subprocess.run(status, stdout=sink, stderr=sink, check=False, timeout=INTERRUPT_S)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(INTERRUPT_S)
    except subprocess.TimeoutExpired:
        _kill([process])
    return 124  # as of timeout(1)


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
