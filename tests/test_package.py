"""The installed package is the one in this tree."""

import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path

import everstep

COMMAND = Path(sysconfig.get_path("scripts")) / "everstep"


def everstep_command(*arguments: str) -> str:
    """Run the installed command as a user would and return what it printed."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_the_installed_version_is_the_version_of_the_source() -> None:
    assert version("everstep") == everstep.__version__


def test_the_command_prints_its_version() -> None:
    assert everstep_command("--version") == f"everstep, version {everstep.__version__}\n"


def test_the_command_explains_itself() -> None:
    assert everstep_command("--help").startswith("Usage: everstep ")
