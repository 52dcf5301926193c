"""One class for each kind of object that can be protected: how its state is read, received and put in place.

A part reads live tensors and never copies them. What it receives goes straight into the object where that has a place
for it (parameters, buffers), else into new tensors that the object is then given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from everstep.errors import ConfigError
from everstep.worker.state.tree import Flat, Found, Plain


class Part(Protocol):
    """An object of the script."""

    name: str

    def pack(self, flat: Flat) -> Plain:
        """Its state now."""
        ...

    def places(self) -> Mapping[str, torch.Tensor]:
        """Tensors that exist before the state comes, by the names that `pack` gives them."""
        ...

    def put(self, plain: Plain, found: Found) -> None:
        """Be in this state. Tensors of `places` have been written already."""
        ...


class ModulePart:
    """Parameters, buffers (also those that are not persistent), extra state."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name = name
        self.module = module
        owners = dict(module.named_modules())
        self._buffers = [
            (f"{name}.{place}", owners[place.rpartition(".")[0]]._buffers, place.rpartition(".")[2])
            for place, _ in module.named_buffers()
        ]
        """Where each is kept: another tensor may take its place, and to look for all in every step takes long."""

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {f"{self.name}.{name}": parameter for name, parameter in self.module.named_parameters()}

    def buffers(self) -> dict[str, torch.Tensor]:
        found = ((name, owner.get(key)) for name, owner, key in self._buffers)
        return {name: buffer for name, buffer in found if buffer is not None}

    def put_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """These themselves, which `buffers` has given before."""
        for name, owner, key in self._buffers:
            owner[key] = buffers.get(name)

    def places(self) -> dict[str, torch.Tensor]:
        return {**self.parameters(), **self.buffers()}

    def pack(self, flat: Flat) -> Plain:
        tensors = [flat.add(tensor, name) for name, tensor in self.places().items()]
        extra = {
            name: module.get_extra_state()
            for name, module in self.module.named_modules()
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state
        }
        return [tensors, flat.pack(extra, f"{self.name}._extra_state")]

    def put(self, plain: Plain, found: Found) -> None:
        for name, extra in found.unpack(plain[1]).items():
            self.module.get_submodule(name).set_extra_state(extra)


class OptimizerPart:
    """State and hyper-parameters as they are: `load_state_dict` would cast them to the types of the parameters."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        self.name = name
        self.optimizer = optimizer
        self.strays: dict[str, torch.Tensor] = {}
        """Parameters that no protected module has."""

    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def places(self) -> dict[str, torch.Tensor]:
        return self.strays

    def pack(self, flat: Flat) -> Plain:
        for name, parameter in self.strays.items():
            flat.add(parameter, name)
        numbers: dict[Any, int] = {parameter: number for number, parameter in enumerate(self.parameters())}
        state = {numbers.get(key, key): value for key, value in self.optimizer.state.items()}
        ordered = {key: state[key] for key in sorted(state, key=lambda key: (isinstance(key, str), key))}
        return [flat.pack(ordered, f"{self.name}.state"), self.pack_settings(flat)]

    def pack_settings(self, flat: Flat) -> Plain:
        """What a scheduler changes: small, and without the moments."""
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        return flat.pack(groups, f"{self.name}.param_groups")

    def put(self, plain: Plain, found: Found) -> None:
        parameters = self.parameters()
        self.optimizer.state.clear()
        for key, value in found.unpack(plain[0]).items():
            self.optimizer.state[parameters[key] if isinstance(key, int) else key] = value
        self.put_settings(plain[1], found)

    def put_settings(self, plain: Plain, found: Found) -> None:
        for group, settings in zip(self.optimizer.param_groups, found.unpack(plain), strict=True):
            for gone in set(group) - set(settings) - {"params"}:
                del group[gone]
            group.update(settings)


class ObjectPart:
    """Anything with `state_dict` and `load_state_dict`: schedulers, scalers, the script's own."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing

    def places(self) -> dict[str, torch.Tensor]:
        return {}

    def pack(self, flat: Flat) -> Plain:
        return flat.pack(self.thing.state_dict(), self.name)

    def put(self, plain: Plain, found: Found) -> None:
        self.thing.load_state_dict(found.unpack(plain))


class ScalerPart(ObjectPart):
    """A GradScaler, read without waiting for its device: `state_dict` would."""

    def pack(self, flat: Flat) -> Plain:
        scaler = self.thing
        if scaler._scale is None:
            return flat.pack(scaler.state_dict(), self.name)
        settings = [scaler._growth_factor, scaler._backoff_factor, scaler._growth_interval]
        return ["scaler", settings, flat.add(scaler._scale, f"{self.name}.scale"), self._tracker(flat)]

    def _tracker(self, flat: Flat) -> int:
        return flat.add(self.thing._growth_tracker, f"{self.name}.growth_tracker")

    def put(self, plain: Plain, found: Found) -> None:
        scaler = self.thing
        if plain[0] != "scaler":
            super().put(plain, found)
            scaler._scale = scaler._growth_tracker = None
            return
        scaler._growth_factor, scaler._backoff_factor, scaler._growth_interval = plain[1]
        if scaler._scale is None:
            scaler._lazy_init_scale_growth_tracker(found.tensors[plain[2]].device)
        scaler._scale.copy_(found.tensors[plain[2]])
        scaler._growth_tracker.copy_(found.tensors[plain[3]])

    def drop(self) -> None:
        """The step is dropped: forget what `unscale_` noted in it."""
        self.thing._per_optimizer_states.clear()


class ValuePart:
    """A tensor, dict or list of the script's own, changed in place."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def places(self) -> dict[str, torch.Tensor]:
        return {self.name: self.value} if isinstance(self.value, torch.Tensor) else {}

    def pack(self, flat: Flat) -> Plain:
        return flat.pack(self.value, self.name)

    def put(self, plain: Plain, found: Found) -> None:
        if isinstance(self.value, torch.Tensor):
            return  # its place was written
        value = found.unpack(plain)
        if isinstance(self.value, list):
            self.value[:] = value
        else:
            self.value.clear()
            self.value.update(value)


def part_of(name: str, thing: Any) -> Part:
    """The part that knows how to protect this object."""
    if isinstance(thing, torch.nn.Module):
        return ModulePart(name, thing)
    if isinstance(thing, torch.optim.Optimizer):
        return OptimizerPart(name, thing)
    if isinstance(thing, torch.amp.GradScaler):
        return ScalerPart(name, thing)
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return ObjectPart(name, thing)
    if isinstance(thing, torch.Tensor | dict | list):
        return ValuePart(name, thing)
    raise ConfigError(
        f"protect({name}=…) was given a {type(thing).__qualname__}: it needs state_dict() and load_state_dict(), or "
        "has to be a tensor, a dict or a list that is changed in place"
    )
