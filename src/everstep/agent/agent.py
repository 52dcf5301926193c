"""The agent of a node: hears the controller, has a crew of workers, watches them and the devices.

It outlives the controller, not its lease: away from it for longer than ``lease_s`` it ends its workers, because by
then others have their ranks. Whatever it started ends with it, however it ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

from everstep.agent.console import Console
from everstep.agent.crew import Crew
from everstep.agent.devices import DeviceWatch, open_devices
from everstep.agent.faults import Faults
from everstep.agent.shm import sweep_stale
from everstep.agent.uplink import Link, Uplink
from everstep.agent.watch import Watch
from everstep.core.events import FenceFailed, Sealed
from everstep.errors import AuthError, ConfigError, ResourceError, WireError
from everstep.types import NodeId
from everstep.wire.auth import Token
from everstep.wire.messages import (
    AgentHello,
    AskStacks,
    Beat,
    Bye,
    Deliver,
    Fence,
    FromController,
    Inject,
    Leaving,
    Notice,
    Persist,
    Sick,
    Start,
    Tell,
    Time,
    ToController,
    Welcome,
)

log = logging.getLogger(__name__)

P = ParamSpec("P")

EXIT_FAILED, EXIT_USAGE = 1, 2
WELCOME_S = 10.0
PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What an agent has to know before a controller tells it the rest."""

    node: NodeId
    controller: tuple[str, int] | None = None
    run_dir: Path | None = None
    """Where the address of the controller is looked up each time, if it is written there."""
    devices: str = ""
    """As `open_devices` reads it; empty: what this machine has."""
    token: Token | None = None
    patience_s: float = PATIENCE_S
    """For a controller to be there, at first or again."""

    def __post_init__(self) -> None:
        if self.controller is None and self.run_dir is None:
            raise ConfigError("an agent needs to know where the controller is: --controller HOST:PORT or --run-dir DIR")


def run_agent(config: AgentConfig, show: Callable[[str], None] | None = None) -> int:
    """Serve a job to its end; the exit code. ``show`` gets the output of the workers, line by line, prefixed."""
    console = None
    if show is None:
        console = Console(sys.stdout)
        show = console.show
    try:
        return asyncio.run(_run(config, show))
    except (ConfigError, AuthError, ResourceError) as error:
        log.error("%s", error)
        return EXIT_USAGE
    finally:
        if console is not None:
            console.close()


async def _run(config: AgentConfig, show: Callable[[str], None]) -> int:
    return await Agent(config, show).run()


