"""The slots of a node: made when a rank needs them, held while their checkpoint is needed, handed to the persister.

They are keyed by rank and outlive workers. A slot is held while it has a share of the newest checkpoint that is
complete over all ranks, or while it is being persisted; the controller says by `Persist` which one is complete.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from everstep.agent.shm import SharedDirectory
from everstep.agent.worker import LocalWorker
from everstep.checkpoint.client import Persister
from everstep.checkpoint.persister import Write
from everstep.checkpoint.slot import SlotKeeper
from everstep.core.events import Checkpoint, Sealed
from everstep.errors import CheckpointError, ResourceError
from everstep.types import NodeId, Rank
from everstep.wire.messages import (
    NeedSlots,
    NoSlots,
    Notice,
    Persist,
    Receipt,
    SealedSlot,
    Skipped,
    SkippedSlot,
    Slots,
    ToController,
    Welcome,
)

log = logging.getLogger(__name__)

PAIR = (0, 1)

SPARED = 2
"""A job that was not told to take checkpoints leaves memory to its script: it takes one part in so many of the free."""


@dataclass(slots=True)
class _Slot:
    path: Path
    keeper: SlotKeeper
    held: Checkpoint | None = None
    told: Sealed | None = None
    """The newest seal of it."""


@dataclass(slots=True)
class _Pair:
    """The two slots of one rank."""

    slots: tuple[_Slot, ...]
    writing: set[Checkpoint] = field(default_factory=set)
    receipts: dict[Checkpoint, Receipt] = field(default_factory=dict)
    """Of what is still held: a restarted controller asks again."""


class SlotBook:
    """One for a node. Made inside the event loop."""

    def __init__(
        self,
        welcome: Welcome,
        node: NodeId,
        directory: SharedDirectory,
        tell: Callable[[ToController], None],
        begin: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        self._wanted = welcome.slots
        self._required = welcome.slots_required
        self._refused: NoSlots | None = None
        """Why nobody here gets slots any more although the job wants checkpoints."""
        self._store = welcome.checkpoint_dir
        self._attempt = welcome.attempt
        self._node = node
        self._directory = directory
        self._tell = tell
        self._begin = begin
        self._pairs: dict[Rank, _Pair] = {}
        self._asked: dict[Rank, LocalWorker] = {}
        self._one_at_a_time = asyncio.Lock()
        self._newest: Checkpoint | None = None
        self._persister = Persister()

    @property
    def told(self) -> list[ToController]:
        """What a controller that is new here has to hear."""
        refused: list[ToController] = [] if self._refused is None else [self._refused]
        slots = (slot for pair in self._pairs.values() for slot in pair.slots)
        return refused + [Notice(slot.told) for slot in slots if slot.told is not None]

    async def close(self) -> None:
        """What is being persisted is given up."""
        await self._persister.close()
        for pair in self._pairs.values():
            for slot in pair.slots:
                slot.keeper.close()
        self._pairs.clear()

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────

    def on_message(self, worker: LocalWorker, message: NeedSlots | SealedSlot | SkippedSlot) -> None:
        if isinstance(message, NeedSlots):
            self._begin(self._answer(worker, message.size_bytes))
        elif worker.rank is None:
            log.warning("worker %s has no rank, and says %s", worker.id, message)
        elif isinstance(message, SealedSlot):
            self._on_sealed(worker.rank, message)
        else:
            self._tell(Skipped(worker.rank, message.step, message.reason))

    async def _answer(self, worker: LocalWorker, size_bytes: int) -> None:
        answer = Slots((), self._store, self._attempt)
        rank = worker.rank
        if self._wanted and rank is not None:
            async with self._one_at_a_time:
                try:
                    pair = await self._pair(rank, size_bytes)
                except (ResourceError, CheckpointError, OSError) as error:
                    advice = "" if self._refused else "; or take none, with --checkpoint-every off"
                    answer = Slots((), self._store, self._attempt, f"{error}{advice}", self._required)
                    if rank not in self._pairs:
                        self._remove(rank)
                        if not self._required:
                            self._go_without(rank, answer)
                else:
                    paths = tuple(str(slot.path) for slot in pair.slots)
                    answer = Slots(paths, self._store, self._attempt)
                    self._asked[rank] = worker
                    self._persister.start()
        if worker.line is not None:
            worker.line.send(answer)

    async def _pair(self, rank: Rank, size_bytes: int) -> _Pair:
        """To reserve memory takes a while, in which the node goes on beating."""
        if self._refused is not None and rank not in self._pairs:
            raise ResourceError(self._refused.reason)
        free_bytes = shutil.disk_usage(self._directory.path).free
        if not self._required and rank not in self._pairs and SPARED * len(PAIR) * size_bytes > free_bytes:
            raise ResourceError(
                f"rank {rank} needs two slots of {size_bytes} bytes in {self._directory.path.parent}, which has "
                f"{free_bytes} free, of which the half is left to the script: enlarge it"
            )
        paths = [await asyncio.to_thread(self._directory.reserve, f"slot-{rank}-{index}", size_bytes) for index in PAIR]
        if rank not in self._pairs:
            self._pairs[rank] = _Pair(tuple(_Slot(path, SlotKeeper(path)) for path in paths))
        return self._pairs[rank]

    def _go_without(self, rank: Rank, refusal: Slots) -> None:
        """Nobody has told the job to take checkpoints, and one needs the slots of all ranks: so none keeps memory."""
        if self._refused is None:
            self._refused = NoSlots(rank, refusal.error)
            self._tell(self._refused)
        for other in list(self._pairs):
            if any(slot.told for slot in self._pairs[other].slots):
                continue  # a replacement came to a node where others have saved
            for slot in self._pairs.pop(other).slots:
                slot.keeper.close()
            self._remove(other)
            if (line := self._asked[other].line) is not None:
                line.send(refusal)

    def _remove(self, rank: Rank) -> None:
        for index in PAIR:
            self._directory.remove(f"slot-{rank}-{index}")

    def _on_sealed(self, rank: Rank, message: SealedSlot) -> None:
        pair = self._pairs.get(rank)
        if pair is None or message.slot not in PAIR:
            log.warning("rank %s has sealed slot %s, which it does not have", rank, message.slot)
            return
        sealed = Sealed(
            rank, self._node, message.checkpoint, message.slot, message.bytes, message.k0_s, message.began_s
        )
        pair.slots[message.slot].told = sealed
        self._tell(Notice(sealed))

    # ── the controller ───────────────────────────────────────────────────────────────────────────────────

    def persist(self, order: Persist) -> None:
        """Hold it, let go of what it takes the place of, and write the shares of this node to storage."""
        checkpoint = order.checkpoint
        here = [self._persist(rank, checkpoint) for rank in order.ranks]
        if all(here) and (self._newest is None or checkpoint.age > self._newest.age):
            self._newest = checkpoint
        self._let_go()

    def _persist(self, rank: Rank, checkpoint: Checkpoint) -> bool:
        """Whether it is still there."""
        pair = self._pairs.get(rank)
        slot = _hold(pair, checkpoint) if pair is not None else None
        if pair is None or slot is None:
            self._tell(Receipt(rank, checkpoint, error=f"{self._node} does not have it any more"))
        elif (receipt := pair.receipts.get(checkpoint)) is not None:
            self._tell(receipt)
        elif checkpoint not in pair.writing:
            pair.writing.add(checkpoint)
            self._begin(self._write(pair, Write(rank, checkpoint, str(slot.path), self._store)))
        return slot is not None

    async def _write(self, pair: _Pair, order: Write) -> None:
        receipt = await self._persister.persist(order)
        pair.writing.discard(order.checkpoint)
        if not receipt.error:
            pair.receipts[order.checkpoint] = receipt
        self._tell(receipt)
        self._let_go()

    def _let_go(self) -> None:
        for pair in self._pairs.values():
            for slot in pair.slots:
                if slot.held is not None and slot.held != self._newest and slot.held not in pair.writing:
                    pair.receipts.pop(slot.held, None)
                    slot.keeper.release()
                    slot.held = None


def _hold(pair: _Pair, checkpoint: Checkpoint) -> _Slot | None:
    """The slot that has it."""
    for slot in pair.slots:
        if slot.held == checkpoint:
            return slot
        if slot.held is None and slot.keeper.hold(checkpoint):
            slot.held = checkpoint
            return slot
    return None
