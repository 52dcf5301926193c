"""What a redo puts back besides gradients: everything of the protected state that a step changed before its barrier.

Moments change behind the barrier only, and so do most parameters. Buffers change in Forward; a scheduler, `extra` or a
slowly following encoder may. Tensors are copied at the start of a step if they have changed since the last copy, which
their version counter tells; but some change silently (statistics of BatchNorm; by `.data` anything), so these are
copied always. Which tensors do so, and which parameters and large tensors change behind the barrier only, is learnt in
the first steps, in which all are copied; of large parameters, for which there may be no room, there is a digest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from everstep.errors import LostError
from everstep.worker.state.flags import Flags
from everstep.worker.state.parts import ModulePart, OptimizerPart, Part, ScalerPart
from everstep.worker.state.protected import Protected, tensor_digest
from everstep.worker.state.sharded import local
from everstep.worker.state.tree import Flat, Found, Plain, decode, encode

LEARNING_STEPS = 2
_STATISTICS = ("running_mean", "running_var")
ALWAYS_BYTES = 1 << 20
"""A smaller tensor is copied without asking when it changes."""


class _Copy:
    """A tensor and what it was."""

    __slots__ = (
        "at",
        "barriers",
        "by_digest",
        "digest",
        "late",
        "name",
        "parameter",
        "saved",
        "silent",
        "tensor",
        "unseen",
        "version",
        "whole",
    )

    def __init__(self, name: str, whole: torch.Tensor, *, parameter: bool) -> None:
        self.name = name
        self.parameter = parameter
        self.whole = whole
        self.tensor = local(whole)
        self.saved: torch.Tensor | None = None
        self.digest = b""
        self.version = -1
        """Of the tensor, when it was saved."""
        self.at = -1
        """Of the tensor, when the step began."""
        self.barriers = 0
        """At so many it was looked at."""
        large = self.tensor.numel() * self.tensor.element_size() > ALWAYS_BYTES
        self.late = large or parameter
        """It may be one that changes behind the barrier only."""
        self.by_digest = large and parameter
        """While that is not known, its digest is kept instead of a copy."""
        self.silent = name.endswith(_STATISTICS)
        """Its version counter does not tell when it changes before the barrier."""
        self.unseen = False
        """Nor behind it."""

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
        return not self.late and (self.silent or self.unseen or self.version != self.at)

    def differs(self) -> bool:
        """From what was saved."""
        if self.saved is not None:
            return not torch.equal(self.saved, self.tensor)
        return bool(self.digest) and self.digest != tensor_digest(self.tensor)

    def prepare(self) -> bool:
        """The step begins, and it is stale: is a copy due? ``saved`` is for it then."""
        if self.by_digest and self.late:
            self.digest = tensor_digest(self.tensor)
            return False
        if self.learning and self.version == self.at and self.differs():
            self.unseen = True
        self.version = self.at
        if self.saved is None:
            self.saved = torch.empty_like(self.tensor)
        return True

    def learn(self) -> None:
        """At a barrier: how does it change?"""
        if self.learning:
            self.barriers += 1
            self.silent = self.silent or (not self.touched and self.differs())
        if self.touched:
            self.late = False
        elif self.late and not self.learning:
            self.saved, self.digest, self.version = None, b"", -1

    def put_back(self) -> None:
        if self.touched or (self.learning and self.differs()):
            self.tensor.copy_(self.before())
            self.version = self.at = self.now

    def before(self) -> torch.Tensor:
        """What it was when the step began."""
        if not (self.touched or (self.learning and self.differs())):
            return self.tensor
        if self.saved is None or self.version != self.at:
            raise _not_kept(self.name)
        return self.saved


def _not_kept(name: str) -> LostError:
    return LostError(
        f"{name} was changed before the update for the first time in this step, and no copy of it was kept: change it "
        "behind optimizer.step(), or in every step"
    )


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
        self._parameters = protected.named_parameters()
        self._places = {id(local(parameter)) for parameter in self._parameters.values()}
        self._watched = self._parameters
        """Those that may change before the barrier: all while that is being learnt, then those that do."""
        self._learnt = False
        self._versions: list[int] = []
        """Of all parameters, when the step began."""
        self._meshes = protected.meshes
        self._copies: dict[int, _Copy] = {}
        self._notes: list[_Note] = []
        self._buffers: list[dict[str, torch.Tensor]] = []
        """Of each module: the script may put others in their place."""
        self.flags = Flags((part.module for part in self._modules), self._parameters.values())
        self._flags = self.flags.read()
        """When the step began."""

    def begin(self) -> None:
        """The step begins: copy what has changed since the last time."""
        last, self._copies = self._copies, {}
        self._flags = self.flags.read()
        self._versions = [parameter._version for parameter in self._parameters.values()]
        for name, parameter in self._watched.items():
            self._track(name, parameter, last, parameter=True)
        self._buffers = [module.buffers() for module in self._modules]
        for buffers in self._buffers:
            for name, buffer in buffers.items():
                self._track(name, buffer, last)
        self._notes = [self._note(part, last) for part in self._objects]
        stale = [copy for copy in self._tracked() if copy.stale and copy.prepare()]
        if stale:
            torch._foreach_copy_([copy.saved for copy in stale], [copy.tensor for copy in stale])  # type: ignore[misc]

    def _track(self, name: str, whole: torch.Tensor, last: dict[int, _Copy], *, parameter: bool = False) -> _Copy:
        key = id(local(whole))
        copy = self._copies.get(key) or last.get(key)
        if copy is None or copy.whole is not whole:
            copy = _Copy(name, whole, parameter=parameter or key in self._places)
            copy.late = copy.late and not (parameter and self._learnt)
        copy.at = copy.now
        self._copies[key] = copy
        return copy

    def _tracked(self) -> list[_Copy]:
        """Without the parameters that change behind the barrier only."""
        return [copy for copy in self._copies.values() if copy.name in self._watched or not copy.parameter]

    def _note(self, part: Part, last: dict[int, _Copy]) -> _Note:
        flat = Flat(self._meshes)
        values = encode(_changeable(part, flat))
        tensors = [self._track(name, whole, last) for name, whole in zip(flat.names, flat.wholes, strict=True)]
        return _Note(part, values, tensors)

    def at_barrier(self) -> None:
        """What has changed by now has to be copied in every step."""
        tracked = self._tracked()
        for copy in tracked:
            copy.learn()
        if not any(copy.parameter and copy.learning for copy in tracked):
            early = {copy.name for copy in tracked if copy.parameter and not copy.late}
            self._watched = {name: self._parameters[name] for name in self._watched if name in early}
            self._learnt = True

    def put_back(self) -> None:
        """Be as at the start of the step. LostError if that is not possible."""
        for (name, parameter), version in zip(self._parameters.items(), self._versions, strict=True):
            if parameter._version != version and name not in self._watched:
                raise _not_kept(name)
        self.flags.put(self._flags)
        for module, buffers in zip(self._modules, self._buffers, strict=True):
            module.put_buffers(buffers)
        with torch.no_grad():
            for copy in self._tracked():
                copy.put_back()
            for note in self._notes:
                self._put_back_values(note)

    @property
    def early(self) -> list[str] | None:
        """Parameters that change before the barrier. None while that is being learnt."""
        return list(self._watched) if self._learnt else None

    def forget(self, early: list[str] | None = None) -> None:
        """The state was put in place from elsewhere, which version counters need not tell. ``early`` of another rank
        saves to learn it once more."""
        self._copies.clear()
        self._notes.clear()
        self._learnt = early is not None
        self._watched = {name: own for name, own in self._parameters.items() if early is None or name in early}

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
