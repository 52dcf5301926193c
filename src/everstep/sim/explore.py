"""The explorer: every interleaving of a small job with the real core, breadth first, so that a trace is the shortest.

    python -m everstep.sim.explore --ranks 2 --standby 1 --failures 2

It ends with the number of states, or with the first violation and how to get there. Besides the properties in
`checks` it proves progress: if failures stop, every state leads to DONE or FAILED, because no state but those is
without a next step and no sequence of steps comes back to where it was.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import NoReturn

import click

from everstep.errors import EverstepError, ModelViolation
from everstep.sim.rules import OVER, Choice, Label, Packed, Rules
from everstep.sim.world import Kind, Scope, World
from everstep.types import Mesh


@dataclass(frozen=True, slots=True)
class Violation:
    message: str
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    states: int
    transitions: int
    depth: int
    core_states: int
    seconds: float
    complete: bool
    """False when it stopped at a limit."""
    outcomes: dict[str, int]
    violation: Violation | None = None
    rows: frozenset[tuple[str, str, str]] = field(default=frozenset(), repr=False)
    """(event, phase before, phase after) of the controller's machine that were seen."""


Progress = Callable[[int, int, int], None]


class Explorer:
    def __init__(self, scope: Scope, *, max_states: int = 0, progress: Progress | None = None) -> None:
        self.rules = Rules(scope)
        self._max_states = max_states
        self._progress = progress
        self._number: dict[Packed, int] = {}
        self._parent = array("I")
        self._targets = array("I")
        """Where each step leads, grouped by where it begins: worlds are expanded in the order of their numbers."""
        self._first = array("Q")
        """The place of the first step of each world in `_targets`."""
        self._depth = 0
        self._outcomes: Counter[str] = Counter()

    def run(self) -> Result:
        start = time.perf_counter()
        complete, violation = False, None
        try:
            complete = self._search()
            if complete:
                self._check_acyclic()
        except _Found as found:
            violation = found.violation
        rows = {(event.__name__, before.name, after.name) for event, before, after in self.rules.cores.rows}
        return Result(
            len(self._number),
            len(self._targets),
            self._depth,
            len(self.rules.cores),
            round(time.perf_counter() - start, 1),
            complete,
            dict(self._outcomes),
            violation,
            frozenset(rows),
        )

    # ── the search ───────────────────────────────────────────────────────────────────────────────────────

    def _search(self) -> bool:
        frontier = [self.rules.pack(self.rules.first())]
        self._add(frontier[0], 0)
        while frontier:
            following: list[Packed] = []
            for packed in frontier:
                self._expand(packed, following)
                if self._max_states and len(self._number) > self._max_states:
                    return False
            if following:
                self._depth += 1
            frontier = following
            if self._progress:
                self._progress(self._depth, len(self._number), len(frontier))
        return True

    def _expand(self, packed: Packed, following: list[Packed]) -> None:
        """Take every step out of a world; append the new worlds."""
        number = self._number[packed]
        self._first.append(len(self._targets))
        world = self.rules.unpack(packed)
        free = False
        for choice in self.rules.steps(world):
            free = free or not choice.costs
            reached = self._apply(number, world, choice)
            target = self._number.get(reached)
            if target is None:
                target = self._add(reached, number)
                following.append(reached)
            self._targets.append(target)
        phase = self.rules.cores.views[world.core].phase
        if phase in OVER:
            self._outcomes[phase.name] += 1
        elif not free:
            self._found(number, f"nothing can happen any more, and the job is {phase.name}")

    def _apply(self, number: int, world: World, choice: Choice) -> Packed:
        try:
            return self.rules.pack(self.rules.apply(world, choice))
        except ModelViolation as violation:
            self._found(number, str(violation), choice.label)

    def _add(self, packed: Packed, parent: int) -> int:
        number = len(self._number)
        self._number[packed] = number
        self._parent.append(parent)
        return number

    def _check_acyclic(self) -> None:
        """Take away, again and again, what nothing leads to. What is left lies on a cycle: a livelock."""
        count, first = len(self._number), self._first
        first.append(len(self._targets))
        incoming = array("I", bytes(4 * count))
        for target in self._targets:
            incoming[target] += 1
        loose, removed = [0], 0
        while loose:
            number = loose.pop()
            removed += 1
            for edge in range(first[number], first[number + 1]):
                target = self._targets[edge]
                incoming[target] -= 1
                if not incoming[target]:
                    loose.append(target)
        if removed < count:
            stuck = next(number for number in range(count) if incoming[number])
            self._found(stuck, f"the job can go round for ever: {count - removed} states lie on or behind a cycle")

    # ── the shortest trace ───────────────────────────────────────────────────────────────────────────────

    def _found(self, number: int, message: str, last: Label | None = None) -> NoReturn:
        way = [number]
        while way[-1]:
            way.append(self._parent[way[-1]])
        way.reverse()
        packed = list(self._number)
        labels = [self._label(packed[one], packed[two]) for one, two in pairwise(way)]
        if last is not None:
            labels.append(last)
        raise _Found(Violation(message, tuple(map(self.rules.describe, labels))))

    def _label(self, packed: Packed, reached: Packed) -> Label:
        world = self.rules.unpack(packed)
        return next(
            choice.label
            for choice in self.rules.steps(world)
            if self.rules.pack(self.rules.apply(world, choice)) == reached
        )


