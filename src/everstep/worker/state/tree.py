"""A state as plain values, with its tensors beside it: what `state_dict` gives, without pickle.

Equal states give equal bytes, so they can be compared by a digest. Every value that is not plain is a list that
begins with a tag; the table of tags is at the end.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.distributed.tensor import DTensor

from everstep.errors import ConfigError
from everstep.worker.state.sharded import Meshes, local

Plain = Any
"""None, bool, int, float, str, bytes, or a list of such."""

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


class Flat:
    """What a state consists of: take it apart with `pack`, once for each object; then use `data` and `tensors`."""

    def __init__(self, meshes: Meshes) -> None:
        self._meshes = meshes
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self._places: dict[int, int] = {}
        self.originals: list[torch.Tensor] = []
        """The tensors themselves, or their local parts."""
        self.wholes: list[torch.Tensor] = []
        """The tensors as they were given. They are kept, so that no other one gets the id of one that is gone."""

    def pack(self, value: Any, name: str) -> Plain:
        """``name`` says where it stands, for people."""
        kind = type(value)
        if value is None or kind in (bool, float, str, bytes):
            return value
        if kind is int:
            return value if _LEAST <= value <= _MOST else ["i", str(value)]
        if isinstance(value, DTensor):
            return ["D", self.add(value, name), self._meshes.describe(value, name)]
        if isinstance(value, torch.Tensor):
            return ["T", self.add(value, name)]
        if kind in _SEQUENCES:
            return [_SEQUENCES[kind], [self.pack(item, f"{name}[{index}]") for index, item in enumerate(value)]]
        if kind in _MAPPINGS:
            return [_MAPPINGS[kind], self._pairs(value, name)]
        return self._pack_other(value, name)

    def _pairs(self, mapping: Any, name: str) -> list[Plain]:
        return [
            [self.pack(key, f"{name}: key {key!r}"), self.pack(item, f"{name}[{key!r}]")]
            for key, item in mapping.items()
        ]

    def _pack_other(self, value: Any, name: str) -> Plain:
        if isinstance(value, enum.Enum):
            return ["E", self.pack(value.value, name)]
        if isinstance(value, set | frozenset):
            return ["s", isinstance(value, frozenset), [self.pack(item, name) for item in sorted(value, key=repr)]]
        if isinstance(value, torch.dtype | torch.device):
            return ["y" if isinstance(value, torch.dtype) else "v", str(value)]
        if isinstance(value, complex):
            return ["x", value.real, value.imag]
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            return ["n", value.dtype.str, list(value.shape), value.tobytes(), not hasattr(value, "__len__")]
        raise ConfigError(
            f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which everstep cannot send to a "
            "replacement: leave it out of state_dict(), or give it as numbers, text, lists, dicts and tensors"
        )

    def add(self, tensor: torch.Tensor, name: str) -> int:
        """Its number. A tensor that comes twice is kept once; of a sharded one the local part."""
        place = self._places.get(id(tensor))
        if place is None:
            if tensor.layout is not torch.strided:
                raise ConfigError(f"{name} is a tensor of layout {tensor.layout}: only dense tensors can be protected")
            place = self._places[id(tensor)] = len(self.tensors)
            self.wholes.append(tensor)
            self.originals.append(local(tensor))
            self.tensors.append(local(tensor).detach())
            self.names.append(name)
        return place


@dataclass(frozen=True, slots=True)
class Found:
    """Tensors that belong into a state, and the meshes that sharded ones are on."""

    tensors: Sequence[torch.Tensor]
    meshes: Meshes

    def unpack(self, plain: Plain) -> Any:
        """The value again, with these tensors in it."""
        if not isinstance(plain, list):
            return plain
        tag, *rest = plain
        if tag == "D":
            return self.meshes.make(rest[1], self.tensors[rest[0]])
        return _TAGS[tag](rest, self.unpack, self.tensors)


def encode(plain: Plain) -> bytes:
    return msgspec.msgpack.encode(plain)


def decode(data: bytes) -> Plain:
    return msgspec.msgpack.decode(data)


_SEQUENCES: dict[type, str] = {list: "l", tuple: "t", torch.Size: "z", deque: "q"}
_MAPPINGS: dict[type, str] = {dict: "d", OrderedDict: "o", Counter: "c", defaultdict: "d"}

_Inner = Callable[[Plain], Any]


def _numpy(rest: list[Plain], _: _Inner, __: Sequence[torch.Tensor]) -> Any:
    import numpy

    dtype, shape, data, scalar = rest
    array = numpy.frombuffer(data, dtype=numpy.dtype(dtype)).reshape(shape).copy()
    return array[()] if scalar else array


def _dict_of(kind: Callable[[Iterable[Any]], Any]) -> Callable[[list[Plain], _Inner, Sequence[torch.Tensor]], Any]:
    return lambda rest, inner, _: kind((inner(key), inner(item)) for key, item in rest[0])


def _list_of(kind: Callable[[Iterable[Any]], Any]) -> Callable[[list[Plain], _Inner, Sequence[torch.Tensor]], Any]:
    return lambda rest, inner, _: kind(inner(item) for item in rest[0])


_TAGS: dict[str, Callable[[list[Plain], _Inner, Sequence[torch.Tensor]], Any]] = {
    "T": lambda rest, _, tensors: tensors[rest[0]],
    "l": _list_of(list),
    "t": _list_of(tuple),
    "z": _list_of(torch.Size),
    "q": _list_of(deque),
    "d": _dict_of(dict),
    "o": _dict_of(OrderedDict),
    "c": _dict_of(lambda pairs: Counter(dict(pairs))),
    "s": lambda rest, inner, _: (frozenset if rest[0] else set)(inner(item) for item in rest[1]),
    "i": lambda rest, _, __: int(rest[0]),
    "x": lambda rest, _, __: complex(*rest),
    "y": lambda rest, _, __: getattr(torch, rest[0].removeprefix("torch.")),
    "v": lambda rest, _, __: torch.device(rest[0]),
    "E": lambda rest, inner, _: inner(rest[0]),
    "n": _numpy,
}
