"""What a redo puts back besides gradients: everything of the protected state that a step changed before its barrier.

Parameters and moments change behind the barrier only. Buffers change in Forward; a scheduler or `extra` may. Tensors
are copied at the start of a step if they have changed since the last copy, which their version counter tells; but some
kernels change a tensor silently (the statistics of BatchNorm), so these are copied always. Which tensors do so, and
which large ones change behind the barrier only (an EMA), is learnt in the first steps, in which all are copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from everstep.errors import RuleError
from everstep.worker.state.parts import ModulePart, OptimizerPart, Part, ScalerPart
from everstep.worker.state.protected import Protected
from everstep.worker.state.sharded import local
from everstep.worker.state.tree import Flat, Found, Plain, decode, encode

LEARNING_STEPS = 2
_STATISTICS = ("running_mean", "running_var")
ALWAYS_BYTES = 1 << 20
"""A smaller tensor is copied without asking when it changes."""


class _Copy:
    """A tensor and what it was."""

    __slots__ = ("at", "barriers", "late", "name", "saved", "silent", "tensor", "version", "whole")

    def __init__(self, name: str, whole: torch.Tensor) -> None:
        self.name = name
        self.whole = whole
        self.tensor = local(whole)
        self.saved: torch.Tensor | None = None
        self.version = -1
        """Of the tensor, when it was saved."""
        self.at = -1
        """Of the tensor, when the step began."""
        self.barriers = 0
        """At so many it was looked at."""
        self.late = self.tensor.numel() * self.tensor.element_size() > ALWAYS_BYTES
        """It may be one that changes behind the barrier only."""
        self.silent = name.endswith(_STATISTICS)
        """Its version counter does not tell when it changes."""

    @property
    def now(self) -> int:
        """Its version. An operation on a sharded tensor is counted by that one and not by its local part."""
        count = self.tensor._version
        return count if self.whole is self.tensor else count + self.whole._version

    @property
    def learning(self) -> bool:
        return self.barriers < LEARNING_STEPS

    @property
    def touched(self) -> bool:
        return self.silent or self.now != self.at

    @property
    def stale(self) -> bool:
        """The step begins, and what was saved may be of an older one."""
        if self.learning:
            return True
        return not self.late and (self.silent or self.version != self.at)

    def learn(self) -> None:
        """At a barrier: how does it change?"""
        if self.learning:
            self.barriers += 1
            assert self.saved is not None
            self.silent = self.silent or (not self.touched and not torch.equal(self.saved, self.tensor))
        if self.touched:
            self.late = False
        elif self.late and not self.learning:
            self.saved, self.version = None, -1

    def put_back(self) -> None:
        if self.touched or self.learning:
            self.tensor.copy_(self.before())
            self.version = self.at = self.now

    def before(self) -> torch.Tensor:
        """What it was when the step began."""
        if self.saved is not None and self.version == self.at:
            return self.saved
        if self.touched:
            raise RuleError(
                f"{self.name} was changed before the update for the first time in this step, and no copy of it was "
                "kept: change it behind optimizer.step(), or in every step"
            )
        return self.tensor


@dataclass(slots=True)
class _Note:
    """The plain values of an object, and its tensors."""

    part: Part
    values: bytes
    tensors: list[_Copy]


class Shadow:
    """Call `begin` at the start of a step, `at_barrier` at its barrier, `put_back` for a redo."""

    def __init__(self, protected: Protected, never: Part) -> None:
        """``never`` is the part that no step changes."""
        self._modules = protected.modules
        self._objects = [part for part in protected.parts if part is not never and not isinstance(part, ModulePart)]
        self._steady = {id(local(parameter)) for parameter in protected.parameters()}
        self._meshes = protected.meshes
        self._copies: dict[int, _Copy] = {}
        self._notes: list[_Note] = []

    def begin(self) -> None:
        """The step begins: copy what has changed since the last time."""
        last, self._copies = self._copies, {}
        for module in self._modules:
            for name, buffer in module.buffers().items():
                self._track(name, buffer, last)
        self._notes = [self._note(part, last) for part in self._objects]
        stale = [copy for copy in self._tracked() if copy.stale]
        for copy in stale:
            if copy.saved is None:
                copy.saved = torch.empty_like(copy.tensor)
            copy.version = copy.at
        if stale:
            torch._foreach_copy_([copy.saved for copy in stale], [copy.tensor for copy in stale])  # type: ignore[misc]

    def _track(self, name: str, whole: torch.Tensor, last: dict[int, _Copy]) -> _Copy:
        key = id(local(whole))
        copy = last.get(key)
        if copy is None or copy.whole is not whole:
            copy = _Copy(name, whole)
        copy.at = copy.now
        self._copies[key] = copy
        return copy

    def _tracked(self) -> list[_Copy]:
        """Without the parameters, which change behind the barrier only."""
        return [copy for key, copy in self._copies.items() if key not in self._steady]

    def _note(self, part: Part, last: dict[int, _Copy]) -> _Note:
        flat = Flat(self._meshes)
        values = encode(_changeable(part, flat))
        tensors = [self._track(name, whole, last) for name, whole in zip(flat.names, flat.wholes, strict=True)]
        return _Note(part, values, tensors)

    def at_barrier(self) -> None:
        """What has changed by now has to be copied in every step."""
        for copy in self._tracked():
            copy.learn()

    def put_back(self) -> None:
        """Be as at the start of the step. RuleError if that is not possible."""
        with torch.no_grad():
            for copy in self._tracked():
                copy.put_back()
            for note in self._notes:
                self._put_back_values(note)

    def forget(self) -> None:
        """The state was put in place from elsewhere, which version counters need not tell."""
        self._copies.clear()
        self._notes.clear()

    def _put_back_values(self, note: _Note) -> None:
        if isinstance(note.part, ScalerPart):
            note.part.drop()
        flat = Flat(self._meshes)
        values = encode(_changeable(note.part, flat))
        same = len(flat.wholes) == len(note.tensors) and all(
            now is copy.whole for now, copy in zip(flat.wholes, note.tensors, strict=True)
        )
        if same and values == note.values:
            return
        tensors = [copy.before().clone() for copy in note.tensors]
        if isinstance(note.part, OptimizerPart):
            note.part.put_settings(decode(note.values), Found(tensors, self._meshes))
        else:
            note.part.put(decode(note.values), Found(tensors, self._meshes))


def _changeable(part: Part, flat: Flat) -> Plain:
    """What of it may change before the barrier: of an optimizer the settings, not the moments."""
    return part.pack_settings(flat) if isinstance(part, OptimizerPart) else part.pack(flat)
