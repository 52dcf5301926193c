"""Writes the pictures and tables of docs/protocol.md from the core, so that they cannot differ from it.

    python scripts/protocol_diagram.py            # write
    python scripts/protocol_diagram.py --check    # exit 1, with a diff, if the page is not current

Each part stands between `<!-- begin generated: NAME -->` and `<!-- end generated: NAME -->`.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from everstep.core.events import Absent, Event, JobPhase, NodeJoined, NodeLost, Position
from everstep.core.machine import ACTIVE, RECOVERING, ROWS, TABLE, Row
from everstep.core.planner import decide
from everstep.core.worker import MOVES
from everstep.types import Step, WorkerId, WorkerPhase

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"

LOSS = "a loss"
"""Stands on an edge for the events that every way back, into STOPPING or STARTING, has in common."""

DOES = {
    "_again": "·",
    "_on_absent": "drop the nodes",
    "_on_broken": "wait for a verdict",
    "_on_committed": "recovered",
    "_on_connected": "count it",
    "_on_deadline": "fence who owes",
    "_on_device_sick": "fence its user",
    "_on_ended": "count it",
    "_on_exited": "replace it",
    "_on_fence_failed": "give it up",
    "_on_grace_over": "recover",
    "_on_interrupted": "end the job",
    "_on_node_joined": "compare",
    "_on_node_lost": "replace all on it",
    "_on_persisted": "remember",
    "_on_protected": "compare layouts",
    "_on_registered": "assign its rank",
    "_on_restarted": "wait for agents",
    "_on_restored": "check version",
    "_on_sealed": "remember",
    "_on_settled": "check version",
    "_on_shared_deadline": "recover",
    "_on_stalled": "one redo",
    "_on_stopped": "note position",
    "_on_unusable": "try an older one",
    "_on_verdict": "fence it",
}
"""Handlers of the machine in words that fit a cell. A new one shows its own name until it has words here."""

EXAMPLES: tuple[tuple[str, dict[str, tuple[WorkerPhase, int]]], ...] = (
    ("in Forward", {"1": (WorkerPhase.FORWARD, 7), "2": (WorkerPhase.FORWARD, 7)}),
    ("in Forward; rank 1 has not begun", {"1": (WorkerPhase.IDLE, 7), "2": (WorkerPhase.FORWARD, 7)}),
    ("in Backward", {"1": (WorkerPhase.BACKWARD, 7), "2": (WorkerPhase.READY, 7)}),
    ("in the barrier; nobody alive passed", {"1": (WorkerPhase.READY, 7), "2": (WorkerPhase.READY, 7)}),
    ("in the barrier; rank 1 passed", {"1": (WorkerPhase.COMMITTED, 7), "2": (WorkerPhase.READY, 7)}),
    ("in the Optimizer Step", {"1": (WorkerPhase.COMMITTED, 7), "2": (WorkerPhase.COMMITTED, 7)}),
    ("in the Optimizer Step; rank 1 is a step ahead", {"1": (WorkerPhase.FORWARD, 8), "2": (WorkerPhase.READY, 7)}),
)
"""What happens to rank 0, and where ranks 1 and 2 answer the Stop."""


def words(handler: str) -> str:
    return DOES.get(handler, handler.removeprefix("_on_").removeprefix("_").replace("_", " "))


def named(items: Iterable[type[Event]]) -> list[str]:
    return [item.__name__ for item in items]


# ── the phases of the job ────────────────────────────────────────────────────────────────────────────────


def direct(row: Row, phase: JobPhase) -> Iterator[JobPhase]:
    """Where a row leads at once. A recovery may pass several phases within one event; only the first is drawn.

    A row names the direct ones first, so what an earlier one of its targets leads to is passed through. An agent's
    hello and the absence of one tell losses: they lead no further than `NodeLost` does.
    """
    targets = [target for target in dict.fromkeys(row.to) if target not in (phase, JobPhase.FAILED)]
    if row.event in (NodeJoined, Absent):
        targets = [target for target in targets if target in TABLE[NodeLost, phase].to]
    for index, target in enumerate(targets):
        way = RECOVERING.index(target) if target in RECOVERING else 0
        # A start is no recovery: both of its targets are direct.
        passed = phase is not JobPhase.STARTING and any(before in RECOVERING[:way] for before in targets[:index])
        if not passed:
            yield target


def job_edges() -> dict[tuple[JobPhase, JobPhase], list[type[Event]]]:
    edges: dict[tuple[JobPhase, JobPhase], list[type[Event]]] = defaultdict(list)
    for row in ROWS:
        for phase in row.phases:
            for target in direct(row, phase):
                edges[phase, target].append(row.event)
    return edges


def losses(edges: dict[tuple[JobPhase, JobPhase], list[type[Event]]]) -> list[type[Event]]:
    """The events that every edge back has."""
    back = (JobPhase.STOPPING, JobPhase.STARTING)
    into = [events for (_, target), events in edges.items() if target in back]
    return [event for event in into[0] if all(event in events for events in into)]


def job_diagram() -> Iterator[str]:
    edges = job_edges()
    common = losses(edges)
    order = list(JobPhase)
    yield from ("```mermaid", "stateDiagram-v2", f"    [*] --> {JobPhase.STARTING.name}")
    for source, target in sorted(edges, key=lambda edge: (order.index(edge[0]), order.index(edge[1]))):
        events = edges[source, target]
        label = named(events)
        if set(common) <= set(events):
            label = [*named(event for event in events if event not in common), LOSS]
        yield f"    {source.name} --> {target.name}: {', '.join(label)}"
    yield f"    {JobPhase.DONE.name} --> [*]"
    yield f"    {JobPhase.FAILED.name} --> [*]"
    yield f"    note right of {JobPhase.STOPPING.name}"
    yield f"        {LOSS}: {', '.join(named(common))}"
    yield "    end note"
    yield f"    note left of {JobPhase.FAILED.name}"
    yield from (f"        {line}" for line in ways_to_fail())
    yield from ("    end note", "```")


def ways_to_fail() -> Iterator[str]:
    """The edges into FAILED, folded: which events end the job, by the phases where they can."""
    phases: dict[type[Event], list[JobPhase]] = defaultdict(list)
    for row in ROWS:
        if JobPhase.FAILED in row.to:
            phases[row.event] += row.phases
    by_phases: dict[tuple[JobPhase, ...], list[type[Event]]] = defaultdict(list)
    for event, seen in phases.items():
        by_phases[tuple(phase for phase in ACTIVE if phase in seen)].append(event)
    for where, events in by_phases.items():
        yield f"from {among(where)}, on {', '.join(named(events))}"


def among(phases: tuple[JobPhase, ...]) -> str:
    missing = [phase.name for phase in ACTIVE if phase not in phases]
    if len(missing) < 2:
        return " but ".join(("any phase", *missing))
    return ", ".join(phase.name for phase in phases)


def job_table() -> Iterator[str]:
    yield "| event | " + " | ".join(phase.name for phase in ACTIVE) + " |"
    yield "|---" * (len(ACTIVE) + 1) + "|"
    for event in dict.fromkeys(row.event for row in ROWS):
        rows = [TABLE.get((event, phase)) for phase in ACTIVE]
        cells = ["" if row is None else words(row.action.__name__) for row in rows]
        yield f"| {event.__name__} | " + " | ".join(cells) + " |"


# ── the worker, and the decision ─────────────────────────────────────────────────────────────────────────


def worker_diagram() -> Iterator[str]:
    yield from ("```mermaid", "stateDiagram-v2", "    direction LR")
    for move, (sources, target) in MOVES.items():
        for source in sources:
            yield f"    {source.name} --> {target.name}: {move.value}"
    yield "```"


def decisions() -> Iterator[str]:
    """The worked examples, decided by the real planner."""
    yield "| rank 0 fails | rank 1 | rank 2 | T | what they are told | the sentence in the log |"
    yield "|---|---|---|---|---|---|"
    for failure, ranks in EXAMPLES:
        at = {WorkerId(int(rank)): Position(phase, Step(version)) for rank, (phase, version) in ranks.items()}
        decision = decide(at)
        told = ", ".join(f"{worker}: {action.name}" for worker, action in decision.actions.items())
        places = " | ".join(map(str, at.values()))
        yield f"| {failure} | {places} | {decision.target} | {told} | {decision.reason} |"


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────

PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "job diagram": job_diagram,
    "job table": job_table,
    "worker diagram": worker_diagram,
    "decisions": decisions,
}


def renewed(page: str) -> str:
    """The page with every part generated anew."""
    for name, generate in PARTS.items():
        begin, end = f"<!-- begin generated: {name} -->", f"<!-- end generated: {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise SystemExit(f"{PAGE.name} must have exactly one {begin} and one {end}")
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = before + "\n".join((begin, "", *generate(), "", end)) + after
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the pictures and tables of docs/protocol.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is not current")
    check = parser.parse_args().check
    old = PAGE.read_text()
    new = renewed(old)
    if check:
        diff = difflib.unified_diff(old.splitlines(), new.splitlines(), PAGE.name, "as generated", lineterm="")
        lines = list(diff)
        print("\n".join(lines) if lines else f"{PAGE.name} is current")
        return 1 if lines else 0
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
