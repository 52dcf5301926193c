"""From what agents see to verdicts: who is out of reach, frozen or hung, and when nobody can go on any more.

    node      no heartbeat for `missed` periods
    frozen    no heartbeat of the process, no move and no CPU time for `frozen_s`: SIGSTOP, D state, a held GIL. In
              every phase, once the process has beaten: before init() it has no thread that could
    hang      somebody waits for it in a collective, and it has stood still for longer than max(floor, factor ×
              typical). Only between resume and pause; not who waits itself, and not who has left the loop
    overdue   a recovery waits for its answer, and it has stood still for longer than that limit since it was asked
    stalled   all wait, or have left the loop, and nobody moves

Nobody is judged for what was not seen: `watch` says how stillness is counted. A worker gets one verdict at most.
The host tells it where the job is: `resume` when the machine comes to train, `pause` when it stops doing so, because
in a recovery healthy workers stand still by order. It starts paused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice

from everstep.core.events import Cause, NodeLost, Position, Stalled, Verdict
from everstep.core.watch import DetectorConfig, Limit, Sighting, Watch
from everstep.errors import ConfigError
from everstep.types import Generation, NodeId, Rank, Step, WorkerId, WorkerPhase

__all__ = ["Detector", "DetectorConfig", "Finding", "Sighting"]

Finding = Verdict | NodeLost | Stalled

NAMED = 4  # ranks in a sentence, before "and n more"
WAITED_SHARE = 0.5
"""Of its limit: so long somebody has to have waited for a rank that hangs. When all take longer than ever (a page
cache that went cold), the first to arrive would else accuse all others at once. It costs no time otherwise: peers
arrive after a typical time, and the limit is five of them."""


@dataclass(slots=True)
class _Node:
    heard_at: float
    workers: set[WorkerId] = field(default_factory=set)


class Detector:
    """Observations in, events for the machine out. Costs are linear in what is observed, never in the job."""

    def __init__(self, ranks: int, config: DetectorConfig | None = None) -> None:
        if ranks < 1:
            raise ConfigError(f"ranks is {ranks!r}: it must be at least 1")
        self.config = config or DetectorConfig()
        self._ranks = ranks
        self._nodes: dict[NodeId, _Node] = {}
        self._watches: dict[WorkerId, Watch] = {}
        self._gone: set[WorkerId] = set()  # ids are never used again, so a late look at one means nothing
        self._judged: dict[WorkerId, Rank] = {}
        self._allowance: dict[Rank, float] = {}
        # Who waits in which step of which generation, the longest first. Live versions differ by at most one (I2),
        # so there are two entries or three.
        self._waits: dict[tuple[Generation, int], dict[WorkerId, None]] = {}
        self._at_the_end: dict[WorkerId, None] = {}
        """Who waits there for all others to leave the loop too, the longest first."""
        self._training = self._left = self._waiting = 0
        self._active = False
        self._owed: dict[WorkerId, float] = {}
        """Who owes an answer in a recovery, and since when."""
        self._epoch = 0
        self._began = Step(0)
        self._checked_at: float | None = None
        self._moved_at = 0.0
        self._scan_at = 0.0
        self._stalled: tuple[Generation, int, int] | None = None

    # ── what the host says ───────────────────────────────────────────────────────────────────────────────

    def resume(self, now: float, began: Step) -> None:
        """The job trains. Who stood still until now was told to, so stillness counts from here. Who held no state
        before has begun with the step ``began``. May be repeated."""
        self._began = began
        if not self._active:
            self._active = True
            self._epoch += 1
            self._moved_at = now

    def pause(self) -> None:
        """The job starts, recovers or ends: only nodes and frozen workers are judged. May be repeated."""
        self._active = False

    def expect(self, workers: Collection[WorkerId], now: float) -> None:
        """A recovery waits for these to park, or to finish their update. May be repeated; nobody: it does not wait."""
        self._owed = {worker: self._owed.get(worker, now) for worker in workers}

    def excuse(self, worker: WorkerId) -> None:
        """It reported a broken collective and stands by until the next resume, so it is not hung."""
        if worker in self._watches:
            self._watches[worker].excuse(self._epoch)

    def forget(self, worker: WorkerId) -> None:
        """It is gone. Late looks at it mean nothing."""
        self._gone.add(worker)
        watch = self._watches.pop(worker, None)
        if watch is not None:
            self._count(watch.seen, None)
            self._nodes[watch.node].workers.discard(worker)

    def node_gone(self, node: NodeId) -> tuple[tuple[WorkerId, Position], ...]:
        """It is out of reach, and with it all that ran there; where its workers were last seen."""
        if node not in self._nodes:
            return ()
        workers = sorted(self._nodes[node].workers)
        where = tuple((worker, self._watches[worker].seen.position) for worker in workers)
        for worker in workers:
            self.forget(worker)
        del self._nodes[node]
        return where

    def false_alarm(self, worker: WorkerId) -> None:
        """It had moved on after its verdict. What made it slow (its shard of the data, its machine) waits for its
        replacement too, so the patience is with the rank. Before or after `forget`; counts once."""
        rank = self._judged.pop(worker, None)
        if rank is not None:
            self._allowance[rank] = self._allowed(rank) * self.config.widen

    # ── what the agents see ──────────────────────────────────────────────────────────────────────────────

    def observe(self, node: NodeId, sightings: Iterable[Sighting], now: float) -> list[Finding]:
        """A heartbeat. It need not name every worker every time, but those that have not changed too, and well
        within ``gap_s``: to stand still is what is looked for, and who is not named is not judged. An empty one
        shows that the node lives."""
        record = self._nodes.setdefault(node, _Node(now))
        record.heard_at = now
        # First all looks, then all judgements: nobody is accused by a neighbour's state of one look ago.
        watches = [self._look(node, record, new, now) for new in sightings if new.worker not in self._gone]
        findings: list[Finding] = []
        for watch in watches:
            if watch.seen.worker in self._gone:
                continue  # named twice, and judged already
            verdict = self._judge_frozen(watch) or self._judge_hang(watch) or self._judge_overdue(watch, now)
            if verdict is not None:
                if watch.seen.rank is not None:
                    self._judged[verdict.worker] = watch.seen.rank
                self.forget(verdict.worker)
                findings.append(verdict)
        return findings

    def check(self, now: float) -> list[Finding]:
        """To be called at least once per heartbeat: judge what is seen by nothing being heard."""
        findings: list[Finding] = [*self._judge_nodes(now)]
        stalled = self._judge_stall(now)
        if stalled is not None:
            findings.append(stalled)
        return findings

    def _look(self, node: NodeId, record: _Node, new: Sighting, now: float) -> Watch:
        watch = self._watches.get(new.worker)
        self._count(watch.seen if watch else None, new)
        if watch is None:
            watch = self._watches[new.worker] = Watch(self.config, node, new, self._began)
            record.workers.add(new.worker)
        if watch.look(new, self._epoch, self._began, training=self._active) and new.training:
            self._moved_at, self._scan_at = now, 0.0
        return watch

    def _count(self, old: Sighting | None, new: Sighting | None) -> None:
        """Keep the counts that the rules ask for. Who has not moved keeps its place among those that wait."""
        for seen, sign in ((old, -1), (new, +1)):
            if seen is not None:
                self._training += sign * seen.training
                self._left += sign * seen.left
                self._waiting += sign * seen.waits
        if new and new.waits_at_the_end:
            self._at_the_end.setdefault(new.worker)
        elif old:
            self._at_the_end.pop(old.worker, None)
        if old and new and (old.moves, old.awaits) == (new.moves, new.awaits):
            return
        if old and old.awaits:
            waiters = self._waits[old.awaits]
            del waiters[old.worker]
            if not waiters:
                del self._waits[old.awaits]
        if new and new.awaits:
            self._waits.setdefault(new.awaits, {})[new.worker] = None

    def _allowed(self, rank: Rank | None) -> float:
        return 1.0 if rank is None else self._allowance.get(rank, 1.0)

    # ── the rules ────────────────────────────────────────────────────────────────────────────────────────

    def _judge_nodes(self, now: float) -> Iterable[NodeLost]:
        """Time in which the controller itself did not run is no silence: heartbeats lie unread in its sockets."""
        config = self.config
        away_s = 0.0 if self._checked_at is None else max(0.0, now - self._checked_at - config.heartbeat_s)
        self._checked_at = now
        for node, record in list(self._nodes.items()):
            record.heard_at = min(now, record.heard_at + away_s)
            silent_s = now - record.heard_at
            if silent_s >= config.missed * config.heartbeat_s:
                where = self.node_gone(node)
                limit = f"{config.missed} × {config.heartbeat_s:g} s"
                yield NodeLost(node, f"no heartbeat for {silent_s:.1f} s (limit {limit})", silent_s, where)

    def _judge_frozen(self, watch: Watch) -> Verdict | None:
        seen = watch.seen
        limit_s = self.config.frozen_s * self._allowed(seen.rank)
        if not seen.pulse or watch.quiet_s < limit_s:
            return None
        evidence = (
            f"no sign of life for {watch.quiet_s:.1f} s in {seen.place} (limit {limit_s:g} s): "
            f"heartbeat stands at {seen.pulse}, CPU time at {seen.cpu_s:.2f} s"
        )
        return Verdict(seen.worker, Cause.FROZEN, evidence, seen.position, quiet_s=watch.quiet_s)

    def _judge_hang(self, watch: Watch) -> Verdict | None:
        seen = watch.seen
        waits = seen.waits and seen.phase is not WorkerPhase.READY
        exempt = not seen.training or waits or seen.left or watch.excused
        if not self._active or exempt or watch.still_s <= self.config.hang_floor_s:
            return None
        if seen.pulse and watch.quiet_s >= self.config.frozen_s / 2:
            return None  # it shows no life at all: the frozen rule will say so, and say it better
        limit = watch.limit(self._allowed(seen.rank))
        waiters = self._waiting_for(seen)
        waited_s = self._waited_s(waiters)
        if watch.still_s <= limit.seconds or waited_s < WAITED_SHARE * limit.seconds:
            return None
        evidence = (
            f"has not moved for {watch.still_s:.1f} s in {seen.place} "
            f"(limit {limit.seconds:.1f} s: {limit.reason}; typical {watch.typical_s(waits=False):.2f} s), "
            f"while {self._name(waiters)} since {waited_s:.1f} s"
        )
        return Verdict(seen.worker, Cause.HANG, evidence, seen.position, quiet_s=watch.still_s)

    def _judge_overdue(self, watch: Watch, now: float) -> Verdict | None:
        """Newcomers run the script, which may take long; the machine has a limit for that."""
        seen = watch.seen
        since = self._owed.get(seen.worker)
        if since is None or not seen.training or seen.left:
            return None
        limit = watch.limit(self._allowed(seen.rank))
        still_s = min(watch.still_s, now - since)
        if still_s <= limit.seconds:
            return None
        evidence = (
            f"has not moved for {still_s:.1f} s in {seen.place} (limit {limit.seconds:.1f} s: {limit.reason}), "
            "while a recovery waits for it"
        )
        return Verdict(seen.worker, Cause.HANG, evidence, seen.position, quiet_s=watch.still_s)

    def _waiting_for(self, seen: Sighting) -> dict[WorkerId, None]:
        """Who cannot go on without this one: in its step, in a later one that it has yet to come to, or at the end.
        Who is in the barrier of a step holds up nobody there, but it does when others have passed that barrier."""
        least = seen.version + (seen.phase is WorkerPhase.READY)
        ahead = [key for key in self._waits if key[0] == seen.generation and key[1] >= least]
        if ahead:
            return self._waits[min(ahead)]
        return {worker: None for worker in self._at_the_end if self._watches[worker].seen.version >= least}

    def _waited_s(self, waiters: dict[WorkerId, None]) -> float:
        longest = next((self._watches[worker] for worker in waiters), None)
        return longest.still_s if longest is not None and longest.current(self._epoch) else 0.0

    def _judge_stall(self, now: float) -> Stalled | None:
        all_rest = self._training == self._waiting + self._left == self._ranks
        if not (self._active and self._waiting and all_rest):
            return None
        if now < max(self._scan_at, self._moved_at + self.config.stall_s):
            return None
        # Nobody was seen to move for long, which is rare; so it may cost a look at everybody.
        waiters = [watch for watch in self._watches.values() if watch.seen.waits]
        limit = max(Limit(self.config.stall_s, "the least"), *map(self._limit, waiters))
        still_s = min(watch.still_s if watch.current(self._epoch) else 0.0 for watch in waiters)
        self._scan_at = now + max(limit.seconds - still_s, 0.0)
        last = min((watch.seen for watch in waiters), key=lambda seen: seen.version)
        key = (last.generation, last.version, last.attempt)
        together = len({watch.seen.generation for watch in waiters}) == 1
        if still_s <= limit.seconds or not together or key == self._stalled:
            return None
        self._stalled = key
        duration = f"nobody has moved for {still_s:.1f} s (limit {limit.seconds:.1f} s: {limit.reason})"
        return Stalled(last.generation, f"{self._standstill()}; {duration}", still_s)

    def _limit(self, watch: Watch) -> Limit:
        return watch.limit(self._allowed(watch.seen.rank))

    # ── sentences ────────────────────────────────────────────────────────────────────────────────────────

    def _standstill(self) -> str:
        """Who waits where, and who will never come because it has left the loop."""
        waits = ", ".join(self._name(waiters) for waiters in self._waits.values())
        last = max(version for _, version in self._waits)
        left: dict[int, dict[WorkerId, None]] = defaultdict(dict)
        for worker, watch in self._watches.items():
            if watch.seen.left and watch.seen.version <= last:
                left[watch.seen.version][worker] = None
        if not left:
            return waits
        leavers = ", ".join(
            f"{self._ranks_of(workers)} left the loop at step {version}" for version, workers in sorted(left.items())
        )
        return f"{leavers} while {waits}"

    def _name(self, waiters: dict[WorkerId, None]) -> str:
        """All of one step, or of the end."""
        seen = self._watches[next(iter(waiters))].seen
        if seen.left:
            return f"{self._ranks_of(waiters)} {'have' if len(waiters) > 1 else 'has'} left the loop"
        return f"{self._ranks_of(waiters)} {'wait' if len(waiters) > 1 else 'waits'} in step {seen.version}"

    def _ranks_of(self, workers: dict[WorkerId, None]) -> str:
        ranks = sorted(self._watches[worker].seen.rank or 0 for worker in islice(workers, NAMED))
        names = ", ".join(map(str, ranks))
        more = f" and {len(workers) - NAMED} more" if len(workers) > NAMED else ""
        return f"rank{'s' if len(workers) > 1 else ''} {names}{more}"
