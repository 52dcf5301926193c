"""The protected training loop: carries the main thread through steps, barriers and recoveries.

    begin ─► Forward, Backward ─► barrier ─► Optimizer Step ─► end
               │ a collective fails, or a Stop comes                 a Stop is answered behind the update
               ▼
            Interruption ─► leave the block ─► park, drop, reconnect, restore ─► the same step again

It knows the worker's machine through `control` and torch through `protection`.
"""

from __future__ import annotations

import enum
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from everstep.core.worker import Do, Move
from everstep.errors import EverstepError, Interruption, RuleError
from everstep.types import Moment, Step, WorkerPhase
from everstep.worker.loader import guard_plain_loaders
from everstep.worker.phases import RecoveryPhase
from everstep.worker.protection import Protection

if TYPE_CHECKING:
    from everstep.worker.checkpoint.keeper import Keeper
    from everstep.worker.control import Control
    from everstep.worker.track import Track


log = logging.getLogger(__name__)

AUDIT_S = 600.0
"""A digest of the state that takes longer is a hang."""


class Stage(enum.Enum):
    """What the script may do now."""

    BETWEEN = "outside of a step"
    WORKING = "before the update"
    UPDATING = "after the update of the step"
    OWN = "everstep's own"
    OVER = "after the loop"


