"""What protect() was given, and everything that is done with it in a step and in a recovery. The main thread's only.

It knows torch and the process groups. When something is done is decided by `control` and `loop`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch.distributed.tensor import DTensor

from everstep.errors import ConfigError, RuleError, StateError
from everstep.types import Coordinate, Moment, Rank, Step
from everstep.worker.ddp import buckets_of, layouts, take_layouts
from everstep.worker.fsdp import ShardedModules
from everstep.worker.groups.exchange import broadcast_bytes, gather_bytes
from everstep.worker.groups.world import World
from everstep.worker.private import Private
from everstep.worker.rng import CarriedStreams, streams
from everstep.worker.state.parts import OptimizerPart
from everstep.worker.state.protected import Protected, difference, digest, named, tensor_digest
from everstep.worker.state.shadow import Shadow
from everstep.worker.state.sharded import local
from everstep.worker.state.transfer import receive, send
from everstep.worker.state.tree import Flat, decode

log = logging.getLogger(__name__)

_REFUSED = ("ZeroRedundancyOptimizer", "PostLocalSGDOptimizer", "DistributedOptimizer", "LBFGS")
"""Optimizers that communicate in step(), or evaluate the model several times in it."""

_REFUSED_ON_SHARDS = ("Muon",)
"""Optimizers that communicate in step() if their parameters are sharded."""

CHECKED_STEPS = 3
"""In the first steps it is looked for rules that are broken at some cost; later they are taken as kept."""


class _Greeting(msgspec.Struct, frozen=True, array_like=True):
    """What each rank tells all others when a generation begins; the same length everywhere."""

    version: int
    layout: bytes
    missing: bool


class Protection:
    """Made by protect() on every rank."""

    def __init__(
        self,
        world: World,
        rank: Rank,
        world_size: int,
        *,
        model: object,
        optimizer: object,
        scheduler: object = None,
        scaler: object = None,
        extra: Mapping[str, Any] | None = None,
        private: Mapping[str, Any] | None = None,
        rng: str = "step",
        tell: Callable[[Moment, Step, int, str], None] = lambda *_: None,
    ) -> None:
        """``tell`` hears each digest of the state that is taken: when, of which version and shard."""
        self.world = world
        self.rank = rank
        self._tell = tell
        self._facts: dict[str, Any] = {"seeds": [torch.initial_seed()] * world_size}
        others = {"scheduler": scheduler, "scaler": scaler, "extra": extra, "everstep": {"facts": self._facts}}
        things = named(model, optimizer, others)
        self.state = Protected(things)
        if not self.state.modules or not self.state.optimizers:
            raise ConfigError("protect() needs a model=torch.nn.Module and an optimizer=torch.optim.Optimizer")
        for part in self.state.optimizers:
            _check(part)
        self._own = self.state.parts[-1]
        """The facts: what everstep itself tells a newcomer."""
        self.streams = streams(rng, torch.initial_seed())
        self.shadow = Shadow(self.state, never=self._own)
        self.buckets = buckets_of([(part.name, part.module) for part in self.state.modules], world)
        own: dict[str, Any] = {"rng": self.streams} if isinstance(self.streams, CarriedStreams) else {}
        for bucket in self.buckets:
            own.update(bucket.private())
        self.private = Private({**own, **(private or {})})
        self.sharded = ShardedModules(part.module for part in self.state.modules)
        self.layout = self.state.layout()
        self.coordinates = [Coordinate(rank, 0) for rank in range(world_size)]
        self._parameters = self.state.parameters()
        self._steps = 0
        self._compared_step = 1
        """In this step it is looked whether the one before, the first of a generation, has left all replicas equal."""
        self._had_gradients = [False] * len(self._parameters)
        """Each parameter, when the step began."""

    # ── at the first start ───────────────────────────────────────────────────────────────────────────────

    @property
    def coordinate(self) -> Coordinate:
        return self.coordinates[self.rank]

    def found(self) -> None:
        """All ranks are here: what only one of them knows is told to all; what should be equal is compared."""
        group = self.world.default
        seeds = gather_bytes(group, torch.initial_seed().to_bytes(8, "little"))
        self._facts["seeds"] = [int.from_bytes(seed, "little") for seed in seeds]
        self.coordinates = _coordinates(gather_bytes(group, digest(self.layout + self.state.pieces()).encode()))
        _, flat = self.state.read()
        size = sum(tensor.numel() * tensor.element_size() for tensor in flat.tensors)
        self._report_replicas(
            [int.from_bytes(data, "little") for data in gather_bytes(group, size.to_bytes(8, "little"))]
        )
        self._compare(Moment.PROTECT, Step(0), "at protect()")
        self.private.arrange(self.coordinates)
        self.private.exchange(group, Step(0))
        unshared = {name for each in self.world.groups.values() for name in each.prologue.unshared}
        if unshared and self.rank == 0:
            log.warning(
                "everstep: %s before protect() gave each rank a result of its own, which a replacement cannot be "
                "given; put it into protected state or do it inside a step",
                ", ".join(sorted(unshared)),
            )

    def _compare(self, moment: Moment, version: Step, when: str) -> None:
        """Replicas have to be equal, because a replacement is made from one of them. Name what is not."""
        group, mine = self.world.default, self._digests()
        said = gather_bytes(group, self._told(moment, version, mine).encode())
        shards = [at.shard for at in self.coordinates]
        if len(set(zip(shards, said, strict=True))) == len(set(shards)):
            return
        encoded = msgspec.msgpack.encode(mine)
        told = [broadcast_bytes(group, rank, encoded) for rank in range(len(shards))]
        every = [msgspec.msgpack.decode(data, type=dict[str, str]) for data in told]
        names = dict.fromkeys(name for digests in every for name in digests)
        kinds = {name: {(at, digests.get(name)) for at, digests in zip(shards, every, strict=True)} for name in names}
        differing = [name for name, found in kinds.items() if len(found) > len(set(shards))]
        raise RuleError(
            f"{', '.join(differing[:4])}{' …' if len(differing) > 4 else ''} differ between the ranks {when}: a "
            "replacement receives them from another rank; make them equal, or give what belongs to one rank as private="
        )

    def audit(self, moment: Moment, version: Step) -> None:
        """Tell a digest of the whole state, for the record. Between two steps only."""
        self.sharded.reshard()
        self._told(moment, version, self._digests())

    def _told(self, moment: Moment, version: Step, digests: dict[str, str]) -> str:
        """One digest over these."""
        whole = digest([f"{name}={own}" for name, own in digests.items()])
        self._tell(moment, version, self.coordinate.shard, whole)
        return whole

    def _digests(self) -> dict[str, str]:
        """Of all that is equal on replicas, by name."""
        values, flat = self.state.read()
        return self._digests_of(values, flat, map(tensor_digest, flat.tensors))

    def _digests_of(self, values: bytes, flat: Flat, taken: Iterable[bytes]) -> dict[str, str]:
        """The same of a state that was read, with a digest of each tensor."""
        own = {id(tensor) for tensor in self.private.places()}
        tensors = zip(flat.names, flat.originals, taken, strict=True)
        found = {name: made.hex() for name, place, made in tensors if id(place) not in own}
        for part, plain in zip(self.state.parts, decode(values), strict=True):
            if part is not self._own:
                found[f"{part.name} (its values)"] = digest([repr(plain)])
        return found

    def _report_replicas(self, sizes: list[int]) -> None:
        """What no replica can give back, in one line."""
        replicas = Counter(at.shard for at in self.coordinates)
        alone = [rank for rank, at in enumerate(self.coordinates) if replicas[at.shard] == 1]
        if not alone or self.rank or len(sizes) == 1:
            return
        once = sum(sizes[rank] for rank in alone)
        every = sum(size for at, size in zip(self.coordinates, sizes, strict=True) if at.replicate == 0)
        unit, scale = next((unit, scale) for unit, scale in _UNITS if every >= scale or scale == 1)
        log.warning(
            "everstep: %.3g of %.3g %s have no replica, on ranks %s: without a checkpoint the loss of one of them ends "
            "the job; a mesh with a dimension of replicas keeps each shard more than once",
            once / scale,
            every / scale,
            unit,
            ", ".join(map(str, alone)),
        )

    def join(self, reference: list[str], coordinates: list[Coordinate]) -> None:
        """A newcomer: what it built has to be what the job runs."""
        self.coordinates = coordinates
        self.private.arrange(coordinates)
        if reference and reference != self.layout:
            raise StateError(f"this replacement built something else: {difference(self.layout, reference)}")
        self.private.missing = bool(self.private)

    # ── in a step ────────────────────────────────────────────────────────────────────────────────────────

    def forgot(self, optimizer: torch.optim.Optimizer) -> bool:
        """It has parameters of the protected state, and is not a part of that itself."""
        if any(part.optimizer is optimizer for part in self.state.optimizers):
            return False
        own = {id(parameter) for parameter in self.state.parameters()}
        return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])

    def begin(self, step: Step) -> None:
        """A step begins, for the first time or again."""
        self._look_at_gradients()
        self.shadow.begin()
        for bucket in self.buckets:
            bucket.begin()
        self.streams.begin(step)
        self._steps += 1

    def _look_at_gradients(self) -> None:
        """They have to be dropped or zero: a redo begins without those of the step before."""
        before, self._had_gradients = self._had_gradients, [each.grad is not None for each in self._parameters]
        if self._steps and (self._steps <= CHECKED_STEPS or self._had_gradients != before):
            for parameter in self._parameters:
                if parameter.grad is not None and bool(torch.count_nonzero(local(parameter.grad))):
                    raise RuleError(
                        "gradients were carried from one step into the next: a replacement would not have them; call "
                        "optimizer.zero_grad() inside each step, and accumulate inside one step"
                    )

    def before_barrier(self, version: Step) -> None:
        """The last communication of a step: what only one rank has by now. RuntimeError if a collective fails."""
        for bucket in self.buckets:
            bucket.at_barrier()
        if self.private:
            self.private.exchange(self.world.default, Step(version + 1))
        self.world.settle()
        self.world.seam.drain()
        if version == self._compared_step:
            self._compare(Moment.FIRST_STEP, version, "after the first step" if version == 1 else _AFTER_RECOVERY)
        self.shadow.at_barrier()

    def end(self) -> None:
        """The update is done."""
        if self._steps <= CHECKED_STEPS:
            self.private.check()

    # ── in a recovery ────────────────────────────────────────────────────────────────────────────────────

    def drop(self) -> None:
        """Be as at the start of the step. Nothing in flight writes into what is used again."""
        self.world.settle()
        self.world.seam.drain()
        for parameter, had_one in zip(self._parameters, self._had_gradients, strict=True):
            if not had_one:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
            else:
                parameter.grad = torch.zeros_like(parameter)
        self.sharded.drop()
        for bucket in self.buckets:
            bucket.drop()
        self.shadow.put_back()
        self.streams.again()

    def serve(self, to: int, version: Step) -> None:
        """Give the state to a newcomer."""
        self.tidy()
        sent, values, flat = send(self.world.default, to, version, self.state)
        self._told(Moment.RESTORATION, version, self._digests_of(values, flat, sent))

    def fill(self, source: int, version: Step) -> int:
        """A newcomer: be what the donor is. How many bytes came."""
        came, values, flat = receive(self.world.default, source, version, self.state)
        self._told(Moment.RESTORATION, version, self._digests_of(values, flat, came.sent))
        self.take_facts()
        return came.size_bytes

    # ── for those who copy the state, and put it back ────────────────────────────────────────────────────

    def tidy(self) -> None:
        """Between two steps: be what can be read, with all that belongs to it."""
        gradients = [parameter.grad is not None for parameter in self._parameters]
        self._facts.update(has_gradient=gradients, layouts=layouts(self.buckets))
        self._facts.update(early=self.shadow.early, flags=self.shadow.flags.read())
        self.sharded.reshard()

    def take_facts(self) -> None:
        """The state was put in place, and the facts with it: follow from them."""
        self.shadow.forget(self._facts.get("early"))
        if "flags" in self._facts:  # else the checkpoint is of an older version
            self.shadow.flags.put(self._facts["flags"])
        take_layouts(self.buckets, self._facts["layouts"])
        self._make_gradients()
        if not isinstance(self.streams, CarriedStreams):
            self.streams = streams("step", self._facts["seeds"][self.rank])

    @contextmanager
    def own_facts(self) -> Iterator[None]:
        """What is put in place meanwhile comes from other ranks, so what it says of ranks and layouts is not true."""
        before = dict(self._facts)
        yield
        self.shadow.forget()
        gradients = self._facts.get("has_gradient", [])
        self._facts.clear()
        self._facts.update(before, has_gradient=gradients)
        self._make_gradients()

    def _make_gradients(self) -> None:
        """An optimizer passes over a parameter that has none, and not over one whose gradient is zero."""
        for parameter, has_one in zip(self._parameters, self._facts.get("has_gradient", []), strict=False):
            parameter.grad = torch.zeros_like(parameter) if has_one else None

    # ── the first words ──────────────────────────────────────────────────────────────────────────────────

    def agree(self, version: Step) -> None:
        """The first words in new groups: all are at this version, and have the same layout and their own state.

        RuntimeError if one more failure comes meanwhile.
        """
        self._compared_step = version + 1
        group = self.world.default
        mine = msgspec.msgpack.encode(layouts(self.buckets))
        greeting = _Greeting(version, digest([mine.hex()]).encode(), self.private.missing)
        said = gather_bytes(group, _fixed(msgspec.msgpack.encode(greeting)))
        greetings = [msgspec.msgpack.decode(_unfixed(data), type=_Greeting) for data in said]
        if {other.version for other in greetings} != {version}:
            raise StateError(f"ranks begin at different steps: {[other.version for other in greetings]}")
        if len({other.layout for other in greetings}) > 1:
            self._agree_on_layout(mine)
        if self.private:
            missing = [rank for rank, other in enumerate(greetings) if other.missing]
            self.private.give_back(group, version, missing)
        for bucket in self.buckets:
            bucket.renew()

    def _agree_on_layout(self, mine: bytes) -> None:
        """A survivor may have been cut off before the rebuild that others have seen: take the fullest."""
        group = self.world.default
        sizes = gather_bytes(group, len(mine).to_bytes(8, "little"))
        lengths = [int.from_bytes(size, "little") for size in sizes]
        told = broadcast_bytes(group, lengths.index(max(lengths)), mine)
        take_layouts(self.buckets, msgspec.msgpack.decode(told))


def _check(part: OptimizerPart) -> None:
    """Refuse an optimizer that communicates in its step."""
    name = type(part.optimizer).__name__
    if name in _REFUSED:
        raise ConfigError(
            f"{part.name} is a {name}: it communicates or computes again inside step(), so a step could not be "
            "finished by each device alone; use another optimizer"
        )
    sharded = any(isinstance(parameter, DTensor) for parameter in part.parameters())
    if sharded and name in _REFUSED_ON_SHARDS:
        raise ConfigError(
            f"{part.name} is a {name} of sharded parameters: its step() needs whole matrices and gathers them, so a "
            "step could not be finished by each device alone; use another optimizer, or one replica on each device"
        )


def _coordinates(pieces: list[bytes]) -> list[Coordinate]:
    """Ranks with the same pieces are replicas of each other; pieces are counted as they come up."""
    shards: dict[bytes, int] = {}
    counts: Counter[bytes] = Counter()
    found = []
    for piece in pieces:
        found.append(Coordinate(counts[piece], shards.setdefault(piece, len(shards))))
        counts[piece] += 1
    return found


_AFTER_RECOVERY = "after the first step behind a recovery, so something that a step depends on was not protected"
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1))
_GREETING_BYTES = 64


def _fixed(data: bytes) -> bytes:
    assert len(data) < _GREETING_BYTES, len(data)
    return bytes([len(data)]) + data.ljust(_GREETING_BYTES, b"\0")


def _unfixed(data: bytes) -> bytes:
    return data[1 : 1 + data[0]]
