"""`everstep plan`: how often to take a checkpoint, and what failures will cost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table

from everstep.cli import terminal
from everstep.cli.options import SECONDS
from everstep.errors import ConfigError
from everstep.launch.recorded import read_run
from everstep.observe import plan as model
from everstep.observe.plan import Plan, Value, Waste
from everstep.units import write_duration

_HELP = """Work out how often a job should take a checkpoint, and what failures will cost it.

\b
    everstep plan --mtbf 3h --k0 2s --k1 90s --step 0.5s
    everstep plan runs/20260130-101500-train
    everstep plan runs/20260130-101500-train --mtbf 40m --json

From the directory of a run it takes what was measured there; options go before that. What is neither given nor
measured is assumed, and marked. docs/operations.md explains the numbers.
"""

_SHOWN = {
    "mtbf_s": ("M", "mean time between failures"),
    "healed_share": ("q", "share that replicas heal"),
    "k0_s": ("k0", "copy to memory"),
    "k1_s": ("k1", "memory to storage"),
    "slowdown": ("φ", "step time meanwhile, as a ratio"),
    "step_s": ("", "step time"),
    "fallback_s": ("s0", "fallback: detect, restart, load"),
    "heal_s": ("r", "recovery from replicas"),
    "restart_s": ("", "restart by a launcher"),
    "run_s": ("d", "length of the run"),
}
_RATIOS = ("healed_share", "slowdown")


@click.command(help=_HELP)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--mtbf", "mtbf_s", type=SECONDS, help="M: mean time between failures of the job.")
@click.option("--q", "healed_share", type=float, help="Share of the failures that replicas heal, 0 to less than 1.")
@click.option("--k0", "k0_s", type=SECONDS, help="The copy to memory, for which training stands still.")
@click.option("--k1", "k1_s", type=SECONDS, help="From memory to storage, while training goes on.")
@click.option("--phi", "slowdown", type=float, help="Step time meanwhile over step time otherwise, at least 1.")
@click.option("--step", "step_s", type=SECONDS, help="How long a step takes.")
@click.option("--run", "run_s", type=SECONDS, help="How long the training takes without failures.")
@click.option("--fallback", "fallback_s", type=SECONDS, help="Fixed cost of going back to a checkpoint.")
@click.option("--recover", "heal_s", type=SECONDS, help="Cost of a recovery from replicas.")
@click.option("--restart", "restart_s", type=SECONDS, help="Cost of a restart by a launcher.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in one line.")
def plan(directory: Path | None, as_json: bool, **options: float | None) -> None:
    given = {name: value for name, value in options.items() if value is not None}
    if directory is None and not given.keys() & {"mtbf_s", "k0_s", "k1_s"}:
        raise ConfigError("nothing to plan with: give the directory of a run, or --mtbf, --k0 and --k1")
    _check(given)
    notes: tuple[str, ...] = ()
    seen: dict[str, Value] = {}
    if directory is not None:
        run = read_run(directory, time.time())
        seen, notes = model.seen(run.recoveries, run.checkpoints, run.run_s, run.ranks), run.notes
        if not run.checkpoints:
            notes += ("this run has recorded no checkpoint",)
    made = model.plan(given, seen)
    if as_json:
        click.echo(json.dumps(_json(made, notes), ensure_ascii=False))
    else:
        _draw(terminal.stdout(), made, notes)


def _check(given: dict[str, float]) -> None:
    q, phi = given.get("healed_share", 0.0), given.get("slowdown", 1.0)
    if not 0 <= q < 1:
        raise ConfigError(f"--q {q:g}: a share of the failures, 0 to less than 1")
    if not 1 <= phi <= 100:
        raise ConfigError(f"--phi {phi:g}: a ratio, 1 for no slowdown; 1.03 for steps that take 3 % longer")


def _json(made: Plan, notes: Iterable[str]) -> dict[str, Any]:
    inputs = {name: value for name, value in asdict(made.inputs).items() if value is not None}
    return asdict(made) | {"inputs": inputs, "notes": [*notes, *made.notes]}


def _draw(console: Console, made: Plan, notes: Iterable[str]) -> None:
    console.print(_inputs(made))
    console.print(_answer(made), style="bold")
    console.print(_wastes("F(t): checkpoints and fallbacks", "t", made.intervals))
    console.print(_wastes("Expected waste, each policy with its best t", "policy", made.policies))
    for note in (*notes, *made.notes):
        console.print(f"note: {note}")


def _inputs(made: Plan) -> Table:
    table = _table("What it is made of", "", "", "")
    table.add_column("from", overflow="fold")
    for name, (symbol, meaning) in _SHOWN.items():
        found: Value | None = getattr(made.inputs, name)
        if found is not None:
            text = f"{found.value:.3g}" if name in _RATIOS else write_duration(found.value)
            table.add_row(symbol, meaning, text, found.source)
    return table


def _answer(made: Plan) -> str:
    steps = "" if made.steps is None else f", every {made.steps} steps"
    bound = "" if made.t_s == made.optimum_s else f" (t* is {write_duration(made.optimum_s)}, less than k1)"
    return f"t = {write_duration(made.t_s)}{steps}{bound}"


def _wastes(title: str, head: str, rows: Iterable[Waste]) -> Table:
    table = _table(title, head)
    for name in ("t", "waste", "of the run"):
        table.add_column("" if name == head else name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.name, write_duration(row.t_s), write_duration(row.waste_s), f"{row.share:.2%}")
    return table


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left", box=HORIZONTALS, padding=(0, 1))
    for head in heads:
        table.add_column(head, no_wrap=True)
    return table
