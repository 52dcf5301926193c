"""The checkpoints of a job, from the first sealed slot to the durable COMMIT, and what is told of them.

It sees what ranks seal, has what is complete persisted by the agents, commits when all receipts are in, and lets old
ones go. Whatever storage does, training is not disturbed: a failure is a warning, a record, and a word in the status.
Which checkpoint a recovery loads is the machine's business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from everstep.checkpoint.commit import commit
from everstep.checkpoint.retention import LEAST, purge, retire
from everstep.checkpoint.store import Store, open_store
from everstep.controller.cadence import Cadence, Every
from everstep.controller.job import CheckpointPlan
from everstep.core.events import Checkpoint, Event, JobPhase, Persisted, Sealed
from everstep.core.machine import RECOVERING, TRAINING, Machine
from everstep.errors import CheckpointError
from everstep.observe.checkpoints import CheckpointRecord, Fate, encode
from everstep.observe.lines import append_line
from everstep.observe.records import Decision, Recovery
from everstep.types import NodeId, Rank, WorkerId
from everstep.wire.messages import FromController, NoSlots, Persist, Receipt, Schedule, Skipped, Tell

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Course:
    """One checkpoint on its way."""

    checkpoint: Checkpoint
    every: int
    why: str
    begun_s: float = field(default_factory=time.monotonic)
    """When this controller heard of it first. The clocks of nodes may differ."""
    seals: dict[Rank, Sealed] = field(default_factory=dict)
    skips: dict[Rank, str] = field(default_factory=dict)
    sealed_s: float | None = None
    """When it was complete."""
    ordered_s: float = 0.0
    """The same, by a clock that nobody sets."""
    places: dict[Rank, NodeId] = field(default_factory=dict)
    """Who was told to persist which share."""
    receipts: dict[Rank, Receipt] = field(default_factory=dict)

    def record(self, fate: Fate, reason: str, committed_s: float | None = None) -> CheckpointRecord:
        began = [seal.began_s for seal in self.seals.values()]
        return CheckpointRecord(
            step=self.checkpoint.step,
            generation=self.checkpoint.generation,
            attempt=self.checkpoint.attempt,
            fate=fate,
            reason=reason,
            time_s=min(began, default=time.time()),
            k0_s=self.k0_s,
            sealed_s=self.sealed_s,
            k1_s=None if committed_s is None else time.monotonic() - self.ordered_s,
            committed_s=committed_s,
            bytes=sum(seal.bytes for seal in self.seals.values()),
            every=self.every,
            why=self.why,
        )

    @property
    def k0_s(self) -> float:
        return max((seal.k0_s for seal in self.seals.values()), default=0.0)


class Checkpointer:
    """One for a controller. ``machine`` gives the machine as it is then."""

    def __init__(
        self,
        plan: CheckpointPlan,
        ranks: int,
        records: Path,
        machine: Callable[[], Machine],
        send: Callable[[NodeId, FromController], None],
        take: Callable[[Event], None],
    ) -> None:
        self._plan = plan
        self._machine = machine
        self._send = send
        self._take = take
        self._records = records
        self._store: Store | None = open_store(plan.directory) if plan.directory else None
        self._cadence = Cadence(Every.read(plan.every), ranks)
        self._ways: dict[Checkpoint, _Course] = {}
        """Those whose fate is not known."""
        self._persisting: set[Checkpoint] = set()
        self._sealed: Checkpoint | None = None
        self._committed: tuple[Checkpoint, float] | None = None
        self._skipped: set[int] = set()
        self._error = ""
        self._idle = asyncio.Event()
        self._idle.set()
        self._fresh = asyncio.Event()
        """Set when one is committed that was begun after the newest `save`."""
        self._save_since = 0.0
        self._saving = 0
        """So many wait for that."""
        self._owed = False
        """It was left out, and is asked for again when a slot is free."""
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────

    def on_event(self, event: Event) -> None:
        """After the machine has handled it."""
        if isinstance(event, Sealed) and self._store is not None:
            self._on_sealed(event)

    def remember(self, event: Event, time_s: float) -> None:
        """From the journal of a controller before this one."""
        if isinstance(event, Persisted):
            self._committed = event.checkpoint, time_s

    def on_receipt(self, receipt: Receipt) -> None:
        course = self._ways.get(receipt.checkpoint)
        if course is None or receipt.checkpoint not in self._persisting:
            return
        if receipt.error:
            self._give_up(course, f"rank {receipt.rank}: {receipt.error}")
            return
        course.receipts[receipt.rank] = receipt
        if course.receipts.keys() == course.places.keys():
            self._begin(course)

    def on_skipped(self, skipped: Skipped) -> None:
        if self._cadence.every.off:
            return
        checkpoint = Checkpoint(skipped.step, self._machine().generation, self._plan.attempt)
        if skipped.step not in self._skipped:
            log.warning("rank %s leaves out the checkpoint of step %s: %s", skipped.rank, skipped.step, skipped.reason)
        self._skipped.add(skipped.step)
        if self._hurries:
            self._owed = bool(self._persisting)  # then a slot becomes free when one of them is durable
            if not self._owed:
                self._ask_again()
        self._course(checkpoint).skips[skipped.rank] = skipped.reason

    def on_no_slots(self, message: NoSlots) -> None:
        """A checkpoint needs the slots of all ranks. If there never was one, nobody is bothered any more."""
        self._error = f"rank {message.rank}: {message.reason}"
        if self._sealed is not None or self._cadence.every.off:
            log.warning("rank %s takes no part in checkpoints: %s", message.rank, message.reason)
            return
        log.warning(
            "the job trains without checkpoints, because rank %s has no room for them: %s", message.rank, message.reason
        )
        self._cadence.stop("off: there is no room for slots")

    def on_node_lost(self, node: NodeId) -> None:
        """What it had not persisted, it never will."""
        for course in list(self._ways.values()):
            owed = [rank for rank, place in course.places.items() if place == node and rank not in course.receipts]
            if owed and course.checkpoint in self._persisting:
                self._give_up(course, f"{node} was lost before rank {owed[0]} was durable")

    def on_recovery(self, recovery: Recovery) -> None:
        healed = recovery.decision in (Decision.REDO, Decision.FINISH)
        self._cadence.recovered(len(recovery.failures), healed=healed)

    def tick(self, now: float, version: int) -> None:
        if self._cadence.every.off:
            return
        training = self._machine().phase is JobPhase.RUNNING
        persisting = bool(self._persisting)
        self._spread(self._cadence.tick(now, version, training=training, persisting=persisting))

    # ── when ─────────────────────────────────────────────────────────────────────────────────────────────

    def brief(self, workers: Iterable[WorkerId]) -> None:
        """Tell newcomers, and those who go on after a recovery, when to take checkpoints."""
        if not self._cadence.every.off:
            standing = self._cadence.standing
            self._tell(workers, replace(standing, soon=True) if self._hurries else standing)

    @property
    def _hurries(self) -> bool:
        """Somebody waits for a checkpoint that nobody has taken yet."""
        return bool(self._saving) and not self._fresh.is_set()

    def _ask_again(self) -> None:
        self._spread(self._cadence.ask(asyncio.get_running_loop().time()))

    def _spread(self, schedule: Schedule | None) -> None:
        if schedule is not None:
            if self._hurries:
                schedule = replace(schedule, soon=True)
            self._tell(self._machine().members.seated(), schedule)

    def _tell(self, workers: Iterable[WorkerId], schedule: Schedule) -> None:
        nodes: defaultdict[NodeId, list[WorkerId]] = defaultdict(list)
        for worker in workers:
            if (record := self._machine().members.workers.get(worker)) is not None:
                nodes[record.node].append(worker)
        for node, those in nodes.items():
            self._send(node, Tell(tuple(those), schedule))

    # ── to storage ───────────────────────────────────────────────────────────────────────────────────────

    def _course(self, checkpoint: Checkpoint) -> _Course:
        if checkpoint not in self._ways:
            self._ways[checkpoint] = _Course(checkpoint, self._cadence.steps, self._cadence.why)
        return self._ways[checkpoint]

    def _on_sealed(self, event: Sealed) -> None:
        checkpoint, known = event.checkpoint, self._machine().checkpoints
        if checkpoint in known.persisted or (self._sealed is not None and checkpoint.age <= self._sealed.age):
            return  # told again, or overtaken
        course = self._course(checkpoint)
        course.seals[event.rank] = event
        if checkpoint not in known.complete():
            return
        self._sealed, course.sealed_s, course.ordered_s = checkpoint, time.time(), time.monotonic()
        for older in [other for other in self._ways.values() if other.checkpoint.age < checkpoint.age]:
            if older.checkpoint not in self._persisting:
                self._close(older)
        self._order(course)

    def _order(self, course: _Course) -> None:
        checkpoint = course.checkpoint
        for rank, held in self._machine().checkpoints.sealed.items():
            course.places[rank] = next(each.node for each in held if each.checkpoint == checkpoint)
        self._persisting.add(checkpoint)
        self._idle.clear()
        for node in self._machine().members.nodes:
            ranks = tuple(rank for rank, place in course.places.items() if place == node)
            self._send(node, Persist(checkpoint, ranks))

    def _begin(self, course: _Course) -> None:
        """On the loop, so that one checkpoint is committed after the other."""
        task = asyncio.get_running_loop().create_task(self._commit(course))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _commit(self, course: _Course) -> None:
        assert self._store is not None
        checkpoint, coordinates = course.checkpoint, dict(self._machine().members.coordinates)
        async with self._one_at_a_time:
            try:
                receipts = list(course.receipts.values())
                await asyncio.to_thread(commit, self._store, checkpoint, receipts, coordinates, time.time())
            except (CheckpointError, OSError) as error:
                self._give_up(course, str(error))
                return
            self._on_committed(course)
            try:
                needed = self._machine().checkpoints.persisted[-LEAST:]
                keep = partial(retire, self._store, checkpoint, self._plan.keep, self._plan.keep_every, needed)
                await asyncio.to_thread(keep)
                await asyncio.to_thread(purge, self._store)
            except (CheckpointError, OSError) as error:
                log.warning("old checkpoints are not removed: %s", error)

    def _on_committed(self, course: _Course) -> None:
        now, checkpoint = time.time(), course.checkpoint
        record = course.record(Fate.COMMITTED, "", now)
        log.info("the checkpoint of step %d is committed: %s", checkpoint.step, _cost(record))
        self._committed = checkpoint, now
        self._error = ""
        if course.begun_s >= self._save_since:
            self._fresh.set()
        self._end(course, record)
        self._take(Persisted(checkpoint))
        self._spread(self._cadence.committed(checkpoint.step, course.k0_s, record.k1_s or 0.0))

    def _give_up(self, course: _Course, reason: str) -> None:
        if course.checkpoint not in self._persisting:
            return
        self._error = f"step {course.checkpoint.step}: {reason}"
        log.warning("the checkpoint of step %d stays in memory: %s", course.checkpoint.step, reason)
        self._end(course, course.record(Fate.SEALED, reason))

    def _close(self, course: _Course) -> None:
        """It never was complete."""
        if course.seals:
            missing = sorted(set(map(Rank, range(self._machine().config.ranks))) - set(course.seals))
            who = f"rank {missing[0]} has not sealed it" if missing else "a slot of it was used again"
            why = "; ".join(sorted(set(course.skips.values())))
            self._end(course, course.record(Fate.INCOMPLETE, f"{who}: {why}" if why else who))
        else:
            self._end(course, course.record(Fate.SKIPPED, "; ".join(sorted(set(course.skips.values())))))

    def _end(self, course: _Course, record: CheckpointRecord) -> None:
        self._ways.pop(course.checkpoint, None)
        self._persisting.discard(course.checkpoint)
        if not self._persisting:
            self._idle.set()
        if self._owed and self._hurries:
            self._owed = False
            self._ask_again()
        append_line(self._records, encode(record))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def under_way(self) -> list[int]:
        """Steps of the checkpoints that are on their way to storage."""
        return sorted(checkpoint.step for checkpoint in self._persisting)

    async def save(self, limit_s: float) -> bool:
        """Take one now, or as soon as a recovery is over; whether it is committed within the limit."""
        if self._cadence.every.off or self._machine().phase not in (*TRAINING, *RECOVERING):
            return False
        self._save_since = time.monotonic()
        self._fresh.clear()
        self._saving += 1
        self._spread(self._cadence.ask(asyncio.get_running_loop().time()))
        try:
            await asyncio.wait_for(self._fresh.wait(), limit_s)
        except TimeoutError:
            return False
        finally:
            self._saving -= 1
        return True

    async def finish(self, limit_s: float) -> None:
        """Wait for what is on its way to storage; then write down the fate of all that is left."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        for course in list(self._ways.values()):
            if course.checkpoint in self._persisting:
                self._give_up(course, f"storage did not take it within {limit_s:g} s of the end of the job")
            else:
                self._close(course)

    # ── for people ───────────────────────────────────────────────────────────────────────────────────────

    def status(self) -> dict[str, Any]:
        committed: dict[str, Any] | None = None
        if self._committed is not None:
            checkpoint, at_s = self._committed
            committed = _named(checkpoint) | {"age_s": round(time.time() - at_s, 3)}
        newest_skip = max(self._skipped, default=-1)
        return {
            "directory": self._plan.directory,
            "every": self._cadence.steps,
            "why": self._cadence.why,
            "sealed": None if self._sealed is None else _named(self._sealed),
            "committed": committed,
            "persisting": self.under_way,
            "skipped": len(self._skipped),
            "busy": newest_skip > (self._sealed.step if self._sealed is not None else -1),
            "error": self._error,
        }


def _named(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"step": checkpoint.step, "generation": checkpoint.generation, "attempt": checkpoint.attempt}


def _cost(record: CheckpointRecord) -> str:
    return f"{record.bytes} bytes, k0 {record.k0_s:.3f} s, k1 {record.k1_s or 0.0:.3f} s"
