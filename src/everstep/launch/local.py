"""Runs a job from this machine: starts the controller and the agents, starts them again, and leaves nothing behind.

The controller decides about the job; here is decided only which process runs. It knows no terminal: what people see
goes to a `Screen`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from everstep.agent.process import ExitStatus
from everstep.agent.shm import sweep_stale
from everstep.controller.job import Address, RunDir
from everstep.errors import EverstepError, WireError
from everstep.launch.client import RETURN_S, Client, Result, Snapshot
from everstep.launch.family import Child, Family
from everstep.types import NodeId
from everstep.wire.auth import TOKEN_VARIABLE, Token
from everstep.wire.messages import Interrupt

POLL_S = 0.5
"""How often the view asks the controller."""

INTERRUPT_S = 30.0
"""For the controller to end the job after Ctrl-C; then it is killed."""

UNHEARD_S = 0.5
"""For agents that have heard the controller's good-bye to be gone; one that never met it is told to go after it."""

GOODBYE_S = 5.0
"""For the agents to stop their workers and go when the job is over; then they are killed."""

HEALTHY_S = 10.0
TRIES = 3
"""A process that ends by itself so often, each time younger than HEALTHY_S, will not do better the next time."""

_LOOK_S = 0.02
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = Result(130, "interrupted")


class Screen(Protocol):
    """What people see of a run."""

    def lines(self, lines: Sequence[str], error: bool) -> None:
        """Lines of the controller or of an agent, which were written to stderr if ``error``."""

    def say(self, text: str) -> None:
        """One line of our own."""

    def status(self, snapshot: Snapshot | None) -> None:
        """None: the controller does not answer now."""


class Restarts:
    """Whether to start a process again. A kill comes from outside and says nothing about the next try."""

    def __init__(self) -> None:
        self.failed = 0

    def again(self, code: int, age_s: float) -> bool:
        if code not in (-signal.SIGKILL, -signal.SIGTERM):
            self.failed = self.failed + 1 if age_s < HEALTHY_S else 1
        return self.failed < TRIES


def controller_command(run: RunDir) -> tuple[str, ...]:
    # -P: a module of the user in the working directory must not stand in for one of the standard library.
    return (sys.executable, "-P", "-m", "everstep.controller", str(run.path))


def agent_command(address: tuple[str, int], node: NodeId, devices: str, run_dir: str | None = None) -> tuple[str, ...]:
    host, port = address
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    what = ("--controller", where, "--node", node, "--devices", devices)
    return (sys.executable, "-P", "-m", "everstep.agent", *what, *(("--run-dir", run_dir) if run_dir else ()))


