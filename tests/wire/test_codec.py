from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.effects import Action, Effect, Kill, Restore, Send, Settle, Stop
from everstep.core.events import Checkpoint, Event, Position, Stopped
from everstep.errors import WireError
from everstep.types import Coordinate, Generation, NodeId, Step, WorkerId, WorkerPhase
from everstep.wire.codec import Codec


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Paint:
    node: NodeId
    colour: Colour
    where: tuple[Coordinate, ...] | None = ()
    note: str | None = None

    def __post_init__(self) -> None:
        if not self.node:
            raise ValueError("a node has a name")


class Erase(msgspec.Struct, frozen=True):
    count: int


@dataclass(frozen=True, slots=True)
class Twice:
    first: Paint | Erase | None
    second: Paint | Stop


Any = Paint | Erase | Twice
CODEC: Codec[Any] = Codec(Any)
EVENTS: Codec[Event] = Codec(Event)
EFFECTS: Codec[Effect] = Codec(Effect)


def envelope(tag: object, fields: object) -> bytes:
    return msgspec.msgpack.encode([tag, fields])


paints = st.builds(
    Paint,
    node=st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])),
    colour=st.just(Colour.RED),
    where=st.lists(st.builds(Coordinate, st.integers(0, 9), st.integers(0, 9))).map(tuple),
    note=st.none() | st.just("n"),
)


@given(paints | st.builds(Erase, st.integers(-(2**63), 2**63 - 1)))
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message


def test_what_the_core_says_travels_without_a_second_definition() -> None:
    event = Stopped(WorkerId(3), Generation(2), Position(WorkerPhase.READY, Step(7)))
    assert EVENTS.decode(EVENTS.encode(event)) == event
    effect = Kill(NodeId("a"), WorkerId(3))
    assert EFFECTS.decode(EFFECTS.encode(effect)) == effect


@pytest.mark.parametrize(
    "command",
    [
        Settle(Generation(1), Step(3), Action.FINISH),
        Restore(Generation(1), Step(3), None, Checkpoint(Step(1), Generation(0))),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_message_may_carry_another_one_of_several(command: Settle | Restore) -> None:
    effect = Send((WorkerId(1), WorkerId(2)), command)
    assert EFFECTS.decode(EFFECTS.encode(effect)) == effect


def test_carried_messages_may_be_absent() -> None:
    message = Twice(None, Stop(Generation(1)))
    assert CODEC.decode(CODEC.encode(message)) == message


PAINT: dict[str, object] = {"node": "a", "colour": "red", "where": [], "note": None}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xc1", "malformed message"),
        (b"\x92", "malformed message"),
        (b"\x92\xa1\xff\x80", "malformed message"),
        (envelope("Paint", PAINT) + b"\x00", "malformed message"),
        (b"\x92\xa5Paint\xdd\xff\xff\xff\xff", "malformed message"),
        (b"\x91" * 1_000_000, "malformed message"),
        (b"\x92\xa5Paint" + b"\x91" * 1_000_000, "malformed message"),
        (envelope(1, {}), "malformed message"),
        (envelope("Burn", {}), "unknown message 'Burn'"),
        (envelope("B" * 100_000, {}), "unknown message 'B{40}'$"),
        (envelope("Erase", {}), "bad Erase: Object missing required field `count`"),
        (envelope("Erase", {"count": "1"}), "bad Erase: Expected `int`, got `str`"),
        (envelope("Erase", {"count": True}), "bad Erase: Expected `int`, got `bool`"),
        (envelope("Paint", PAINT | {"colour": "blue"}), "bad Paint: Invalid enum value"),
        (envelope("Paint", PAINT | {"where": [[1, 2]]}), "bad Paint: Expected `object`, got `array`"),
        (envelope("Paint", PAINT | {"node": ""}), "bad Paint: a node has a name"),
        (envelope("Twice", {"first": None}), "bad Twice: Object missing required field"),
        (envelope("Twice", {"first": ["Stop", {}], "second": 1}), "unknown message 'Stop'"),
    ],
)
def test_a_message_that_is_not_right_is_refused_with_the_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        CODEC.decode(payload)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: envelope("Paint", PAINT)[:-9] + tail))
def test_no_bytes_raise_anything_but_a_wire_error(payload: bytes) -> None:
    try:
        message = CODEC.decode(payload)
    except WireError:
        return
    assert isinstance(message, get_args(Any))


def test_only_members_of_the_union_are_sent() -> None:
    with pytest.raises(TypeError, match="Stop is not one of Paint, Erase, Twice"):
        CODEC.encode(Stop(Generation(1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("message", [Paint(NodeId("\udc80"), Colour.RED), Erase(2**64)])
def test_what_msgpack_cannot_say_is_told_to_the_sender(message: Any) -> None:
    with pytest.raises(WireError, match="cannot be encoded"):
        CODEC.encode(message)


def test_two_messages_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Erase:
        count: int

    with pytest.raises(TypeError, match="two messages have the name Erase"):
        Codec(Any | Erase)


def test_a_type_that_cannot_be_checked_is_refused_at_the_start() -> None:
    @dataclass(frozen=True)
    class Odd:
        choice: tuple[Paint | Twice, ...]

    with pytest.raises(TypeError, match="dataclass"):
        Codec(Odd)
