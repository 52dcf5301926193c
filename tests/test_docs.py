"""The documents agree with the repository: pictures are current, folders are named, links lead somewhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.sim.world import Kind

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "everstep"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
ELSEWHERE = ("http://", "https://", "mailto:")

# Where somebody's checkout or home lies.
BUILD_MACHINE = re.compile(r"(?<![\w.~/-])/(?:work|home|root|Users)/")


def ours() -> list[Path]:
    """Files that are in the repository or about to be: those that git does not ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def packages() -> list[str]:
    """Every folder of the package that has a module in it."""
    modules = [path.relative_to(PACKAGE).parts for path in ours() if path.is_relative_to(PACKAGE)]
    return sorted({f"{parts[0]}/" for parts in modules if len(parts) > 1})


def top_folders() -> list[str]:
    return sorted({f"{parts[0]}/" for path in ours() if len(parts := path.relative_to(ROOT).parts) > 1})


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*?) *$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def internal_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(CODE.sub("", page.read_text())):
        if not target.startswith(ELSEWHERE):
            yield target


def is_broken(page: Path, link: str) -> bool:
    path, _, fragment = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return True
    return bool(fragment) and fragment not in anchors(target)


def test_the_generated_parts_of_the_protocol_page_are_current() -> None:
    script = ROOT / "scripts" / "protocol_diagram.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"run python scripts/protocol_diagram.py\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("kind", Kind)
def test_the_protocol_page_explains_each_failure_that_the_explorer_injects(kind: Kind) -> None:
    assert f"| {kind.value} |" in (ROOT / "docs" / "protocol.md").read_text()


@pytest.mark.parametrize("folder", packages())
def test_the_architecture_names_each_folder_of_the_package(folder: str) -> None:
    assert f"`{folder}`" in (ROOT / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("folder", top_folders())
def test_the_architecture_names_each_folder_of_the_repository(folder: str) -> None:
    assert f"`{folder}`" in (ROOT / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_internal_links_lead_somewhere(page: Path) -> None:
    assert [link for link in internal_links(page) if is_broken(page, link)] == []


def test_the_readme_shows_the_example_that_is_run() -> None:
    _, _, code = (ROOT / "examples" / "ddp.py").read_text().partition('"""\n\n')
    assert f"```python\n{code}```" in (ROOT / "README.md").read_text()


def test_no_file_mentions_a_path_of_the_machine_it_was_written_on() -> None:
    found = []
    for path in ours():
        text = path.read_text(errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in BUILD_MACHINE.finditer(text)]
    assert found == []