class Agent:
    """Made inside the event loop."""

    def __init__(self, config: AgentConfig, show: Callable[[str], None]) -> None:
        self._config = config
        self._show = show
        self._loop = asyncio.get_running_loop()
        self._plugin = open_devices(config.devices)
        self._devices = self._plugin.devices()
        self._sick: dict[str, str] = {}
        self._uplink = Uplink(config.controller, config.run_dir, config.token, config.patience_s)
        self._link: Link | None = None
        self._lease: asyncio.TimerHandle | None = None
        self._lease_s = 0.0
        self._stay_s = 0.0
        """For a last checkpoint, when this node has to go."""
        self._leaving = False
        self._job = ""
        self._crew: Crew | None = None
        self._faults: Faults | None = None
        self._watching: asyncio.Task[None] | None = None
        self._over: asyncio.Future[int] = self._loop.create_future()

    # ── the life of an agent ─────────────────────────────────────────────────────────────────────────────

    async def run(self) -> int:
        for path in sweep_stale():
            log.info("removed %s, whose agent has died", path)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._loop.add_signal_handler(number, self._on_signal, number)
        devices = DeviceWatch(self._plugin, self._soon(self._on_sick), self._soon(self._on_plugin_failure))
        serving = self._supervise(self._serve())
        try:
            return await self._over
        finally:
            devices.stop()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await self._end_crew()

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGTERM and self._stay_s and self._link is not None and not self._leaving:
            self._leaving = True
            log.warning("SIGTERM: a checkpoint is taken first, for which there are %g s", self._stay_s)
            self._link.send(Leaving())
            self._loop.call_later(self._stay_s, self._on_signal, number)
            return
        log.warning("%s: ending every worker", signal.Signals(number).name)
        if self._link is not None:  # the end of this node is all that the controller has to hear
            self._link.close("the agent was told to end")
            self._link = None
        if not self._over.done():
            self._over.set_result(128 + number)

    def _supervise(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """What fails in here ends the agent, and with it the workers, instead of leaving them without one."""
        task = self._loop.create_task(work)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)

    async def _end_crew(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._crew is not None:
            crew, self._crew = self._crew, None
            await crew.close()

    # ── the connection ───────────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        """One connection after the other, until a Bye."""
        while not self._over.done():
            try:
                link = await self._uplink.connect()
            except ConfigError as error:
                if self._crew is None:
                    raise
                log.error("%s", error)
                self._over.set_result(EXIT_FAILED)
                return
            try:
                await self._converse(link)
            except WireError as error:
                log.warning("the controller is not understood: %s", error)
            finally:
                self._on_link_end(link)
                await link.wait_closed()

    async def _converse(self, link: Link) -> None:
        self._greet(link)
        try:
            async with asyncio.timeout(WELCOME_S):
                message = await link.recv()
        except TimeoutError:
            raise WireError(f"no welcome within {WELCOME_S:g} s") from None
        while message is not None:
            await self._obey(message)
            message = await link.recv()

    def _greet(self, link: Link) -> None:
        """Say who is here, and again what may have been lost: the controller may be another one by now."""
        config = self._config
        workers = self._crew.present if self._crew is not None else []
        healthy = tuple(device for device in self._devices if device not in self._sick)
        ids = tuple(worker.id for worker in workers)
        link.send(AgentHello(config.node, socket.gethostname(), os.getpid(), healthy, ids))
        for worker in workers:
            if worker.report is not None:
                link.send(worker.report)
            for message in worker.told.values():
                link.send(message)
        if self._crew is not None:
            for told in self._crew.slots.told:
                link.send(told)
        for device, evidence in self._sick.items():
            link.send(Sick(device, evidence))
        self._link = link

    def _on_link_end(self, link: Link) -> None:
        self._link = None
        link.close("the agent is done with it")
        if self._leaving and not self._over.done():
            self._over.set_result(128 + signal.SIGTERM)  # nobody is there any more who could want a checkpoint
        if self._crew is not None and not self._over.done():
            log.warning("the controller is away (%s)", link.closed)
            if self._lease is None:
                self._lease = self._loop.call_later(self._lease_s, self._on_lease_end, self._crew)

    def _on_lease_end(self, crew: Crew) -> None:
        log.error("away from the controller for more than %g s: ending every worker", self._lease_s)
        crew.abandon()

    def _cut(self, for_s: float) -> None:
        self._uplink.cut(for_s)
        if self._link is not None:
            self._link.close("cut by chaos")

    def _tell(self, message: ToController) -> None:
        """While the controller is away it is lost: the next hello says who is still there."""
        if self._link is not None:
            self._link.send(message)
        elif isinstance(message, Notice) and not isinstance(message.event, FenceFailed | Sealed):
            log.warning("worker %s, unheard by the controller: %s", message.event.worker, message.event.evidence)

    # ── what the controller says ─────────────────────────────────────────────────────────────────────────

    async def _obey(self, message: FromController) -> None:
        if isinstance(message, Welcome):
            await self._on_welcome(message)
        elif isinstance(message, Bye):
            log.debug("the controller says good-bye: %s", message.reason)
            await self._end_crew()
            self._over.set_result(message.code)
        elif self._crew is None or self._faults is None:
            raise WireError(f"{type(message).__name__} before a welcome")
        elif isinstance(message, Start):
            self._crew.start(message)
        elif isinstance(message, Fence):
            self._crew.fence(message)
        elif isinstance(message, Deliver):
            self._crew.deliver(message)
        elif isinstance(message, Tell):
            self._crew.tell(message)
        elif isinstance(message, Persist):
            self._crew.slots.persist(message)
        elif isinstance(message, AskStacks):
            self._crew.ask_stacks(message.workers)
        elif isinstance(message, Time):
            self._crew.timekeeper.hear(message)
        elif isinstance(message, Inject):
            self._faults.inject(message)
        else:
            raise WireError(f"{type(message).__name__} is not for an agent")

    async def _on_welcome(self, welcome: Welcome) -> None:
        self._uplink.welcomed()
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        if self._crew is None:
            await self._join(welcome)
        elif welcome.job != self._job:
            raise ConfigError(f"this agent is part of job {self._job}, the controller runs {welcome.job}")

    async def _join(self, welcome: Welcome) -> None:
        config = self._config
        self._job, self._lease_s = welcome.job, welcome.lease_s
        self._stay_s = welcome.grace_s if welcome.slots else 0.0
        self._crew = crew = Crew(
            welcome,
            config.node,
            self._devices,
            config.token,
            tell=self._tell,
            show=self._show,
            begin=self._supervise,
        )
        await crew.open()
        self._watching = self._supervise(Watch(crew.workers, lambda seen: self._tell(Beat(seen))).run())
        self._faults = Faults(config.node, crew, self._cut)
        self._faults.of_job(welcome.chaos, Path(welcome.run_dir))

    # ── devices ──────────────────────────────────────────────────────────────────────────────────────────

    def _on_sick(self, device: str, evidence: str) -> None:
        log.warning("device %s is sick: %s", device, evidence)
        self._sick[device] = evidence
        self._tell(Sick(device, evidence))

    def _on_plugin_failure(self, error: Exception) -> None:
        log.error("the devices are not watched any more, their plugin failed", exc_info=error)

    def _soon(self, act: Callable[P, None]) -> Callable[P, None]:
        """For another thread: do it here. At the end nobody is here any more."""

        def later(*arguments: P.args, **_: P.kwargs) -> None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(act, *arguments)

        return later
