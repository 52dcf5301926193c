"""The agent's directory in /dev/shm: reserved memory, one owner, and nothing left when the owner is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.tmpfs import tmpfs

from everstep.agent.shm import SharedDirectory, sweep_stale
from everstep.errors import ConfigError, ResourceError
from everstep.types import NodeId

if TYPE_CHECKING:
    from tests.agent.conftest import Until

NODE = NodeId("node/0")  # a name that is no file name
OWNER = """
import signal, sys
from pathlib import Path
from everstep.agent.shm import SharedDirectory
directory = SharedDirectory("job", sys.argv[2], Path(sys.argv[1]))
directory.allocate("board-0", 100)
(directory.path / "made").touch()
signal.pause()
"""


def owned_by_another(root: Path, node: NodeId, until: Until) -> tuple[subprocess.Popen[bytes], Path]:
    """A process that owns a directory, and that directory."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, root, node])
    [mark] = until(lambda: list(root.glob("*/made")))
    return owner, mark.parent


def test_a_closed_directory_is_gone_with_all_that_is_in_it(tmp_path: Path) -> None:
    with SharedDirectory("job", NODE, tmp_path) as directory:
        directory.allocate("a", 100)
        directory.remove("a")
        assert directory.allocate("a", 200).stat().st_size == 200
        assert directory.path.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_does_not_fit_is_an_error_with_path_and_bytes_and_leaves_nothing() -> None:
    with SharedDirectory(f"test-{os.getpid()}", NODE) as directory:
        with pytest.raises(ResourceError, match=rf"{directory.path}/arena needs {1 << 50} bytes.* \d+ free"):
            directory.allocate("arena", 1 << 50)
        assert list(directory.path.iterdir()) == []


def test_memory_that_has_room_for_one_of_two_files_is_full_at_the_second(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "shm", 1 << 20) as root, SharedDirectory("job", NODE, root) as directory:
        first = directory.reserve("slot-0-0", 700 << 10)
        with pytest.raises(ResourceError, match=rf"slot-0-1 needs {700 << 10} bytes.* \d+ free \(No space left"):
            directory.reserve("slot-0-1", 700 << 10)
        with pytest.raises(ResourceError, match="No space left"):
            directory.reserve("slot-0-0", 2 << 20)
        assert list(directory.path.iterdir()) == [first]


def test_a_directory_that_cannot_be_made_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"missing/everstep-job-node%2F0: No such file"):
        SharedDirectory("job", NODE, tmp_path / "missing")


def test_a_living_owner_keeps_its_directory(tmp_path: Path, until: Until) -> None:
    owner, path = owned_by_another(tmp_path, NODE, until)
    try:
        assert sweep_stale(tmp_path) == []
        with pytest.raises(ConfigError, match="belongs to a living agent"):
            SharedDirectory("job", NODE, tmp_path)
        assert (path / "board-0").exists()
    finally:
        owner.kill()
        owner.wait()


def test_a_killed_owner_leaves_a_directory_that_the_next_sweep_removes(tmp_path: Path, until: Until) -> None:
    (tmp_path / "everstep-is-not-a-directory").touch()
    (tmp_path / "of-others").mkdir()
    owner, path = owned_by_another(tmp_path, NODE, until)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert sweep_stale(tmp_path) == [path]
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_node_of_the_same_job_takes_the_place_of_its_killed_owner(tmp_path: Path, until: Until) -> None:
    owner, path = owned_by_another(tmp_path, NODE, until)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    with SharedDirectory("job", NODE, tmp_path) as directory:
        assert directory.path == path
        assert list(path.iterdir()) == []
