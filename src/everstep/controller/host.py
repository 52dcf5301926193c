"""The host of the core: sockets and timers in, events to the machine, effects out. Decides nothing about the job.

Every event is in the journal before its effects leave, so a controller that is killed comes back with the same
machine; what it had not sent any more it sends again when the agents say hello.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress

from everstep.chaos.spec import Action as FaultAction
from everstep.chaos.spec import parse
from everstep.chaos.strikes import Strikes, of_job
from everstep.controller.cadence import AUTO, OFF
from everstep.controller.checkpoints import Checkpointer
from everstep.controller.ending import Ending
from everstep.controller.job import Address, Job, RunDir
from everstep.controller.journal import Journal
from everstep.controller.meetings import Meetings
from everstep.controller.outlook import Outlook
from everstep.controller.replay import handle, walk
from everstep.controller.standstill import Standstill
from everstep.controller.status import progress, status
from everstep.controller.web.live import LivePage
from everstep.core.config import JobConfig
from everstep.core.detector import Detector
from everstep.core.effects import Arm, ArmReturn, Assign, Effect, End, Kill, Note, Resume, Role, Send, Spawn
from everstep.core.events import (
    Absent,
    Broken,
    Deadline,
    DeviceSick,
    Event,
    Exited,
    Interrupted,
    NodeJoined,
    NodeLost,
    Restarted,
    Stalled,
    Verdict,
)
from everstep.core.machine import ANSWERING, EXIT_FAILED, TRAINING, Machine
from everstep.core.watch import Sighting
from everstep.errors import ConfigError, EverstepError, WireError
from everstep.observe.digests import DigestRecord, encode
from everstep.observe.ledger import Ledger
from everstep.observe.lines import append_line
from everstep.observe.log import RecoveryLog
from everstep.observe.progress import Progress
from everstep.types import NodeId, WorkerId
from everstep.wire.channel import Channel
from everstep.wire.codec import Codec
from everstep.wire.messages import (
    AgentHello,
    Ask,
    AskStacks,
    AskTime,
    Beat,
    Bye,
    Deliver,
    Done,
    Durations,
    Fence,
    FromController,
    Inject,
    Interrupt,
    Keep,
    Leaving,
    NoSlots,
    Notice,
    Publish,
    Receipt,
    Report,
    Sick,
    Skipped,
    Stack,
    Start,
    StateDigest,
    Status,
    Tell,
    Time,
    ToController,
    Welcome,
)
from everstep.wire.server import Server, serve
from everstep.wire.terms import Terms

log = logging.getLogger(__name__)

Link = Channel[FromController, ToController]

TICK_S = 0.25
"""How often the detector looks for what did not happen."""

FAREWELL_S = 10.0
"""How long agents have to end their workers once the job is over."""

SHOWN_FAILURES = 20

CHAOS_PACE_S = 0.5
"""Without a delay, a controller that is to be killed lives for so long."""


class Host:
    """One job, from the first agent to the last."""

    def __init__(self, run: RunDir, job: Job) -> None:
        self._run = run
        self._job = job
        self._loop = asyncio.get_running_loop()
        self._links: dict[NodeId, Link] = {}
        self._sightings: dict[WorkerId, Sighting] = {}
        self._judged: dict[WorkerId, int] = {}
        """The board's counter when the detector judged a worker: did it move before the kill?"""
        self._failures: deque[tuple[float, str]] = deque(maxlen=SHOWN_FAILURES)
        self._pending: deque[Event] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._end: End | None = None
        self._over: asyncio.Future[End] = self._loop.create_future()
        self._empty = asyncio.Event()
        self._detector = Detector(job.config.ranks)
        self._meetings = Meetings(run.memories)
        self._recoveries = RecoveryLog(run.recoveries)
        self._checkpoints = Checkpointer(
            job.checkpoints, job.config.ranks, run.checkpoints, lambda: self._machine, self._to, self.take
        )
        self._standstill = Standstill(run.path, self._ask_stacks, self.take)
        self._ending = Ending(self._checkpoints, job.checkpoints.grace_s, lambda: self._machine, self._to, self.take)
        self._progress = Progress(time.time())
        self._machine, self._journal, self._effects = self._open_journal()
        ledger = Ledger(run.recoveries, run.checkpoints)
        self.outlook = Outlook(job.name, self._machine, self._progress, ledger, self.status)

    def _open_journal(self) -> tuple[Machine, Journal, list[Effect]]:
        """A new job, or the one that the journal tells of."""
        if not self._run.journal.exists():
            machine = Machine(self._job.config)
            return machine, Journal.create(self._run.journal, self._job.config), machine.start()
        journal, records = Journal.reopen(self._run.journal)
        machine = Machine(self._job.config)
        self._progress = Progress(records[0].time_s)
        for record, machine, effects in walk(records):
            self._remember(record.time_s, machine, effects)
            if not isinstance(record.entry, JobConfig):
                self._checkpoints.remember(record.entry, record.time_s)
                self._record(record.entry, machine, effects, record.time_s)
        log.info(
            "restarted in %s of generation %s, from %d events", machine.phase.name, machine.generation, len(records)
        )
        self._pending.append(Restarted())
        return machine, journal, []

    # ── the life of a job ────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> int:
        """Serve until the job is over; the exit code."""
        async with await self._listen() as server:
            assert not isinstance(server.address, os.PathLike)
            self._run.publish(Address(*server.address, os.getpid()))
            self._carry_out(self._effects)
            self._work_off()
            self._plan_chaos()
            ticker = self._loop.create_task(self._tick())
            page = LivePage(self._run, self._job, self.outlook)
            page.begin()
            for number in (signal.SIGINT, signal.SIGHUP):
                self._loop.add_signal_handler(number, self.take, Interrupted())
            self._loop.add_signal_handler(signal.SIGTERM, self._ending.preempt)
            try:
                end = await self._over
            finally:
                ticker.cancel()
            page.end()
            await self._farewell(end)
            await page.close()
        return end.code

    async def _listen(self) -> Server[FromController, ToController]:
        """Where it was before a restart; if somebody else has that port by now, where the job wants it."""
        if (former := self._run.address()) is not None:
            with suppress(ConfigError):
                return await self._serve_at(former.port)
        return await self._serve_at(self._job.port)

    async def _serve_at(self, port: int) -> Server[FromController, ToController]:
        return await serve((self._job.host, port), self._terms(), self._on_connection)

    def _terms(self) -> Terms[FromController, ToController]:
        return Terms(Codec(FromController), Codec(ToController), self._run.read_token())

    async def _farewell(self, end: End) -> None:
        """What is on its way to storage arrives; agents end their workers, then their connections."""
        await self._ending.wait_for_storage(end)
        self._run.finish(end.code, end.reason)
        for link in self._links.values():
            link.send(Bye(end.code, end.reason))
        if self._links:
            try:
                await asyncio.wait_for(self._empty.wait(), FAREWELL_S)
            except TimeoutError:
                log.warning("agents %s did not end in %.0f s", sorted(self._links), FAREWELL_S)

    # ── events and effects ───────────────────────────────────────────────────────────────────────────────

    def take(self, event: Event) -> None:
        """Hand an event to the machine; what it asks for may bring further events, which wait for their turn."""
        self._pending.append(event)
        if len(self._pending) == 1:
            self._work_off()

    def _work_off(self) -> None:
        """An error in here is a bug of ours. The controller ends with it, and is started again from the journal."""
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  it is raised again where the controller waits for the end
            if not self._over.done():
                self._over.set_exception(error)

    def _work(self) -> None:
        while self._pending:
            event = self._pending[0]
            time_s = self._journal.append(event)
            failures = self._machine.failures
            effects = handle(self._machine, event)
            if self._machine.failures > failures:
                self._failures.append((time.time(), self._machine.last_failure))
            self._watch_for(event)
            self._carry_out(effects)
            self._checkpoints.on_event(event)
            self._record(event, self._machine, effects, time_s)
            self._pending.popleft()

    def _remember(self, time_s: float, machine: Machine, effects: list[Effect]) -> None:
        """What a status shows and no machine keeps, from the journal."""
        if machine.failures and (not self._failures or self._failures[-1][1] != machine.last_failure):
            self._failures.append((time_s, machine.last_failure))
        for effect in effects:
            if isinstance(effect, End):
                self._finish(effect)

    def _record(self, event: Event, machine: Machine, effects: list[Effect], time_s: float) -> None:
        self._progress.take(event, machine, time_s)
        if (recovery := self._recoveries.take(event, machine, effects, time_s)) is not None:
            log.info("%s", recovery.sentence)
            self._checkpoints.on_recovery(recovery)

    def _watch_for(self, event: Event) -> None:
        """Keep the detector informed."""
        if isinstance(event, Exited):
            self._sightings.pop(event.worker, None)
            self._judged.pop(event.worker, None)
            if event.moved:
                self._detector.false_alarm(event.worker)
            self._detector.forget(event.worker)
        elif isinstance(event, Broken):
            self._detector.excuse(event.worker)
        machine, now = self._machine, self._loop.time()
        if machine.phase in TRAINING or not machine.members.coordinates:
            self._detector.resume(now, machine.target)
        else:
            self._detector.pause()
        self._detector.expect(machine.awaiting if machine.phase in ANSWERING else (), now)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Spawn):
                self._to(effect.node, Start(effect.worker, effect.rank, effect.device))
            elif isinstance(effect, Kill):
                self._to(effect.node, Fence(effect.worker, self._judged.get(effect.worker, -1)))
            elif isinstance(effect, Arm):
                self._arm(effect.delay_s, Deadline(effect.generation, effect.phase))
            elif isinstance(effect, ArmReturn):
                self._loop.call_later(effect.delay_s, self.take, Absent())
            elif isinstance(effect, Note):
                log.info("%s", effect.text)
            else:
                self._finish(effect)

    def _send(self, effect: Send) -> None:
        joins = isinstance(effect.command, Assign) and effect.command.role is Role.JOINER
        for node, workers in self._by_node(effect.to).items():
            if joins:
                self._to(node, Tell(tuple(workers), self._meetings.memories))
            self._to(node, Deliver(tuple(workers), effect.command))
        if isinstance(effect.command, Assign | Resume):
            self._checkpoints.brief(effect.to)

    def _by_node(self, workers: tuple[WorkerId, ...]) -> dict[NodeId, list[WorkerId]]:
        groups: dict[NodeId, list[WorkerId]] = defaultdict(list)
        for worker in workers:
            record = self._machine.members.workers.get(worker)
            if record is not None:
                groups[record.node].append(worker)
        return groups

    def _to(self, node: NodeId, message: FromController) -> None:
        """To an agent that is away nothing is sent: its hello brings it again."""
        if (link := self._links.get(node)) is not None:
            link.send(message)

    def _arm(self, delay_s: float, event: Deadline) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self.take, event)

    def _finish(self, end: End) -> None:
        if self._end is None:
            self._end = end
            log.log(logging.ERROR if end.code == EXIT_FAILED else logging.INFO, "%s", end.reason)
            self._over.set_result(end)

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────

    async def _on_connection(self, link: Link) -> None:
        first = await link.recv()
        if isinstance(first, AgentHello):
            await self._serve_agent(link, first)
        elif isinstance(first, Ask | Inject | Interrupt):
            await self._serve_client(link, first)
        elif first is not None:
            raise WireError(f"{type(first).__name__} before a hello")

    async def _serve_agent(self, link: Link, hello: AgentHello) -> None:
        node = hello.node
        if (old := self._links.pop(node, None)) is not None:
            old.close(f"{node} has connected again")
            self.take(NodeLost(node, "its agent has connected anew", where=self._detector.node_gone(node)))
        self._links[node] = link
        self._empty.clear()
        link.send(self._welcome())
        if self._end is not None:
            link.send(Bye(self._end.code, self._end.reason))
        self.take(NodeJoined(node, hello.devices, hello.workers))
        evidence = "its agent's connection ended"
        try:
            async for message in link:
                self._on_agent(node, message)
        except EverstepError as error:
            evidence = str(error)
            raise
        finally:
            if self._links.get(node) is link:
                del self._links[node]
                self._lost(node, evidence)

    def _lost(self, node: NodeId, evidence: str) -> None:
        if not self._links:
            self._empty.set()
        self._checkpoints.on_node_lost(node)
        if self._end is None:
            self.take(NodeLost(node, evidence, where=self._detector.node_gone(node)))

    def _welcome(self) -> Welcome:
        job = self._job
        return Welcome(
            job=job.name,
            argv=job.argv,
            cwd=job.cwd,
            env=job.env,
            run_dir=str(self._run.path),
            preload=job.preload,
            zygote=job.zygote,
            ranks=job.config.ranks,
            local_world_size=job.local_world_size,
            lease_s=job.lease_s,
            fence_s=job.fence_s,
            chaos=job.chaos,
            master_addr=job.master_addr,
            master_port=job.master_port,
            checkpoint_dir=job.checkpoints.directory,
            slots=bool(job.checkpoints.directory) and job.checkpoints.every != OFF,
            slots_required=job.checkpoints.every != AUTO,
            attempt=job.checkpoints.attempt,
            grace_s=job.checkpoints.grace_s,
        )

    def _on_agent(self, node: NodeId, message: ToController) -> None:
        if isinstance(message, Report | Notice):
            if isinstance(message.event, Verdict):
                self._judge(message.event)
            self.take(message.event)
        elif isinstance(message, Beat):
            self._sightings.update((sighting.worker, sighting) for sighting in message.sightings)
            self._progress.see(message.sightings, time.time())
            self._found(self._detector.observe(node, message.sightings, self._loop.time()))
        elif isinstance(message, Durations):
            self.outlook.phases.take(node, message.pid, message.counts)
        elif isinstance(message, AskTime):
            self._to(node, Time(message.sent_ns, time.time()))
        elif isinstance(message, Publish | Keep):
            self._hand_on(node, message)
        elif isinstance(message, Sick):
            self.take(DeviceSick(node, message.device, message.evidence))
        elif isinstance(message, Stack):
            self._standstill.on_stack(message)
        elif isinstance(message, StateDigest):
            self._record_digest(message)
        elif isinstance(message, Receipt):
            self._checkpoints.on_receipt(message)
        elif isinstance(message, Skipped):
            self._checkpoints.on_skipped(message)
        elif isinstance(message, NoSlots):
            self._checkpoints.on_no_slots(message)
        elif isinstance(message, Leaving):
            self._ending.part(node)
        else:
            raise WireError(f"{type(message).__name__} is not for an agent to say")

    def _hand_on(self, node: NodeId, message: Publish | Keep) -> None:
        """From a worker that is part of this generation; what an older one says means nothing any more."""
        worker = self._machine.members.workers.get(message.worker)
        if worker is None or message.generation != self._machine.generation:
            return
        if isinstance(message, Keep):
            self._meetings.keep(message)
            return
        for where, tell in self._meetings.publish(node, message):
            self._to(where, tell)

    def _found(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Verdict):
                self._judge(event)
            elif isinstance(event, NodeLost):
                self._hang_up(event)
            if isinstance(event, Stalled):
                self._standstill.look_into(event, self._machine.members.seated())
            else:
                self.take(event)

    def _hang_up(self, lost: NodeLost) -> None:
        """If its agent lives it connects anew, and hears there who of its workers is not wanted any more."""
        if (link := self._links.pop(lost.node, None)) is not None:
            link.close(lost.evidence)
        self._checkpoints.on_node_lost(lost.node)
        if not self._links:
            self._empty.set()

    def _judge(self, verdict: Verdict) -> None:
        if (seen := self._sightings.get(verdict.worker)) is not None:
            self._judged[verdict.worker] = seen.moves

    def _record_digest(self, said: StateDigest) -> None:
        facts = (said.moment, said.generation, said.version, said.rank, said.worker, said.shard, said.digest)
        append_line(self._run.digests, encode(DigestRecord(time.time(), *facts)))

    def _ask_stacks(self, workers: tuple[WorkerId, ...]) -> None:
        for node, here in self._by_node(workers).items():
            self._to(node, AskStacks(tuple(here)))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = self._loop.time()
            self._found(self._detector.check(now))
            version = max((seen.version for seen in self._sightings.values() if seen.rank is not None), default=0)
            self._checkpoints.tick(now, version)

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────

    async def _serve_client(self, link: Link, message: ToController | None) -> None:
        while message is not None:
            if isinstance(message, Ask):
                link.send(Status(json.dumps(self.status())))
            elif isinstance(message, Inject):
                link.send(Done(self._inject(message)))
            elif isinstance(message, Interrupt):
                link.send(Done())
                if message.save:
                    self._ending.preempt()
                else:
                    self.take(Interrupted())
            else:
                raise WireError(f"{type(message).__name__} is not for a client to say")
            message = await link.recv()

    def status(self) -> dict[str, object]:
        reason = self._end.reason if self._end else ""
        failures = list(self._failures)
        shown = status(self._job.name, self._machine, self._sightings, failures, self._recoveries, reason)
        progressed = progress(self._progress, time.time())
        return shown | {"checkpoints": self._checkpoints.status(), "progress": progressed}

    def _plan_chaos(self) -> None:
        """The faults of the job that are the controller's own; the others are for agents and workers."""
        for fault, strikes in of_job(map(parse, self._job.chaos), self._run.path):
            if fault.action is FaultAction.CONTROLLER_KILL:
                self._loop.call_later(fault.delay_s or CHAOS_PACE_S, self._strike, strikes)

    def _strike(self, strikes: Strikes) -> None:
        if strikes.claim():
            _die()

    def _inject(self, message: Inject) -> str:
        """Pass a fault on to whom it is for; an empty answer means that it is under way."""
        try:
            fault = parse(message.spec)
        except ConfigError as error:
            return str(error)
        if fault.action is FaultAction.CONTROLLER_KILL:
            self._loop.call_later(fault.delay_s, _die)
            return ""
        nodes: list[NodeId] = list(self._links)
        if fault.node:
            nodes = [NodeId(fault.node)]
        elif fault.rank is not None:
            worker = self._machine.members.seats.get(fault.rank)
            if worker is None:
                return f"nobody has rank {fault.rank} now"
            nodes = [self._machine.members.workers[worker].node]
        unknown = [node for node in nodes if node not in self._links]
        if unknown or not nodes:
            return f"no agent is connected for {', '.join(unknown) or 'any node'}"
        for node in nodes:
            self._to(node, message)
        return ""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def host(run: RunDir) -> int:
    """Run the controller of a run directory to its end."""
    return await Host(run, run.read_job()).run()
