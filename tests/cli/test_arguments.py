"""Each wrong argument: exit code 2, one line with the value and what to do, and nothing left behind."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everstep.cli import run as run_command
from everstep.controller.job import PRELOAD, Job, RunDir
from everstep.launch import environment

if TYPE_CHECKING:
    from tests.cli.conftest import Everstep

WRONG = [
    ("run", ["nothing to run", "everstep run train.py"]),
    ("run nix.py", ["'nix.py' does not exist", "-m before the name of a module"]),
    ("run -m nix.train", ["'nix.train' is not found", "check the name"]),
    ("run -m xml", ["'xml' is a package without a __main__", "name a module in it"]),
    ("run --nproc 0 train.py", ["'--nproc'", "0 is not in the range x>=1", "see everstep run --help"]),
    ("run --nproc two train.py", ["'--nproc'", "'two' is not a valid integer"]),
    ("run --standby -1 train.py", ["'--standby'", "-1 is not in the range x>=0"]),
    ("run --max-failures -1 train.py", ["'--max-failures'", "-1 is not in the range"]),
    ("run --max-failures-per-step x train.py", ["'--max-failures-per-step'", "'x' is not a valid integer"]),
    ("run --nproc 2 --local-nodes 3 train.py", ["--local-nodes 3 with 2 ranks", "at most 2"]),
    ("run --lease 0 train.py", ["'--lease'", "'0' is no duration", "more than 0"]),
    ("run --fence nan train.py", ["'--fence'", "'nan' is no duration", "give seconds"]),
    ("run --fence inf train.py", ["'--fence'", "'inf' is no duration"]),
    ("run --web no train.py", ["'--web'", "'no'", "write a port, HOST:PORT, or off"]),
    ("run --web 70000 train.py", ["'--web'", "'70000'", "write a port"]),
    ("run --env NOVALUE train.py", ["'NOVALUE'", "write it as NAME=VALUE"]),
    ("run --env RANK=3 train.py", ["RANK is set by everstep", "leave it out"]),
    ("run --env EVERSTEP_TOKEN=x train.py", ["EVERSTEP_TOKEN is set by everstep"]),
    ("run --preload nix train.py", ["--preload 'nix'", "check the name, or install it"]),
    ("run --preload a,,b train.py", ["'a,,b'", "single commas"]),
    ("run --no-zygote --preload json train.py", ["--preload and --no-zygote", "leave one of them out"]),
    ("run --chaos kll train.py", ["'--chaos'", "'kll'", "one of kill, stop"]),
    ("run --nproc 3 --devices a,b train.py", ["--devices a,b: 2 devices for 3 ranks", "give --nproc 2"]),
    ("run --nproc 2 --devices a,fiel:/x train.py", ["no plugin has the name 'a,fiel'", "there are cpu, cuda, file"]),
    ("run --nproc 2 --standby 9999999 train.py", ["10000001 workers need", "--nproc and --standby", "at most"]),
    ("run --interface nope0 train.py", ["--interface nope0 does not exist", "this machine has lo"]),
    ("run --nproc 2 --chaos 'kill rank=2' train.py", ["'kill rank=2': there is no rank 2, they are 0 to 1"]),
    ("run --nproc 2 --chaos 'partition node=b' train.py", ["there is no node b, there are local-0"]),
    ("controller --nproc-total 4 --chaos 'kill rank=4' train.py", ["there is no rank 4"]),
    ("run --nproc 2 --devices file:/x train.py", ["there is no NAME.json in that directory"]),
    ("run --devices file:/x train.py", ["--devices file:/x without --nproc", "give the number of ranks"]),
    ("run --run-dir train.py train.py", ["--run-dir train.py is a file", "name a directory"]),
    ("run --run-dir train.py/x train.py", ["--run-dir train.py/x", "name a directory that can be written"]),
    ("run --nprok 2 train.py", ["No such option '--nprok'", "--nproc", "see everstep run --help"]),
    ("rnu train.py", ["No such command 'rnu'", "see everstep --help"]),
    ("controller train.py", ["--nproc-total", "see everstep controller --help"]),
    ("controller --nproc-total 5 --nodes 2 train.py", ["--nproc-total 5 over 2 nodes", "equally many"]),
    ("controller --nproc-total 4 --bind here: train.py", ["'here:'", "HOST:PORT, for example"]),
    ("controller --nproc-total 4 --token-file nix train.py", ["token file nix", "No such file"]),
    ("agent", ["where is the controller?", "--controller HOST:PORT"]),
    ("agent --controller host:port", ["'host:port'", "HOST:PORT, for example"]),
    ("agent --controller host --token-file train.py", ["token file train.py has mode", "chmod 600 train.py"]),
    ("status nix", ["nix is not the directory of a run"]),
    ("status", ["there is no run in", "name the directory"]),
    ("chaos nix kill rank=1", ["nix is not the directory of a run"]),
    ("chaos . kill rank=one", ["rank='one'", "whole number"]),
    ("chaos . explode", ["'explode'", "one of kill, stop"]),
    ("replay nix", ["nix: No such file or directory", "give a run directory or its journal"]),
    ("replay train.py", ["train.py is not a journal"]),
]


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVERSTEP_TOKEN", "EVERSTEP_CONTROLLER", "MASTER_ADDR", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("line", "words"), WRONG, ids=[line for line, _ in WRONG])
def test_it_is_told_in_one_line(everstep: Everstep, tmp_path: Path, line: str, words: list[str]) -> None:
    (tmp_path / "train.py").chmod(0o644)
    result = everstep(*shlex.split(line))
    assert result.exit_code == 2
    [said] = result.output.splitlines()
    assert said.startswith("everstep: ")
    for word in words:
        assert word in said
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_the_directory_of_another_run_is_refused(everstep: Everstep, run: RunDir) -> None:
    living = everstep("run", "--run-dir", str(run.path), "train.py")
    assert living.exit_code == 2
    assert "belongs to a job that is running; give --run-dir another directory" in living.output


def test_the_directory_of_an_earlier_run_is_refused(everstep: Everstep, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "job.json").touch()
    result = everstep("run", "--run-dir", "old", "train.py")
    assert result.exit_code == 2
    assert "old already holds a run, and there is no good checkpoint in" in result.output
    assert "give --run-dir another directory" in result.output


def test_a_checkpoint_to_go_on_from_needs_a_run(everstep: Everstep) -> None:
    result = everstep("run", "--resume", "latest", "train.py")
    assert result.exit_code == 2
    assert "--resume latest: of which run? give --run-dir, --checkpoint-dir or --resume DIR" in result.output


def test_an_interval_that_is_none_is_refused(everstep: Everstep) -> None:
    result = everstep("run", "--checkpoint-every", "often", "train.py")
    assert result.exit_code == 2
    assert "--checkpoint-every 'often': give auto, off, steps (50) or a duration (30s)" in result.output


def test_a_port_in_use_is_refused(everstep: Everstep) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        result = everstep("controller", "--nproc-total", "2", "--bind", bind, "train.py")
    assert result.exit_code == 2
    assert f"cannot listen on {bind} (Address already in use): give --bind another address" in result.output


# ── what is made of right ones ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Job, dict[str, str]]]:
    """Jobs that would have been started, and what their nodes offer."""
    jobs: list[tuple[Job, dict[str, str]]] = []

    def start(job: Job, path: Path, token: object, nodes: dict[str, str], note: str = "") -> int:
        jobs.append((job, nodes))
        return 0

    monkeypatch.setattr(run_command, "start", start)
    monkeypatch.setattr(environment, "processors", lambda: 6)
    return jobs


def test_the_defaults_work(everstep: Everstep, started: list[tuple[Job, dict[str, str]]], tmp_path: Path) -> None:
    assert everstep("run", "train.py").exit_code == 0
    [(job, nodes)] = started
    assert (job.config.ranks, job.config.standbys, job.config.nodes) == (6, 1, 1)
    assert nodes == {"local-0": ",".join(f"cpu:{slot}" for slot in range(6))}
    assert (job.argv, job.cwd, job.zygote) == (("train.py",), str(tmp_path), True)
    assert [path.name.endswith("-train") for path in (tmp_path / "runs").iterdir()] == [True]


def test_what_follows_the_script_is_the_script_s(everstep: Everstep, started: list[tuple[Job, dict[str, str]]]) -> None:
    assert everstep("run", "--nproc", "2", "train.py", "--nproc", "9", "-m", "--help").exit_code == 0
    assert everstep("run", "-m", "json.tool", "--nproc", "9").exit_code == 0
    assert started[0][0].argv == ("train.py", "--nproc", "9", "-m", "--help")
    assert started[0][0].config.ranks == 2
    assert started[1][0].argv == ("-m", "json.tool", "--nproc", "9")


def test_every_option_reaches_the_job(everstep: Everstep, started: list[tuple[Job, dict[str, str]]]) -> None:
    options = (
        "--nproc 5 --standby 2 --local-nodes 2 --max-failures 7 --max-failures-per-step 2 --env A=1 --env B=x=y "
        "--preload json,xml --lease 4.5 --fence 2 --run-dir here"
    )
    assert everstep("run", *options.split(), "--chaos", "kill rank=2 step=7", "train.py").exit_code == 0
    [(job, nodes)] = started
    config = job.config
    assert (config.ranks, config.standbys, config.nodes, config.max_failures, config.max_failures_per_step) == (
        *(5, 2, 2),
        *(7, 2),
    )
    assert (job.env["A"], job.env["B"]) == ("1", "x=y")
    assert job.preload == (*PRELOAD, "json", "xml")
    assert (job.lease_s, job.fence_s, job.chaos, job.local_world_size) == (4.5, 2.0, ("kill rank=2 step=7",), 3)
    assert sorted(nodes) == ["local-0", "local-1"]


@pytest.mark.parametrize(
    ("given", "web"),
    [
        ("", ("127.0.0.1", 0)),
        ("--web off", None),
        ("--web 0", ("127.0.0.1", 0)),
        ("--web 0.0.0.0:0", ("0.0.0.0", 0)),
        ("--web [::1]:0", ("::1", 0)),
    ],
)
def test_the_live_page_is_on_loopback_unless_it_is_told_otherwise(
    everstep: Everstep, started: list[tuple[Job, dict[str, str]]], given: str, web: tuple[str, int] | None
) -> None:
    assert everstep("run", *given.split(), "train.py").exit_code == 0
    assert started[0][0].web == web


def test_each_command_explains_itself_with_an_example(everstep: Everstep) -> None:
    for command in ("run", "status", "doctor", "explain", "plan", "chaos", "replay", "controller", "agent"):
        result = everstep(command, "--help")
        assert result.exit_code == 0
        assert f"    everstep {command} " in result.output


def test_the_exit_codes_are_documented(everstep: Everstep) -> None:
    shown = everstep("run", "--help").output
    for line in ("0    done", "1    the job failed", "2    it could not start", "130  interrupted"):
        assert line in shown
