"""The live block: a status as tables, for a terminal of any width. Asks nobody and knows no job but the snapshot."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from everstep.launch.client import CheckpointRow, Result, Snapshot, StandbyRow, WorkerRow
from everstep.observe.records import abridged

WIDE = 76
"""Columns of a terminal that shows everything; a narrower one shows what matters."""

SHOWN_FAILURES = 3
_OTHER_LINES = 8  # above and below the ranks: title, head, standbys, failures

_PHASES = {  # the colours of the reports
    "FORWARD": "#00BFFF",
    "BACKWARD": "#2E8B57",
    "READY": "#FF0000",
    "COMMITTED": "#FFA500",
    "IDLE": "#90EE90",
    "ENDED": "#90EE90",
}
_STATES = {"RUNNING": "green", "DONE": "green", "FAILED": "bold red", "STARTING": "cyan"}


def block(snapshot: Snapshot, width: int, height: int, elapsed_s: float | None = None) -> RenderableType:
    """All of it in the given space; ranks that do not fit are counted."""
    saved = list(_checkpoints(snapshot.checkpoints))
    rows = max(1, height - _OTHER_LINES - len(saved))
    parts: list[RenderableType] = [_title(snapshot, elapsed_s)]
    if snapshot.workers:
        parts.append(Padding(_ranks(snapshot.workers, rows, width), (0, 2), expand=False))
    if len(snapshot.workers) > rows:
        parts.append(_line(f"  … and {len(snapshot.workers) - rows} more ranks", "dim"))
    parts.extend(_standbys(snapshot.standbys))
    parts.extend(saved)
    parts.extend(_line(f"  {text}", "red") for text in failures(snapshot))
    return Group(*parts)


def waiting(text: str) -> RenderableType:
    """Before the first status, and while nobody answers."""
    return _line(text, "dim")


def failures(snapshot: Snapshot, newest: int = SHOWN_FAILURES) -> list[str]:
    """The last ones, each in a line."""
    shown = snapshot.failures[-newest:] if newest else ()
    return [f"{time.strftime('%H:%M:%S', time.localtime(failure.time))} {tidy(failure.text)}" for failure in shown]


def over(result: Result) -> str:
    """How a run ended, in a sentence."""
    how = {0: "done", 130: "interrupted"}.get(result.code, f"failed with code {result.code}")
    return f"the run is over: {how}" + (f": {tidy(result.reason)}" if result.reason and result.code else "")


def tidy(text: str) -> str:
    """One line, without characters that a terminal obeys: of a traceback how it begins and what was raised."""
    return "".join(char if char.isprintable() else "?" for char in abridged(text))


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _title(snapshot: Snapshot, elapsed_s: float | None) -> Text:
    title = _line("")
    title.append(f"{tidy(snapshot.job) or 'job'}  ", "bold")
    title.append(snapshot.state, _STATES.get(snapshot.state, "yellow"))
    title.append(f"  step {snapshot.step}  generation {snapshot.generation}")
    if elapsed_s is not None:
        title.append(f"  {duration(elapsed_s)}", "dim")
    if snapshot.reason:
        title.append(f"  {tidy(snapshot.reason)}", "red")
    return title


def _ranks(workers: Sequence[WorkerRow], rows: int, width: int) -> Table:
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    heads = ("rank", "worker", "pid", "node", "step", "phase", "version", "age") if wide else ("rank", "step", "phase")
    for head in heads:
        justify = "left" if head in ("node", "phase") else "right"
        table.add_column(head, no_wrap=True, overflow="ellipsis", justify=justify)  # type: ignore[arg-type]
    for row in sorted(workers, key=lambda worker: worker.rank)[:rows]:
        phase = Text(row.phase, _PHASES.get(row.phase, "dim"))
        step = str(row.step) if row.step >= 0 else "–"
        if wide:
            version = str(row.version) if row.version >= 0 else "–"
            who = (str(row.worker), str(row.pid or "–"), Text(tidy(row.node)))
            table.add_row(str(row.rank), *who, step, phase, version, f"{row.age_s:.1f} s")
        else:
            table.add_row(str(row.rank), step, phase)
    return table


def _standbys(standbys: Sequence[StandbyRow]) -> Iterator[Text]:
    if standbys:
        names = ", ".join(f"worker {row.worker} on {tidy(row.node)}" for row in standbys)
        yield _line(f"  standby: {names}", "dim")


def _checkpoints(row: CheckpointRow | None) -> Iterator[Text]:
    """What a failure would go back to; nothing where none are taken."""
    if row is None or (row.sealed is None and row.committed is None):
        return
    shown = []
    if row.committed is not None:
        shown.append(f"step {row.committed.step} on storage, {duration(row.committed.age_s)} ago")
    if row.sealed is not None and row.sealed != row.committed:
        shown.append(f"step {row.sealed.step} in memory")
    if row.busy:
        shown.append("storage is busy")
    yield _line(f"  checkpoint: {'; '.join(shown)}", "yellow" if row.busy or row.error else "dim")
    if row.error:
        yield _line(f"  not on storage: {tidy(row.error)}", "yellow")


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
