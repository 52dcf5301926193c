"""`everstep checkpoint`: what a checkpoint directory holds, and whether it is still what was written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec
from rich.box import HORIZONTALS
from rich.table import Table

from everstep.checkpoint import catalog
from everstep.checkpoint.catalog import Condition, Found
from everstep.checkpoint.manifest import Entry
from everstep.checkpoint.store import Store
from everstep.cli import terminal
from everstep.errors import CheckpointError, ConfigError, Unreadable
from everstep.types import Rank
from everstep.units import write_size

_HELP = """Look at checkpoints.

\b
    everstep checkpoint list runs/20260130-101500-train
    everstep checkpoint verify runs/20260130-101500-train/checkpoints
    everstep checkpoint show runs/20260130-101500-train/checkpoints/step-0000000500-g1-a1

DIR is the directory of a run, its checkpoint directory, or the directory of one checkpoint. The command reads files
only: it works without a job, on any machine that has the directory.
"""

_VERIFY_HELP = """Read every byte of every committed checkpoint, and name what is damaged.

What is found damaged is marked with a file BAD, and no job loads it. Exit code 1: something is damaged or cannot be
read.
"""

_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
_COLOURS = {Condition.COMMITTED: "green", Condition.BAD: "red", Condition.UNREADABLE: "red"}


@click.group(help=_HELP)
def checkpoint() -> None:
    pass


@checkpoint.command("list")
@_DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="Print JSON in one line.")
def list_(directory: Path, as_json: bool) -> None:
    """The checkpoints, newest first."""
    found = _find(directory)[1]
    if as_json:
        click.echo(msgspec.json.encode([_plain(each) for each in found]))
        return
    table = Table(box=HORIZONTALS, header_style="dim", pad_edge=False, collapse_padding=True)
    for head in ("step", "ranks", "size"):
        table.add_column(head, justify="right", no_wrap=True)
    for head in ("condition", "time"):
        table.add_column(head, no_wrap=True)
    table.add_column("directory", overflow="fold")  # whole on a narrow terminal too: it is what a user copies
    for each in found:
        commit = each.commit
        ranks, size, when = ("–", "–", "–")
        if commit is not None:
            ranks, size, when = str(commit.world_size), write_size(commit.bytes), _when(commit.time_s)
        numbers = (str(each.checkpoint.step), ranks, size)
        table.add_row(*numbers, each.condition, when, each.directory, style=_COLOURS.get(each.condition, "dim"))
    terminal.stdout().print(table)
    for each in found:
        if each.condition in (Condition.BAD, Condition.UNREADABLE):
            click.echo(f"{each.directory}: {each.reason}")


@checkpoint.command(help=_VERIFY_HELP)
@_DIRECTORY
def verify(directory: Path) -> int:
    store, found = _find(directory)
    return max(_verify(store, each) for each in reversed(found))


@checkpoint.command()
@_DIRECTORY
def show(directory: Path) -> None:
    """One checkpoint, the newest committed one if there are several: its files and its tensors."""
    store, found = _find(directory)
    each = next((each for each in found if each.commit is not None), found[0])
    if each.commit is None:
        raise CheckpointError(f"{store.where}/{each.directory} is {each.condition}: {each.reason}")
    commit = each.commit
    click.echo(f"{store.where}/{each.directory}")
    click.echo(f"step {commit.step}, generation {commit.generation}, attempt {commit.attempt}, {_when(commit.time_s)}")
    click.echo("written by " + ", ".join(f"{name} {version}" for name, version in commit.versions.items()))
    entries: dict[str, Entry] = {}
    held: Counter[str] = Counter()
    files = Table(box=HORIZONTALS, header_style="dim", pad_edge=False)
    for head in ("rank", "replica", "shard", "size", "tensors", "values", "private"):
        files.add_column(head, justify="right")
    for rank, share in enumerate(commit.shares):
        with catalog.open_share(store, commit, Rank(rank)) as file:
            own = file.manifest.own()
            sizes = [write_size(len(data)) if data else "–" for data in (file.manifest.values, file.manifest.private)]
        entries.update((entry.key, entry) for entry in own)
        held.update(entry.key for entry in own)
        where = (str(rank), str(share.replicate), str(share.shard))
        files.add_row(*where, write_size(share.size_bytes), str(len(own)), *sizes)
    console = terminal.stdout()
    console.print(files)
    console.print(_tensors(entries.values(), held))


def _find(directory: Path) -> tuple[Store, list[Found]]:
    """All checkpoints that the argument means; at least one."""
    store, only = catalog.locate(directory)
    found = [each for each in catalog.find(store) if only in (None, each.checkpoint)]
    if not found:
        raise ConfigError(f"there is no checkpoint in {store.where}")
    return store, found


def _verify(store: Store, found: Found) -> int:
    wrong = []
    if found.commit is not None:
        wrong = list(catalog.verify(store, found.commit))
    elif found.condition is not Condition.INCOMPLETE:
        wrong = [CheckpointError(found.reason)]
    for error in wrong:
        click.echo(f"{found.directory}: {found.condition if found.commit is None else 'damaged'}: {error}")
    damage = [error for error in wrong if not isinstance(error, Unreadable)]
    if damage and found.commit is not None:
        catalog.mark_bad(store, found.checkpoint, str(damage[0]))
    if not wrong and found.commit is None:
        click.echo(f"{found.directory}: {found.condition}: {found.reason}")
    elif not wrong and found.commit is not None:
        click.echo(f"{found.directory}: good, {found.commit.world_size} files, {write_size(found.commit.bytes)}")
    return 1 if wrong else 0


def _tensors(entries: Iterable[Entry], held: Counter[str]) -> Table:
    table = Table(box=HORIZONTALS, header_style="dim", pad_edge=False)
    table.add_column("tensor", overflow="fold")
    for head in ("type", "shape", "pieces"):
        table.add_column(head, justify="right", no_wrap=True)
    for entry in sorted(entries, key=lambda entry: entry.key):
        table.add_row(entry.key, entry.dtype, str(entry.whole), str(held[entry.key]))
    return table


def _plain(found: Found) -> object:
    commit = found.commit
    return {
        "directory": found.directory,
        **{name: getattr(found.checkpoint, name) for name in ("step", "generation", "attempt")},
        "condition": found.condition,
        "reason": found.reason,
        "world_size": None if commit is None else commit.world_size,
        "bytes": None if commit is None else commit.bytes,
        "time_s": None if commit is None else commit.time_s,
    }


def _when(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))
