"""Messages to bytes and back: which types may travel, and what each must look like. Knows no socket.

A message is ``[tag, fields]`` in msgpack, where the tag is the name of its type. The types are plain frozen
dataclasses (or msgspec structs), so what the pure core speaks travels as it is, without a second definition.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import msgspec

from everstep.errors import WireError

M = TypeVar("M")

# Skipping over the raw fields walks through all of them, so a list that announces more than it holds is
# refused here, before a decoder of a type makes room for it.
_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_ENCODER = msgspec.msgpack.Encoder()


class Codec(Generic[M]):
    """Encodes and decodes the members of one union, and nothing else.

    ``Codec(Joined | Left)``; a union may contain unions. A type that msgspec cannot check is refused here,
    not when the first message arrives.
    """

    def __init__(self, union: object) -> None:
        self._forms: dict[type, _Form] = {}
        self._by_tag: dict[str, _Form] = {}
        for member in _members(union):
            form = _Form(member)
            if form.tag in self._by_tag:
                raise TypeError(f"two messages have the name {form.tag}")
            self._forms[member] = self._by_tag[form.tag] = form

    def encode(self, message: M) -> bytes:
        form = self._forms.get(type(message))
        if form is None:
            raise TypeError(f"{type(message).__name__} is not one of {', '.join(self._by_tag)}")
        try:
            return _ENCODER.encode((form.tag, form.pack(message)))
        except (TypeError, ValueError, OverflowError) as error:  # a lone surrogate, an integer over 64 bits
            raise WireError(f"{form.tag} cannot be encoded: {error}") from error

    def decode(self, payload: bytes | msgspec.Raw) -> M:
        try:
            tag, raw = _ENVELOPE.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise WireError(f"malformed message: {error}") from error
        form = self._by_tag.get(tag)
        if form is None:
            raise WireError(f"unknown message {tag[:40]!r}")
        try:
            return typing.cast(M, form.unpack(raw))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise WireError(f"bad {tag}: {error}") from error


class _Form:
    """How one type travels: as msgspec writes it, unless a field is itself a union of messages."""

    def __init__(self, cls: type) -> None:
        self.tag = cls.__name__
        self.pack: Callable[[Any], object] = _as_it_is
        self.unpack: Callable[[msgspec.Raw], object]
        hints = _field_types(cls)
        inner = {name: Codec[Any](hint) for name, hint in hints.items() if _is_choice(hint)}
        if inner:
            self._nest(cls, hints, inner)
        else:
            self.unpack = msgspec.msgpack.Decoder(cls).decode

    def _nest(self, cls: type, hints: dict[str, object], inner: dict[str, Codec[Any]]) -> None:
        """msgspec cannot tell dataclasses in a union apart, so such a field is an envelope of its own."""
        outline = msgspec.defstruct(self.tag, [(n, msgspec.Raw if n in inner else hints[n]) for n in hints])
        decode = msgspec.msgpack.Decoder(outline).decode

        def pack(message: Any) -> dict[str, object]:
            values = {name: getattr(message, name) for name in hints}
            return values | {name: msgspec.Raw(codec.encode(values[name])) for name, codec in inner.items()}

        def unpack(raw: msgspec.Raw) -> object:
            values = msgspec.structs.asdict(decode(raw))
            return cls(**(values | {name: codec.decode(values[name]) for name, codec in inner.items()}))

        self.pack, self.unpack = pack, unpack


def _as_it_is(message: Any) -> object:
    return message


def _members(union: object) -> tuple[Any, ...]:
    if isinstance(union, types.UnionType) or typing.get_origin(union) is typing.Union:
        return typing.get_args(union)
    return (union,)


def _field_types(cls: type) -> dict[str, object]:
    if not is_dataclass(cls):
        return {}
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _is_choice(hint: object) -> bool:
    return sum(is_dataclass(member) or hasattr(member, "__struct_fields__") for member in _members(hint)) > 1
