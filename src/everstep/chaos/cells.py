"""The matrix of what can fail where, and trials that walk through it in an order that a seed gives.

A `Cell` is one thing that may happen; the report counts those that really did. Pure: it starts nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from typing import Generic, TypeVar

from everstep.chaos.exact.recipe import Recipe
from everstep.chaos.exact.variants import RECIPES, SINGLE, worlds
from everstep.chaos.trial import Trial

T = TypeVar("T")

PLACES = {
    "idle": "phase=idle",
    "forward": "phase=forward",
    "backward": "phase=backward",
    "barrier before": "phase=barrier when=before",
    "barrier mid": "phase=barrier when=mid",
    "barrier after": "phase=barrier when=after",
    "optimizer before": "phase=optimizer when=before",
    "optimizer mid": "phase=optimizer when=mid",
    "optimizer after": "phase=optimizer when=after",
}
"""Where a worker can be in a step."""

RECOVERY = {"stop": "so", "clean": "so", "script": "n", "reset": "nso", "restore": "nso", "resume": "nso"}
"""Where it can be in a recovery, and who: the newcomer, rank 0 among the survivors, or another of them."""

WHO = {"n": "newcomer", "s": "survivor rank 0", "o": "another survivor"}
STEPS = ("first", "middle", "last")
RANKS = ("rank 0", "another rank")
STANDBYS = (0, 1, 2)
RELATIONS = ("same row", "same column", "another row and column", "whole row")
"""Of two that die, on a mesh whose rows are replicas of each other."""

Cell = tuple[str, ...]
"""The first word is the part of the matrix."""


def parts(names: Sequence[str]) -> dict[str, list[Cell]]:
    """The whole matrix, of these variants."""
    spare = ("standby", "no standby")
    pairs = combinations_with_replacement(PLACES, 2)
    return {
        "one kill": [("one kill", *cell) for cell in product(PLACES, STEPS, RANKS, spare)],
        "two kills": [("two kills", *pair, ranks) for pair, ranks in product(pairs, ("one rank", "two ranks"))],
        "in a recovery": [
            ("in a recovery", phase, WHO[who], there)
            for phase in RECOVERY
            for who in RECOVERY[phase]
            for there in spare
        ],
        "stop": [("stop", *cell) for cell in product(PLACES, RANKS)],
        "hang": [("hang", *cell) for cell in product(PLACES, RANKS)],
        "some passed": [("some passed", *cell) for cell in product(STEPS, RANKS)],
        "any time": [("any time", rank) for rank in RANKS],
        "in a mesh": [("in a mesh", *cell) for cell in product(PLACES, RELATIONS) if any(map(_has_rows, names))],
        "no replica": [("no replica", *cell) for cell in product((n for n in names if n in SINGLE), PLACES)],
        "variant": [("variant", name, str(world)) for name in names for world in worlds(name)],
    }


def _has_rows(name: str) -> bool:
    return RECIPES[name].sharded and RECIPES[name].replicated


@dataclass(frozen=True, slots=True)
class Planned:
    """One trial, and which cells each of its faults stands for if it strikes."""

    number: int
    variant: str
    trial: Trial
    cells: tuple[tuple[Cell, frozenset[int]], ...]
    """A cell was walked through if all of these faults have struck."""

    @property
    def survives(self) -> bool:
        """A replica of each piece is left, whatever strikes."""
        return self.variant not in SINGLE

    def struck(self, faults: frozenset[int]) -> Iterator[Cell]:
        yield ("variant", self.variant, str(self.trial.ranks))
        for cell, needed in self.cells:
            if needed <= faults:
                yield cell


class _Deck(Generic[T]):
    """Deals every card before it deals one again."""

    def __init__(self, dice: random.Random, cards: Sequence[T]) -> None:
        self._dice, self._cards, self._left = dice, cards, list[T]()

    def deal(self) -> T:
        if not self._left:
            self._left = self._dice.sample(self._cards, len(self._cards))
        return self._left.pop()


class Plan:
    """The trials of a seed, without an end."""

    def __init__(self, seed: int, names: Sequence[str] = tuple(RECIPES), *, steps: int = Recipe().steps) -> None:
        self._dice = random.Random(seed)
        self._steps = {"first": 0, "middle": steps // 2, "last": steps - 1}
        matrix = parts(names)
        self._kinds = {rows: _Deck(self._dice, _kinds(rows)) for rows in (False, True)}
        self._decks = {kind: _Deck(self._dice, cells) for kind, cells in matrix.items()}
        self._spare = _Deck(self._dice, STANDBYS)

    def __iter__(self) -> Iterator[Planned]:
        number = 0
        while True:
            yield self._next(number)
            number += 1

    def _next(self, number: int) -> Planned:
        _, variant, world = self._decks["variant"].deal()
        ranks, recipe = int(world), RECIPES[variant]
        draft = _Draft(self._dice, recipe, ranks, self._spare.deal(), self._steps)
        if variant in SINGLE:
            _, _, place = self._decks["no replica"].deal()
            draft.lose(("no replica", variant, place))
        else:
            # Something in each part of the run: what follows meets what a recovery has left.
            for step in STEPS:
                kind = self._kinds[_has_rows(variant)].deal()
                draft.add(kind, self._decks[kind].deal(), step)
        trial = Trial(recipe, ranks, draft.standbys, tuple(draft.faults))
        return Planned(number, variant, trial, tuple(draft.cells))


_MIX = {"one kill": 10, "two kills": 6, "in a recovery": 6, "some passed": 2, "any time": 2, "stop": 1, "hang": 2}
"""How often each part is drawn: a stop or a hang takes seconds to be seen, and many a hang is not possible."""


def _kinds(rows: bool) -> list[str]:
    mix = {**_MIX, "in a mesh": 12} if rows else _MIX
    return [kind for kind, count in mix.items() for _ in range(count)]


class _Draft:
    """Faults of one run, as cells are added to it."""

    def __init__(self, dice: random.Random, recipe: Recipe, ranks: int, standbys: int, steps: dict[str, int]) -> None:
        self._dice, self._ranks, self._steps = dice, ranks, steps
        self._row, self._private = recipe.row(ranks), recipe.private
        self.standbys = standbys
        self.faults: list[str] = []
        self.cells: list[tuple[Cell, frozenset[int]]] = []

    def add(self, kind: str, cell: Cell, where: str) -> None:
        step = self._steps[where]
        if kind == "one kill":
            # The deck says the rank; step and standby are those of this run.
            rank = self._rank(cell[3])
            self._note(("one kill", cell[1], where, cell[3], self._spare), self._kill(rank, step, cell[1]))
            self._slow_somebody(rank, step)
        elif kind == "two kills":
            self._two(cell, step)
        elif kind == "in a mesh":
            self._in_mesh(cell[1], cell[2], where)
        elif kind == "in a recovery":
            self._in_recovery(cell, where)
        elif kind == "some passed":
            self._some_passed(cell[2], where, step)
        elif kind == "any time":
            rank = self._rank(cell[1])
            # The job trains for some tens of milliseconds, after a start that is not counted: a slow step holds it.
            self._fault(f"slow rank={self._other(rank)} step={step} for=0.3")
            self._note(
                cell, self._fault(f"kill rank={rank} phase=backward step={step} delay={self._dice.random():.3f}")
            )
        elif kind == "hang":
            self._hang(cell, where)
        else:
            self._note(cell, self._fault(f"stop rank={self._rank(cell[2])} step={step} {PLACES[cell[1]]}"))

    def _hang(self, cell: Cell, where: str) -> None:
        """The first steps of a process may take two minutes, so it must have done some, and not be a replacement."""
        rank = self._rank(cell[2])
        if where == "last" and not any(f" rank={rank} " in fault for fault in self.faults):
            self._note(cell, self._fault(f"hang rank={rank} step={self._steps[where]} {PLACES[cell[1]]}"))

    def _two(self, cell: Cell, step: int) -> None:
        _, one, two, ranks = cell
        first = self._dice.randrange(self._ranks)
        others = self._others(first)
        if ranks == "two ranks" and not others:  # somebody has to be left
            ranks = "one rank"
        second = first if ranks == "one rank" else self._dice.choice(others)
        # A second kill of one rank strikes its replacement, in the step done again or in the next one.
        later = step + (ranks == "one rank" and one.startswith("optimizer") and step < max(self._steps.values()))
        self._note(("two kills", one, two, ranks), self._kill(first, step, one), self._kill(second, later, two))

    def _in_mesh(self, place: str, relation: str, where: str) -> None:
        step, last = self._steps[where], max(self._steps.values())
        first = self._dice.randrange(self._ranks)
        if relation == "whole row":
            row = first - first % self._row
            kills = [self._kill(rank, step, place) for rank in range(row, row + self._row)]
            self._note(("in a mesh", place, relation), *kills)
            return
        later = step
        others = [rank for rank in range(self._ranks) if self._relation(first, rank) == relation]
        if not set(others) & set(self._others(first)):
            # The two hold the only copies: the second can die when the first was restored, two steps on to be sure.
            if where != "first":
                return
            later = min(step + 2, last)
        second = self._dice.choice(others)
        two = self._kill(second, later, self._dice.choice(list(PLACES)))
        self._note(("in a mesh", place, relation), self._kill(first, step, place), two)

    def _relation(self, one: int, other: int) -> str:
        if one == other:
            return "same"
        if one // self._row == other // self._row:
            return "same row"
        return "same column" if one % self._row == other % self._row else "another row and column"

    def lose(self, cell: Cell) -> None:
        """The one rank that has its piece."""
        self._note(cell, self._kill(self._dice.randrange(self._ranks), self._steps["middle"], cell[2]))

    def _in_recovery(self, cell: Cell, where: str) -> None:
        _, phase, who, _ = cell
        step, new = self._steps[where], who == WHO["n"]
        if new and phase == "reset" and where != "first":
            return  # survivors come there too, and a newcomer has no step to tell them apart: it has to be the first
        survivor = 0 if who == WHO["s"] else self._other(0)
        others = self._others(survivor)
        if not new and not others:
            return  # nobody would be left who holds the state
        victim = survivor if new else self._dice.choice(others)
        # Before the barrier, so that the step of the recovery is known. A newcomer has no step until it is filled.
        begin = self._kill(victim, step, self._dice.choice(("forward", "backward", "barrier before")))
        at = "" if new and phase in ("script", "reset") else f" step={step}"
        second = self._fault(f"kill rank={survivor} phase={phase}{at}")
        self._note(("in a recovery", phase, who, self._spare), begin, second)

    def _some_passed(self, who: str, where: str, step: int) -> None:
        """One has passed the barrier and dies; another one knows of the success and has not gone on."""
        rank = self._rank(who)
        slow = self._fault(f"slow rank={self._other(rank)} step={step} phase=barrier when=after for=0.3")
        self._note(("some passed", where, who), slow, self._kill(rank, step, "optimizer before"))

    def _slow_somebody(self, rank: int, step: int) -> None:
        """Now and then: survivors that are in other phases than usual when the Stop comes."""
        if self._dice.random() < 0.4:
            place = self._dice.choice(list(PLACES.values()))
            self._fault(f"slow rank={self._other(rank)} step={step} {place} for={self._dice.choice((0.05, 0.2))}")

    @property
    def _spare(self) -> str:
        return "standby" if self.standbys else "no standby"

    def _rank(self, who: str) -> int:
        return 0 if who == "rank 0" else self._dice.randrange(1, self._ranks)

    def _other(self, rank: int) -> int:
        return self._dice.choice([other for other in range(self._ranks) if other != rank])

    def _others(self, rank: int) -> list[int]:
        """Who may die at the same time: each piece of the state, and each copy of private state, stays alive."""
        rows, column = self._ranks // self._row, range(rank % self._row, self._ranks, self._row)
        copies = [1, rows - 1] if self._private else []
        return [
            other
            for other in range(self._ranks)
            if other != rank
            and (other not in column or (rows > 2 and (other - rank) // self._row % rows not in copies))
        ]

    def _kill(self, rank: int, step: int, place: str) -> int:
        return self._fault(f"kill rank={rank} step={step} {PLACES[place]}")

    def _fault(self, spec: str) -> int:
        self.faults.append(spec)
        return len(self.faults) - 1

    def _note(self, cell: Cell, *faults: int) -> None:
        self.cells.append((cell, frozenset(faults)))
