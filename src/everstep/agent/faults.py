"""Chaos that only an agent can do: kill itself, cut its link, signal a worker that has no code of ours in it."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from everstep.agent.crew import Crew
from everstep.chaos.spec import Action, Fault, parse
from everstep.chaos.strikes import Strikes, of_job
from everstep.errors import ConfigError
from everstep.types import NodeId
from everstep.wire.messages import Inject

log = logging.getLogger(__name__)

AGAIN_S = 0.5

_OWN = (Action.AGENT_KILL, Action.PARTITION)

_SIGNALS = {Action.KILL: signal.SIGKILL, Action.STOP: signal.SIGSTOP, Action.SEGV: signal.SIGSEGV}


class Faults:
    """``cut`` takes the link to the controller away for so many seconds."""

    def __init__(self, node: NodeId, crew: Crew, cut: Callable[[float], None]) -> None:
        self._node = node
        self._crew = crew
        self._cut = cut

    def of_job(self, specs: Sequence[str], run_dir: Path) -> None:
        """What the job began with. Each strike is written down first: the agent that comes next must not repeat it."""
        for fault, strikes in of_job(map(parse, specs), run_dir):
            if fault.action in _OWN and fault.node in (None, self._node):
                self._in(fault.delay_s, self._strike_of_job, fault, strikes)

    def inject(self, order: Inject) -> None:
        """What was ordered while the job runs."""
        try:
            fault = parse(order.spec)
        except ConfigError as error:
            log.warning("%s", error)
            return
        if not fault.in_worker:
            if self._concerns_us(fault):
                self._in(fault.delay_s, self._strike, fault)
        elif fault.action in _SIGNALS and fault.rank is not None and not fault.exact:
            self._in(fault.delay_s, self._signal, fault)
        else:
            self._crew.inject(fault.rank, order)

    def _concerns_us(self, fault: Fault) -> bool:
        """By its node, or as the node of a rank."""
        here = fault.node in (None, self._node)
        return here and (fault.rank is None or self._crew.holder(fault.rank) is not None)

    def _in(self, delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_later(delay_s, act, *arguments)

    def _strike_of_job(self, fault: Fault, strikes: Strikes) -> None:
        if not self._concerns_us(fault):  # nobody here has the rank, yet
            self._in(AGAIN_S, self._strike_of_job, fault, strikes)
        elif strikes.claim():
            self._in(max(fault.delay_s, fault.for_s or AGAIN_S), self._strike_of_job, fault, strikes)
            self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        log.warning("chaos: %s", fault)
        if fault.action is Action.AGENT_KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.action is Action.PARTITION:
            self._cut(math.inf if fault.for_s is None else fault.for_s)

    def _signal(self, fault: Fault) -> None:
        assert fault.rank is not None
        worker = self._crew.holder(fault.rank)
        if worker is None or worker.process is None:
            log.warning("chaos: %s: rank %s is not on this node", fault, fault.rank)
        else:
            worker.process.send_signal(_SIGNALS[fault.action])