class ProtectedLoop:
    """One for a job, from protect() on. It is also the gate of the collectives."""

    def __init__(
        self,
        control: Control,
        track: Track,
        protection: Protection,
        keeper: Keeper,
        epoch_of: Callable[[Step], int],
    ) -> None:
        self._control = control
        self._keeper = keeper
        self._epoch_of = epoch_of
        self._track = track
        self._protection = protection
        self._stage = Stage.BETWEEN
        self._dropping = False
        """The step is dropped by order and its block has still to be left."""
        self._void = False
        """All were rolled back to another step before the block began, so it counts for nothing."""
        self._token = torch.zeros(1)
        """What is reduced in the barrier. Above zero: somebody wants a checkpoint of the version behind it."""
        self._due = False
        """All that have passed the barrier of this step save the version behind it."""
        self._shown = WorkerPhase.IDLE
        self._attempts = (Step(-1), 0)
        self._hooks: list[Any] = []
        self._audited = Step(-1)

    # ── the script's calls ───────────────────────────────────────────────────────────────────────────────

    @property
    def version(self) -> Step:
        return self._control.version

    @property
    def over(self) -> bool:
        """Another rank has left the loop at this version."""
        return self._control.over

    def epoch(self, step: Step) -> int:
        return self._epoch_of(step)

    def attempt(self, step: Step) -> int:
        """How often this step was begun before in this process."""
        index, count = self._attempts
        return count if index == step else 0

    def begin(self, step: Step) -> None:
        """A Stop may come first: then this waits for the recovery."""
        control = self._control
        if self._stage is Stage.OVER:
            raise RuleError(f"step {step} cannot be begun: the job's one loop over job.steps() has ended on all ranks")
        while control.version == step and not control.move(Move.BEGIN):
            control.follow()
        self._stage = Stage.WORKING
        self._void = control.version != step
        if self._void:
            return
        self._attempts = (step, self.attempt(step) + 1)
        self._protection.begin(step)
        self._show(WorkerPhase.FORWARD, step)

    def end(self) -> None:
        """The block has come to its end: its update counts."""
        if self._stage is Stage.WORKING:
            self.barrier()
        control = self._control
        self._protection.end()
        self._stage = Stage.BETWEEN
        parked = not control.move(Move.UPDATE)
        self._show(WorkerPhase.IDLE, control.version)
        due, self._due = self._due, False
        if parked:
            control.follow()
        elif due:
            self._keeper.save(control.version)

    def unwind(self, error: BaseException) -> bool:
        """The block is left by an error: if a recovery is why, take part in it and say True."""
        if self._stage is not Stage.WORKING or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            return False
        if self._void:
            self._stage, self._void = Stage.BETWEEN, False
            return True
        if not (self._dropping or self._control.must_park):
            self._protection.world.found_failure()
            self._look_for_failures()
        if not (self._dropping or self._control.must_park):
            return False
        if not self._dropping:
            self._control.park()
            self._control.follow()
        self._stage, self._dropping = Stage.BETWEEN, False
        self._track.recovering(RecoveryPhase.CLEAN, self._control.version)
        self._protection.drop()
        self._control.dropped()
        self._show(WorkerPhase.IDLE, self._control.version)
        self._control.follow()
        return True

    def leave(self) -> bool:
        """Wait until everybody has left the loop; until then this rank is a holder and a donor.

        False: all have gone back to a checkpoint, and there are steps to be done again.
        """
        control, version = self._control, self._control.version
        while control.phase is not WorkerPhase.ENDED:
            if control.version < version:
                return False
            if not control.must_park:
                self._keeper.save_last(version)
                self._audit(version)
            control.move(Move.LEAVE)
            self._show(control.phase, control.version)
            with self._track.waiting():
                control.follow()
        self._stage = Stage.OVER
        self._undo_guard()
        for hook in self._hooks:
            hook.remove()
        return True

    def _audit(self, version: Step) -> None:
        """What this rank ends on, once for each version: nobody waits for the next step any more."""
        if self._audited != version:
            self._audited = version
            with self._track.long("digest of the state", AUDIT_S):
                try:
                    self._protection.audit(Moment.END, version)
                except EverstepError as error:  # the training is done, and this is not what ends it
                    log.warning("everstep: no digest of the state at the end: %s", error)

    # ── the barrier ──────────────────────────────────────────────────────────────────────────────────────

    def barrier(self) -> None:
        """The Gradient Synchronization Barrier: who has passed it knows that all hold complete gradients."""
        control, version = self._control, self._control.version
        self._enter_or_unwind()
        self._stage = Stage.OWN
        try:
            self._protection.before_barrier(version)
        except RuntimeError as error:
            self._protection.world.failed(str(error))
        finally:
            self._stage = Stage.WORKING
        self._look_for_failures()
        self._move(Move.READY)
        self._show(WorkerPhase.READY, version)
        work = None
        try:
            work = self._issue_barrier(self._keeper.wants(Step(version + 1)))
            self._track.reach_inside(WorkerPhase.READY, version)
            work.wait()
        except RuntimeError as error:
            self._token = torch.zeros(1)  # nobody knows who may still write into the old one
            control.broken(str(error))
            self._follow_in_place()
        else:
            if control.move(Move.PASS):
                self._due = self._token.item() > 0
            else:
                self._follow_in_place()
        self._stage = Stage.UPDATING
        self._show(WorkerPhase.COMMITTED, version)

    def _issue_barrier(self, wants_checkpoint: bool) -> Any:
        """A reduction of one number: cheaper in Gloo than its barrier, and as true."""
        self._token.fill_(wants_checkpoint)
        return self._protection.world.default.allreduce([self._token])

    def _follow_in_place(self) -> None:
        """Parked in the barrier: finish the update here, in the script's own line, or drop the step."""
        if self._control.follow() is Do.DROP:
            self._dropping = True
            raise Interruption("the step is done again")

    def _move(self, move: Move) -> None:
        if not self._control.move(move):
            self._follow_in_place()

    # ── what the script does inside a step ───────────────────────────────────────────────────────────────

    def enter(self, operation: str) -> None:
        """A collective: may it be done here?"""
        if self._stage is Stage.WORKING:
            self._enter_or_unwind()
        elif self._stage in (Stage.BETWEEN, Stage.UPDATING):
            several = len(self._protection.state.optimizers) > 1 and self._stage is Stage.UPDATING
            raise RuleError(
                f"{operation} {self._stage.value}: all communication of a protected step happens inside `with step:` "
                "and before optimizer.step(), because from there on each device has to be able to finish alone"
                + ("; with several optimizers: all backward() first, then all step()" if several else "")
            )

    def safe_point(self) -> None:
        """One of our calls, or a module boundary."""
        if self._stage is Stage.WORKING:
            self._enter_or_unwind()

    def _enter_or_unwind(self) -> None:
        if self._void or self._dropping or self._control.must_park:
            raise Interruption("the step is done again")

    def _look_for_failures(self) -> None:
        """A collective that failed, whatever became of its error: this step cannot be READY any more."""
        world = self._protection.world
        world.in_flight()
        if world.failure and not self._control.must_park:
            self._control.broken(world.failure)

    def forward(self) -> None:
        """A protected model begins to compute."""
        if self._stage is Stage.WORKING:
            self._enter_or_unwind()
            if self._shown is WorkerPhase.BACKWARD:
                self._show(WorkerPhase.FORWARD, self._control.version)

    def backward(self) -> None:
        """The first gradient arrives at the output of a protected model."""
        if self._stage is Stage.WORKING and self._shown is WorkerPhase.FORWARD:
            self._enter_or_unwind()
            if self._control.phase is WorkerPhase.FORWARD:
                self._move(Move.BACKWARD)
            self._show(WorkerPhase.BACKWARD, self._control.version)

    def _show(self, phase: WorkerPhase, version: Step) -> None:
        self._shown = phase
        step, begun = self._attempts
        attempt = begun - 1 if step == version else 0
        self._track.enter(phase, version, attempt, strike_inside=phase is not WorkerPhase.READY)

    # ── hooks ────────────────────────────────────────────────────────────────────────────────────────────

    def attach(self) -> None:
        """Hear from the script's objects where the step is."""
        self._undo_guard = guard_plain_loaders(lambda: self._stage in (Stage.WORKING, Stage.UPDATING))
        self._hooks.append(register_optimizer_step_pre_hook(self._before_any_update))
        for part in self._protection.state.optimizers:
            self._hooks.append(part.optimizer.register_step_pre_hook(self._before_update))
        for root in self._protection.state.modules:
            # A module that was compiled in place has its hooks compiled too: ours stay out of that.
            own: Any = torch.compiler.disable if _is_compiled(root.module) else lambda hook: hook
            self._hooks.append(root.module.register_forward_pre_hook(own(lambda *_: self.forward())))
            self._hooks.append(root.module.register_forward_hook(own(self._after_forward)))
            for inner in _boundaries(root.module):
                self._hooks.append(inner.register_forward_pre_hook(lambda *_: self.safe_point()))

    def _before_any_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """One that nobody protects would update without a barrier, and its state would be lost."""
        if self._stage in (Stage.WORKING, Stage.UPDATING) and self._protection.forgot(optimizer):
            raise RuleError(
                f"{type(optimizer).__name__}.step() changes protected parameters, and protect() was not given that "
                "optimizer: a replacement would not have its state; give it all of them, as optimizer=[…]"
            )

    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, options: Any) -> Any:
        """Every update of a step comes behind its barrier. With a closure the barrier follows Forward and Backward."""
        if self._stage is Stage.BETWEEN:
            raise RuleError("optimizer.step() outside of a step: it belongs inside `with step:`")
        if self._stage is Stage.OVER:
            return None
        closure = options.get("closure") or next((given for given in args[1:2] if callable(given)), None)
        if closure is None:
            if self._stage is Stage.WORKING:
                self.barrier()
            return None
        calls = itertools.count()

        def evaluate() -> Any:
            if next(calls):
                raise RuleError(
                    f"{type(optimizer).__name__} evaluates its closure twice in one step: the second time it would "
                    "communicate after a part of the update; use an optimizer that evaluates it once"
                )
            with torch.enable_grad():
                loss = closure()
            self.barrier()
            return loss

        if "closure" in options:
            return args, {**options, "closure": evaluate}
        return (args[0], evaluate, *args[2:]), options

    def _after_forward(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        if torch.is_grad_enabled() and (tensor := _first_tensor(output)) is not None and tensor.requires_grad:
            tensor.register_hook(self._on_gradient)

    def _on_gradient(self, _: torch.Tensor) -> None:
        self.backward()


def _first_tensor(output: Any) -> torch.Tensor | None:
    if isinstance(output, torch.Tensor):
        return output
    values = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    found = (_first_tensor(value) for value in values)
    return next((tensor for tensor in found if tensor is not None and tensor.requires_grad), None)


def _boundaries(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Modules worth a look for a Stop: those that are made of others, but for what a compiler has swallowed."""
    if not _is_compiled(module):
        for inner in module.children():
            if not _is_compiled(inner) and any(True for _ in inner.children()):
                yield inner
                yield from _boundaries(inner)


def _is_compiled(module: torch.nn.Module) -> bool:
    """By `torch.compile(module)` or `module.compile()`."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
