"""The demo itself: the GPT with failures, the same without, and a table that shows what each failure cost.

Two runs of `everstep run`, as a user would start them; what is shown is read from their run directories.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table
from rich.text import Text

from everstep.errors import ConfigError
from everstep.observe.records import Recovery, read_recoveries

RANKS = 4
ENDS = re.compile(r"rank (\d+) ends on ([0-9a-f]+)")
LEAST_STEPS = 5
SHOWN = 40
"""Digits of a hash, so that a line of a narrow terminal holds it."""
_PHASES = {
    "FORWARD": "Forward",
    "BACKWARD": "Backward",
    "COMMITTED": "Optimizer Step",
    "READY": "barrier",
    "IDLE": "between two steps",
}


def faults(steps: int) -> list[str]:
    """Each of the four devices dies once, each in another phase."""
    deaths = ((2, "forward"), (0, "backward"), (3, "optimizer"), (1, "barrier"))
    return [f"kill rank={rank} step={steps * part // 5} phase={phase}" for part, (rank, phase) in enumerate(deaths, 1)]


@dataclass(frozen=True, slots=True)
class Played:
    """One of the two runs, when it is over."""

    code: int
    seconds: float
    recoveries: Sequence[Recovery]
    ends: dict[int, str]
    """The final hash of each rank, as its process has printed it."""

    @property
    def final(self) -> str | None:
        """What all ranks ended on; None if they did not end, or on different bits."""
        return next(iter(self.ends.values())) if len(self.ends) == RANKS and len(set(self.ends.values())) == 1 else None


def show(folder: Path, steps: int, console: Console) -> int:
    """The exit code: 0 if both runs end on the same bits."""
    if steps < LEAST_STEPS:
        raise ConfigError(f"--steps {steps}: at least {LEAST_STEPS}, so that four devices can die in different steps")
    console.print(f"Four devices and a standby train a small GPT for {steps} steps; each of the four is killed once.")
    broken = _play(folder / "with-failures", steps, faults(steps))
    if broken.code:
        return broken.code
    console.print("\nThe same without failures:")
    clean = _play(folder / "clean", steps, [])
    if clean.code:
        return clean.code
    console.print(_table(broken.recoveries))
    equal = broken.final is not None and broken.final == clean.final
    for name, played in (("with failures", broken), ("without", clean)):
        console.print(f"{name:13} {played.seconds:5.1f} s  {(played.final or 'no common end')[:SHOWN]}")
    console.print(Text("the same bits" if equal else "DIFFERENT", "bold green" if equal else "bold red"))
    return 0 if equal else 1


def _play(run_dir: Path, steps: int, kills: Sequence[str]) -> Played:
    command = [sys.executable, "-m", "everstep.cli", "run", "--nproc", str(RANKS), "--standby", "1"]
    for kill in kills:
        command += ["--chaos", kill]
    command += ["--run-dir", str(run_dir), "-m", "everstep.demo.gpt", "--steps", str(steps)]
    begin = time.monotonic()
    with subprocess.Popen(command) as process:  # it shares this terminal: the live view is its own
        try:
            code = process.wait()
        except KeyboardInterrupt:  # Ctrl-C reaches it too
            code = process.wait()
    ends = {}
    for log in (run_dir / "logs").glob("*.log"):
        ends.update({int(rank): end for rank, end in ENDS.findall(log.read_text(errors="replace"))})
    return Played(code, time.monotonic() - begin, read_recoveries(run_dir / "recoveries.jsonl"), ends)


def _table(recoveries: Sequence[Recovery]) -> Table:
    style = {"box": HORIZONTALS, "padding": 0}  # 80 columns hold it
    table = Table(title="What each failure cost, in seconds", title_justify="left", **style)  # type: ignore[arg-type]
    for head in ("killed", "the others"):
        table.add_column(head, no_wrap=True)
    for head in ("detect", "stop", "reset", "restore", "step", "total"):
        table.add_column(head, justify="right", no_wrap=True)
    for recovery in recoveries:
        stop_s = recovery.t_stop_s + recovery.t_decide_s + recovery.t_settle_s
        parts = (recovery.t_detect_s, stop_s, recovery.t_reset_s, recovery.t_restore_s, recovery.t_first_step_s)
        table.add_row(
            "\n".join(f"rank {dead.rank}, {_PHASES.get(dead.phase or '', '')}" for dead in recovery.failures),
            _decided(recovery),
            *(f"{seconds:.2f}" for seconds in parts),
            f"{recovery.t_total_s:.2f}",
        )
    return table


def _decided(recovery: Recovery) -> str:
    """What became of the step that the killed one was in."""
    return f"redo step {recovery.step}" if recovery.step == recovery.target else f"finish step {recovery.step}"
