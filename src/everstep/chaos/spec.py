"""One failure to inject, as a person writes it: ``kill rank=2 step=7 phase=optimizer when=mid``.

Where a step or a phase is given, the worker strikes itself exactly there; else it happens ``delay`` seconds after the
job, or the order, has reached the process.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from everstep.errors import ConfigError
from everstep.types import NodeId, Rank, Step
from everstep.worker.phases import PHASES, Phase


class Action(enum.Enum):
    KILL = "kill"
    STOP = "stop"  # SIGSTOP
    SEGV = "segv"
    EXIT = "exit"
    RAISE = "raise"
    HANG = "hang"  # the main thread only
    GIL = "gil"  # a hang that holds the GIL, so that no thread of Python runs
    SLOW = "slow"
    AGENT_KILL = "agent-kill"
    CONTROLLER_KILL = "controller-kill"
    PARTITION = "partition"  # the agent's connection to the controller is cut


class When(enum.Enum):
    """Around the stamp on the board."""

    BEFORE = "before"  # the board still shows the phase before
    MID = "mid"
    AFTER = "after"  # the work of the phase is done, the next is not stamped yet


_WHERE = ("rank", "node", "step", "phase", "when", "times", "delay")
_KEYS_OF = {
    Action.HANG: (*_WHERE, "for"),
    Action.GIL: (*_WHERE, "for"),
    Action.SLOW: (*_WHERE, "for"),
    Action.AGENT_KILL: ("rank", "node", "times", "delay"),
    Action.CONTROLLER_KILL: ("times", "delay"),
    Action.PARTITION: ("rank", "node", "times", "delay", "for"),
}
"""Which keys an action takes; those that are not named take all of where."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Its `str` is what `parse` reads."""

    action: Action
    rank: Rank | None = None
    node: NodeId | None = None
    step: Step | None = None
    phase: Phase | None = None
    """None with a step: the first phase of that step."""
    when: When | None = None
    times: int = 1
    """How often in the whole job, whatever the processes that it strikes."""
    delay_s: float = 0.0
    for_s: float | None = None
    """How long it lasts; None: as long as the action has it by itself."""

    def __post_init__(self) -> None:
        for name, key in _KEYS.items():
            value = getattr(self, key.field)
            if value is None or value == _DEFAULTS[key.field]:
                continue
            allowed = _KEYS_OF.get(self.action, _WHERE)
            if name not in allowed:
                raise ConfigError(f"chaos: {self.action.value} takes no {name}; its keys are {', '.join(allowed)}")
            key.check(name, value)
        if self.when is not None and not self.exact:
            raise ConfigError(f"chaos: when={self.when.value} needs step= or phase=: it says where around a phase")

    @property
    def exact(self) -> bool:
        """It strikes at a place in the script, not at a time."""
        return self.step is not None or self.phase is not None

    @property
    def in_worker(self) -> bool:
        """The worker does it to itself; the rest is done by the agent or the controller."""
        return self.action not in (Action.AGENT_KILL, Action.CONTROLLER_KILL, Action.PARTITION)

    def concerns(self, rank: Rank | None, node: NodeId) -> bool:
        """Whether it may strike this worker."""
        return self.rank in (None, rank) and self.node in (None, node)

    def __str__(self) -> str:
        words = [self.action.value]
        for name, key in _KEYS.items():
            value = getattr(self, key.field)
            if value != _DEFAULTS[key.field]:
                words.append(f"{name}={key.write(value)}")
        return " ".join(words)


def parse(text: str) -> Fault:
    """One fault, or a ConfigError with what is wrong and what can be written instead."""
    words = text.split()
    if not words:
        raise ConfigError(f"chaos {text!r}: it begins with an action: {_choices(Action)}")
    action = _member(Action, "action", words[0])
    values: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        key = _KEYS.get(name)
        if not equals or key is None:
            raise ConfigError(f"chaos {text!r}: {word!r} is not KEY=VALUE with a key of {', '.join(_KEYS)}")
        if key.field in values:
            raise ConfigError(f"chaos {text!r}: {name} is given twice")
        values[key.field] = key.read(name, value)
    return Fault(action, **values)


def parse_lines(text: str) -> tuple[Fault, ...]:
    """One fault on each line."""
    return tuple(parse(line) for line in text.splitlines())


# ── the values ───────────────────────────────────────────────────────────────────────────────────────────


def _refuse(name: str, value: object, rule: str) -> ConfigError:
    return ConfigError(f"chaos: {name}={value} cannot be: {rule}")


def _choices(kind: type[enum.Enum]) -> str:
    return ", ".join(str(member.value) for member in kind)


def _member(kind: type[Any], name: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise _refuse(name, repr(text), f"it is one of {_choices(kind)}") from None


def _whole(name: str, text: str) -> int:
    # isdecimal alone lets other scripts' digits through, which `int` reads but nobody means.
    if not (text.isascii() and text.isdecimal()):
        raise _refuse(name, repr(text), "it is a whole number, 0 or more")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _refuse(name, repr(text), "it is a number of seconds, for example 0.5") from None


def _phase(name: str, text: str) -> Phase:
    if text not in PHASES:
        raise _refuse(name, repr(text), f"it is one of {', '.join(PHASES)}")
    return PHASES[text]


def _at_least(least: int) -> Callable[[str, Any], None]:
    def check(name: str, value: int) -> None:
        if value < least:
            raise _refuse(name, value, f"it is at least {least}")

    return check


def _positive(name: str, value: float) -> None:
    if not (0 < value < math.inf):
        raise _refuse(name, value, "it is a number of seconds, more than 0")


def _one_word(name: str, value: str) -> None:
    if not value or value.split() != [value]:
        raise _refuse(name, repr(value), "it is the name of a node, without spaces")


def _known_phase(name: str, value: Phase) -> None:
    if value not in PHASES.values():
        raise _refuse(name, value.name, f"it is one of {', '.join(PHASES)}")


def _anything(name: str, value: object) -> None:
    pass


class _Key(NamedTuple):
    field: str
    read: Callable[[str, str], Any]
    check: Callable[[str, Any], None]
    write: Callable[[Any], str] = str


_PHASE_NAMES = {phase: name for name, phase in PHASES.items()}
_KEYS = {
    "rank": _Key("rank", _whole, _at_least(0)),
    "node": _Key("node", lambda name, text: text, _one_word),
    "step": _Key("step", _whole, _at_least(0)),
    "phase": _Key("phase", _phase, _known_phase, _PHASE_NAMES.__getitem__),
    "when": _Key("when", lambda name, text: _member(When, name, text), _anything, lambda when: str(when.value)),
    "times": _Key("times", _whole, _at_least(1)),
    "delay": _Key("delay_s", _seconds, _positive, repr),
    "for": _Key("for_s", _seconds, _positive, repr),
}
_DEFAULTS = {field.name: field.default for field in fields(Fault)}