class Launcher:
    """One run, from the first process to the last. ``nodes``: the agents of this machine, and what each offers."""

    def __init__(self, run: RunDir, token: Token, nodes: Mapping[NodeId, str], screen: Screen) -> None:
        self._run = run
        self._nodes = nodes
        self._screen = screen
        # Unbuffered: what they say is shown when they say it. The token is nowhere in an argv.
        self._env = os.environ | {TOKEN_VARIABLE: token.text, "PYTHONUNBUFFERED": "1"}
        self._loop = asyncio.get_running_loop()
        self._family = Family(screen.lines)
        self._agents: dict[NodeId, Child] = {}
        self._end: asyncio.Future[Result] = self._loop.create_future()
        self._interrupts = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> Result:
        """How the job ended. No process and no shared memory of it is there any more."""
        handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
        for number in handled:
            self._loop.add_signal_handler(number, self._on_signal, number)
        self._begin(self._keep_controller())
        self._begin(self._keep_agents())
        self._begin(self._watch())
        try:
            return await self._end
        finally:
            await self._leave()
            for number in handled:
                self._loop.remove_signal_handler(number)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        task.add_done_callback(self._on_task_end)
        self._tasks.append(task)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """A task of ours that fails ends the run: nobody else would ever do its work."""
        if not task.cancelled() and (error := task.exception()) and not self._end.done():
            self._end.set_exception(error)

    def _finish(self, result: Result) -> None:
        if not self._end.done():
            self._end.set_result(result)

    # ── the controller ───────────────────────────────────────────────────────────────────────────────────

    async def _keep_controller(self) -> None:
        restarts = Restarts()
        while True:
            child = await self._family.start(controller_command(self._run), self._env, signal.SIGKILL)
            code = await child.wait()
            how = f"the controller {ExitStatus.from_returncode(code)}"
            if (result := self._result(code)) is not None:
                return self._finish(result)
            if not restarts.again(code, child.age_s):
                return self._finish(Result(1, f"{how}, {TRIES} times in a row: {child.last_line}"))
            self._screen.say(f"{how}; starting it again")

    def _result(self, code: int) -> Result | None:
        """None if the job goes on. Code 1 alone may be an error of the controller instead of the job's."""
        if (result := Result.read(self._run)) is not None:
            return result
        if self._interrupts:
            return INTERRUPTED
        return Result(code) if code in (0, 2, 130) else None

    # ── the agents ───────────────────────────────────────────────────────────────────────────────────────

    async def _keep_agents(self) -> None:
        if not self._nodes:
            return
        address = await self._address()
        ends = await asyncio.gather(*(self._keep_agent(node, address) for node in self._nodes))
        if Result.read(self._run) is None:
            self._finish(ends[-1])  # nobody is left to work

    async def _address(self) -> Address:
        while (address := self._run.address()) is None:  # noqa: ASYNC110  a file appears: no event tells us
            await asyncio.sleep(_LOOK_S)
        return address

    async def _keep_agent(self, node: NodeId, address: Address) -> Result:
        """Returns when it is of no use to start it again."""
        restarts = Restarts()
        command = agent_command((address.host, address.port), node, self._nodes[node], str(self._run.path))
        while True:
            # SIGTERM: an agent whose launcher is gone stops its workers and frees its shared memory.
            child = self._agents[node] = await self._family.start(command, self._env, signal.SIGTERM)
            code = await child.wait()
            how = f"the agent of node {node} {ExitStatus.from_returncode(code)}"
            if Result.read(self._run) is not None:
                return Result(0)  # it was told to go; the controller follows
            if code == 2 or not restarts.again(code, child.age_s):
                self._screen.say(f"{how} and is not started again")
                return Result(2 if code == 2 else 1, child.last_line or how)
            self._screen.say(f"{how}; starting it again")

    # ── people ───────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        page_shown = False
        async with Client(self._run) as client:
            while True:
                if not page_shown and (page := self._run.page()) is not None:
                    page_shown = True
                    self._screen.say(page.sentence)
                try:
                    self._screen.status(await client.ask())
                except OSError:
                    self._screen.status(None)
                except WireError as error:
                    self._screen.say(f"no status: {error}")
                    return
                await asyncio.sleep(POLL_S)

    def _on_signal(self, number: signal.Signals) -> None:
        """SIGTERM comes from a scheduler that takes the machine away: a checkpoint is taken first."""
        self._interrupts += 1
        if self._interrupts == 1:
            self._begin(self._interrupt(save=number == signal.SIGTERM))
        else:
            self._finish(INTERRUPTED)

    async def _interrupt(self, *, save: bool) -> None:
        self._screen.say(f"stopping the job{' after a checkpoint' * save}; once more to kill it")
        # It may use its grace twice: for a new checkpoint, and for what is on its way when it gives that up.
        limit_s = INTERRUPT_S + (2 * self._run.read_job().checkpoints.grace_s if save else 0.0)
        try:
            async with asyncio.timeout(limit_s), Client(self._run, RETURN_S) as client:
                await client.tell(Interrupt(save))
                await asyncio.shield(self._end)
        except TimeoutError:
            self._kill(f"it does not end within {limit_s:g} s")
        except (OSError, EverstepError) as error:
            self._kill(str(error))

    def _kill(self, reason: str) -> None:
        self._interrupts += 1
        self._screen.say(f"killing the job: {reason}")
        self._finish(INTERRUPTED)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────

    async def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        agents = [asyncio.create_task(child.wait()) for child in self._agents.values()]
        if agents and self._interrupts < 2:
            await asyncio.wait(agents, timeout=UNHEARD_S)
            for child in self._agents.values():
                child.send_signal(signal.SIGTERM)
            await asyncio.wait(agents, timeout=GOODBYE_S)
        if rest := await self._family.end():
            self._screen.say(f"these processes do not die: {', '.join(map(str, rest))}")
        await asyncio.gather(*agents, return_exceptions=True)
        with suppress(OSError):
            sweep_stale()