class _Found(Exception):
    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


def explore(scope: Scope, *, max_states: int = 0, progress: Progress | None = None) -> Result:
    """Search the whole scope, or up to ``max_states``."""
    return Explorer(scope, max_states=max_states, progress=progress).run()


@click.command(help=__doc__)
@click.option("--ranks", default=2, show_default=True, help="Workers that train.")
@click.option("--standby", default=1, show_default=True, help="Workers that wait.")
@click.option("--failures", default=1, show_default=True, help="Failures, anywhere, in a recovery too.")
@click.option("--steps", default=2, show_default=True, help="Training steps of the job.")
@click.option("--nodes", default=1, show_default=True, help="Nodes; with one, no node is lost.")
@click.option("--mesh", metavar="RxS", help="Replicas x shards, for example 2x2. Default: all ranks are replicas.")
@click.option("--checkpoint", is_flag=True, help="A persistent checkpoint of step 0 exists from the start.")
@click.option("--resume", is_flag=True, help="With --checkpoint: the job goes on from it.")
@click.option("--seal", is_flag=True, help="Each rank seals a memory checkpoint of every version.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in Kind]),
    help="A kind of failure to inject; give it again for more. Default: all.",
)
@click.option("--max-states", default=0, show_default=True, help="Stop after this many states; 0: never.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def main(
    ranks: int,
    standby: int,
    failures: int,
    steps: int,
    nodes: int,
    mesh: str | None,
    checkpoint: bool,
    resume: bool,
    seal: bool,
    kinds: tuple[str, ...],
    max_states: int,
    as_json: bool,
) -> None:
    try:
        scope = Scope(
            ranks,
            standby,
            failures,
            steps,
            nodes,
            Mesh.parse(mesh, ranks) if mesh else None,
            checkpoint,
            resume,
            seal,
            tuple(map(Kind, kinds)) or tuple(Kind),
        )
    except EverstepError as error:
        raise click.UsageError(str(error)) from None
    result = explore(scope, max_states=max_states, progress=_show if sys.stderr.isatty() else None)
    _print(result, as_json)
    sys.exit(1 if result.violation else 0)


def _show(depth: int, states: int, frontier: int) -> None:
    click.echo(f"\rdepth {depth}  states {states:,}  frontier {frontier:,}   ", err=True, nl=False)


def _print(result: Result, as_json: bool) -> None:
    found = result.violation
    if as_json:
        shown = {key: value for key, value in asdict(result).items() if key not in ("violation", "rows")}
        shown["violations"] = int(found is not None)
        if found:
            shown["message"], shown["trace"] = found.message, found.trace
        click.echo(json.dumps(shown))
        return
    click.echo(
        f"{result.states:,} states, {result.transitions:,} transitions, deepest path {result.depth}, "
        f"{result.core_states:,} states of the controller's machine, {result.seconds} s"
    )
    click.echo("outcomes: " + ", ".join(f"{name} {count:,}" for name, count in sorted(result.outcomes.items())))
    if not result.complete and not found:
        click.echo("stopped at the limit of states: not a proof")
    if found:
        click.echo(f"VIOLATION: {found.message}")
        for index, line in enumerate(found.trace, 1):
            click.echo(f"{index:4}  {line}")
    else:
        click.echo("no violation")


if __name__ == "__main__":
    main()
