"""All that the script gave to protect(): read as one state, described as one layout, put back as one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import xxhash

from everstep.errors import ConfigError, StateError
from everstep.worker.state.parts import ModulePart, OptimizerPart, Part, part_of
from everstep.worker.state.sharded import Meshes, layout_of, local, pieces
from everstep.worker.state.tree import Flat, Found, decode, encode


class Protected:
    """The objects by name, in the order in which they were given."""

    def __init__(self, things: Mapping[str, Any]) -> None:
        self.parts: list[Part] = [part_of(name, thing) for name, thing in things.items()]
        self.modules = [part for part in self.parts if isinstance(part, ModulePart)]
        self.optimizers = [part for part in self.parts if isinstance(part, OptimizerPart)]
        self._find_strays()
        self.meshes = Meshes(self.parameters())

    def _find_strays(self) -> None:
        known = {id(tensor) for module in self.modules for tensor in module.places().values()}
        for part in self.optimizers:
            for number, parameter in enumerate(part.parameters()):
                if id(parameter) not in known:
                    part.strays[f"{part.name}.parameter[{number}]"] = parameter

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def read(self) -> tuple[bytes, Flat]:
        """The state now: its plain values, and its live tensors."""
        flat = Flat(self.meshes)
        return encode([part.pack(flat) for part in self.parts]), flat

    def parameters(self) -> list[torch.Tensor]:
        """Each once, in order."""
        return list(self.named_parameters().values())

    def named_parameters(self) -> dict[str, torch.Tensor]:
        owned: list[Mapping[str, torch.Tensor]] = [module.parameters() for module in self.modules]
        found = itertools.chain(*(some.items() for some in (*owned, *(part.strays for part in self.optimizers))))
        once = {id(parameter): (name, parameter) for name, parameter in found}
        return dict(once.values())

    def pieces(self) -> list[str]:
        """Which pieces of sharded tensors this rank has: equal on the ranks that are replicas of each other."""
        return list(pieces(item for part in self.parts for item in part.places().items()))

    def layout(self) -> list[str]:
        """One line for each tensor that has a place, and for each object: equal on all replicas of a shard."""
        lines = [f"{part.name} is a {_kind(part)}" for part in self.parts]
        names: dict[int, str] = {}
        for part in self.parts:
            for name, tensor in part.places().items():
                names[id(tensor)] = name
                grad = ", requires grad" if tensor.requires_grad else ""
                lines.append(f"{name} is {layout_of(tensor)}{grad}")
        for optimizer in self.optimizers:
            for number, group in enumerate(optimizer.optimizer.param_groups):
                members = ", ".join(names[id(parameter)] for parameter in group["params"])
                lines.append(f"{optimizer.name} group {number} has {members}")
        return lines

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────

    def places(self) -> dict[str, torch.Tensor]:
        """Tensors that a state is received into."""
        return {name: local(tensor).detach() for part in self.parts for name, tensor in part.places().items()}

    def put(self, values: bytes, tensors: Sequence[torch.Tensor]) -> None:
        """Be in this state; what has a place in `places` has been written there."""
        with torch.no_grad():
            for part, plain in zip(self.parts, decode(values), strict=True):
                part.put(plain, Found(tensors, self.meshes))


def _kind(part: Part) -> str:
    thing = next(value for name, value in vars(part).items() if name in ("module", "optimizer", "thing", "value"))
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def digest(lines: Iterable[str]) -> str:
    """Of a layout."""
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())


def tensor_digest(tensor: torch.Tensor) -> bytes:
    """Of the bytes of a tensor."""
    return xxhash.xxh3_128_digest(as_bytes(tensor).numpy().data)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes where it is one piece in the memory of the processor, else a copy."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    return flat.view(torch.uint8)


def difference(here: Sequence[str], there: Sequence[str]) -> str:
    """The first line in which two layouts differ, for people."""
    for mine, other in itertools.zip_longest(here, there):
        if mine != other:
            if mine is None:
                return f"this device lacks: {other}"
            if other is None:
                return f"only this device has: {mine}"
            return f"here {mine}; in the job {other}"
    return ""


def check_equal(expected: tuple[bytes, Sequence[bytes]], protected: Protected, known: Mapping[int, bytes]) -> Flat:
    """The live objects, which are in the state that was sent. ``known``: digests by the address of what just came.

    `load_state_dict` may cast, or keep something back: then this replica would go its own way without any error.
    """
    values, digests = expected
    mine, flat = protected.read()
    if len(flat.tensors) != len(digests):
        raise StateError(f"after loading there are {len(flat.tensors)} tensors, the donor has {len(digests)}")
    for name, tensor, wanted in zip(flat.names, flat.tensors, digests, strict=True):
        if (known.get(tensor.data_ptr()) if tensor.numel() else wanted) == wanted:
            continue
        if tensor_digest(tensor) != wanted:
            raise StateError(f"{name} ({tensor.dtype}) differs from what the donor sent after it was loaded")
    if mine != values:
        part = next(
            part.name
            for part, got, want in zip(protected.parts, decode(mine), decode(values), strict=True)
            if got != want
        )
        raise StateError(
            f"{part} differs from what the donor sent after it was loaded: its load_state_dict() casts or drops"
        )
    return flat


def named(model: object, optimizer: object, others: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of protect() as one list: several models or optimizers have a number in their names."""
    things: dict[str, Any] = {}
    for name, given in (("model", model), ("optimizer", optimizer), *others.items()):
        if given is None:
            continue
        if isinstance(given, Mapping) and name != "extra":
            things.update({f"{name}.{key}": thing for key, thing in given.items()})
        elif isinstance(given, list | tuple):
            things.update({f"{name}.{index}": thing for index, thing in enumerate(given)})
        elif name == "extra":
            if not isinstance(given, Mapping):
                raise ConfigError(f"protect(extra={type(given).__qualname__}): give a dict of name → object")
            things.update({f"extra.{key}": thing for key, thing in given.items()})
        else:
            things[name] = given
    return things
