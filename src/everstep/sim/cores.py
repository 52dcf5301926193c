"""The real `Machine` and `WorkerMachine` as tables that fill themselves: (state number, input) → (state, output).

Many worlds share one state of a core. Each pair of state and input runs the real code once; nothing else is known
about either here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from everstep.core.config import JobConfig
from everstep.core.effects import Effect
from everstep.core.events import Event, JobPhase
from everstep.core.machine import Machine
from everstep.core.worker import Out, WorkerMachine
from everstep.types import Coordinate, Generation, Rank, Step, WorkerId, WorkerPhase


class CoreView(NamedTuple):
    """What the checks look at in a state of the controller's machine."""

    phase: JobPhase
    generation: Generation
    target: Step
    rollback: bool
    awaiting: frozenset[WorkerId]
    fencing: frozenset[WorkerId]
    seats: frozenset[tuple[Rank, WorkerId]]
    workers: frozenset[WorkerId]
    shards: tuple[tuple[Rank, Coordinate], ...]
    vacant: bool
    """A rank has nobody, and no device comes free by itself."""


class Cores:
    """All states of the controller's machine that were reached."""

    def __init__(self, config: JobConfig, machine: type[Machine]) -> None:
        self._config = config
        self._machine = machine
        self._number: dict[Hashable, int] = {}
        self._frozen: list[Hashable] = []
        self.views: list[CoreView] = []
        self._steps: dict[tuple[int, Event], tuple[int, tuple[Effect, ...], Exception | None]] = {}
        self.rows: set[tuple[type[Event], JobPhase, JobPhase]] = set()

    def start(self) -> tuple[int, tuple[Effect, ...]]:
        machine = self._machine(self._config)
        effects = machine.start()
        return self._intern(machine), tuple(effects)

    def step(self, state: int, event: Event) -> tuple[int, tuple[Effect, ...], Exception | None]:
        key = (state, event)
        known = self._steps.get(key)
        if known is None:
            machine = self._machine.thaw(self._config, self._frozen[state])
            before = machine.phase
            try:
                effects = tuple(machine.handle(event))
            except Exception as error:  # noqa: BLE001  whatever the core raises is a finding with a trace
                known = (state, (), error)
            else:
                known = (self._intern(machine), effects, None)
                self.rows.add((type(event), before, machine.phase))
            self._steps[key] = known
        return known

    def _intern(self, machine: Machine) -> int:
        frozen = machine.freeze()
        number = self._number.setdefault(frozen, len(self._frozen))
        if number == len(self._frozen):
            self._frozen.append(frozen)
            self.views.append(_view(machine))
        return number

    def __len__(self) -> int:
        return len(self._frozen)


def _view(machine: Machine) -> CoreView:
    members = machine.members
    return CoreView(
        machine.phase,
        machine.generation,
        machine.target,
        machine.source is not None,
        frozenset(machine.awaiting),
        frozenset(machine.fencing),
        frozenset(members.seats.items()),
        frozenset(members.workers),
        tuple(members.coordinates.items()),
        len(members.seats) < machine.config.ranks and not members.leaving,
    )


class WorkerCores:
    """All states of a worker's machine that were reached. The states themselves are kept; nobody changes them."""

    def __init__(self, machine: type[WorkerMachine]) -> None:
        self._machine = machine
        self._number: dict[Hashable, int] = {}
        self.states: list[WorkerMachine] = []
        self._steps: dict[tuple[int, Hashable], tuple[int, tuple[Out, ...], Exception | None]] = {}
        self._remains: dict[int, int] = {}

    def new(self, worker: WorkerId) -> int:
        return self._intern(self._machine(worker))

    def remains(self, state: int) -> int:
        """What the checks ask of a dead worker: its rank, and the version that it had reached or committed to reach."""
        known = self._remains.get(state)
        if known is not None:
            return known
        dead = self.states[state]
        version = Step(dead.version + (dead.phase is WorkerPhase.COMMITTED))
        phase = WorkerPhase.IDLE if dead.phase >= WorkerPhase.IDLE else WorkerPhase.HOLLOW
        known = self._remains[state] = self._intern(self._machine(dead.worker, phase, version, rank=dead.rank))
        return known

    def step(
        self, state: int, key: Hashable, call: Callable[[WorkerMachine], list[Out]]
    ) -> tuple[int, tuple[Out, ...], Exception | None]:
        """Call the machine; ``key`` names the call."""
        known = self._steps.get((state, key))
        if known is None:
            machine = self._machine.thaw(self.states[state].freeze())
            try:
                out = tuple(call(machine))
            except Exception as error:  # noqa: BLE001  whatever the core raises is a finding with a trace
                known = (state, (), error)
            else:
                known = (self._intern(machine), out, None)
            self._steps[state, key] = known
        return known

    def _intern(self, machine: WorkerMachine) -> int:
        frozen = machine.freeze()
        number = self._number.setdefault(frozen, len(self.states))
        if number == len(self.states):
            self.states.append(machine)
        return number


class Names:
    """Parts of worlds as small numbers, so that worlds are cheap to hash and to keep."""

    def __init__(self) -> None:
        self._number: dict[Any, int] = {}
        self._by_id: dict[int, int] = {}
        self.messages: list[Any] = []

    def number(self, message: Any) -> int:
        number = self._by_id.get(id(message))
        if number is not None:
            return number
        number = self._number.setdefault(message, len(self.messages))
        if number == len(self.messages):
            self.messages.append(message)
            self._by_id[id(message)] = number  # `messages` keeps it alive, so its id stays its own
        return number
