"""What is checked before a process starts."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from everstep.errors import ConfigError, ResourceError
from everstep.launch.prepare import (
    check_importable,
    check_port,
    check_shared_memory,
    find_program,
    job_name,
    run_directory,
    worker_environment,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A script, a package that must not be imported, a directory to run and one that cannot be."""
    (tmp_path / "train.py").touch()
    for name in ("pkg", "pkg/sub", "app", "data"):
        (tmp_path / name).mkdir()
    for name in ("pkg", "pkg/sub"):
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('imported')")
    for name in ("pkg/sub/train.py", "pkg/sub/__main__.py", "app/__main__.py"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "as_module", "argv", "stem"),
    [
        (["train.py", "--lr", "3e-4"], False, ("train.py", "--lr", "3e-4"), "train"),
        (["app"], False, ("app",), "app"),
        (["pkg.sub.train", "-x"], True, ("-m", "pkg.sub.train", "-x"), "pkg.sub.train"),
        (["pkg.sub"], True, ("-m", "pkg.sub"), "pkg.sub"),
        (["json.tool"], True, ("-m", "json.tool"), "json.tool"),
    ],
)
def test_a_program_is_found_without_being_imported(
    tree: Path, words: list[str], as_module: bool, argv: tuple[str, ...], stem: str
) -> None:
    program = find_program(words, as_module, tree)
    assert (program.argv, program.stem) == (argv, stem)
    assert "pkg" not in sys.modules


@pytest.mark.parametrize(
    ("words", "as_module", "what", "to_do"),
    [
        ([], False, "nothing to run", "give a script"),
        (["nix.py"], False, "'nix.py' does not exist", "-m before the name of a module"),
        (["no/nix.py"], False, "'no/nix.py' does not exist", "check the path"),
        (["data"], False, "data is a directory without a __main__.py", "name the script"),
        (["train.py", "\udcff"], False, r"argument '\udcff' is not UTF-8", "leave it out"),
        (["pkg.nix"], True, "'pkg.nix' is not found", "check the name"),
        (["pkg"], True, "'pkg' is a package without a __main__", "name a module in it"),
        (["train.py"], True, "'train.py' is not found", "check the name"),
        (["pkg..sub"], True, "'pkg..sub' is not found", "check the name"),
    ],
)
def test_what_cannot_be_run_is_refused(tree: Path, words: list[str], as_module: bool, what: str, to_do: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(what)}.*{to_do}"):
        find_program(words, as_module, tree)


def test_what_cannot_be_preloaded_is_refused(tree: Path) -> None:
    check_importable("pkg", tree)
    with pytest.raises(ConfigError, match=r"--preload 'nix\.x': there is no such module; check the name"):
        check_importable("nix.x", tree)


def test_workers_get_the_environment_but_the_token_and_what_a_rank_sets() -> None:
    environ = {"HOME": "/me", "EVERSTEP_TOKEN": "secret", "RANK": "7", "A": "1"}
    assert worker_environment(environ, {"A": "2"}) == {"HOME": "/me", "A": "2"}


def test_a_variable_that_cannot_be_sent_is_named_but_not_shown() -> None:
    with pytest.raises(ConfigError, match="environment variable 'SECRET' is not UTF-8") as caught:
        worker_environment({"SECRET": "hunter2\udcff"}, {})
    assert "hunter2" not in str(caught.value)


def test_a_run_directory_is_named_for_the_time_and_the_script(tmp_path: Path) -> None:
    assert re.fullmatch(r"\d{8}-\d{6}-train", run_directory(None, "train", tmp_path).name)


def test_runs_of_the_same_second_have_directories_of_their_own(tmp_path: Path) -> None:
    assert len({run_directory(None, "train", tmp_path) for _ in range(20)}) == 20


@pytest.mark.parametrize(("stem", "tidy"), [("a b/ü", "a_b__"), ("..", "run"), ("pkg.sub", "pkg.sub")])
def test_names_are_such_that_a_shell_needs_no_quotes(tmp_path: Path, stem: str, tidy: str) -> None:
    assert run_directory(None, stem, tmp_path).name.partition("-")[2].partition("-")[2] == tidy
    assert job_name(stem).startswith(f"{tidy}-")


def test_the_name_of_a_job_is_its_own_and_short() -> None:
    assert len({job_name("x" * 200) for _ in range(50)}) == 50
    assert len(job_name("x" * 200)) < 32


def test_a_wanted_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--run-dir .*/file is a file: name a directory"):
        run_directory(tmp_path / "file", "train")


def test_shared_memory_that_is_too_small_is_found_before_the_start(tmp_path: Path) -> None:
    check_shared_memory(1)
    with pytest.raises(ResourceError, match=r"bytes free, \d+ workers need \d+: enlarge it"):
        check_shared_memory(1 << 40, tmp_path)
    with pytest.raises(ResourceError, match="mount a tmpfs there"):
        check_shared_memory(1, tmp_path / "nix")


def test_a_port_in_use_is_found_before_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port} \(Address already in use\): give --bind another"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)
