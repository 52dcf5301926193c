"""`everstep demo`: see it."""

from __future__ import annotations

from pathlib import Path

import click

from everstep.cli import terminal
from everstep.demo.show import show
from everstep.launch.prepare import run_directory

_HELP = """Watch a training lose all of its devices, one by one, and end on the same bits.

Four devices and a standby train a small GPT on text that is made for it. Each of the four is killed once: in Forward,
in Backward, in the Optimizer Step, in the barrier. Then the same runs without failures, and a table compares them.
Exit code 1: the bits differ.
"""


@click.command(help=_HELP)
@click.option("--steps", type=click.IntRange(min=1), default=150, show_default=True, help="Of the training.")
@click.option("--out", type=click.Path(path_type=Path), help="For the two runs. Default: runs/<time>-demo")
def demo(steps: int, out: Path | None) -> int:
    return show(run_directory(out, "demo"), steps, terminal.stdout())
