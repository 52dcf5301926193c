"""The control thread of a worker: it beats, hears the agent, and drives the machine together with the main thread.

The machine has one lock (I5). What it puts out is carried out under that lock, so reports leave in the order in which
they became true. A worker never outlives its agent: when the connection ends, or this thread fails, so does the
process.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Sequence

from everstep.agent.board import BoardWriter
from everstep.chaos.inject import Injector
from everstep.chaos.spec import When, parse
from everstep.core.effects import Assign, Command
from everstep.core.worker import Do, Out, WorkerMachine
from everstep.errors import ConfigError
from everstep.types import Generation, WorkerPhase
from everstep.wire.blocking import BlockingChannel
from everstep.wire.codec import Codec
from everstep.wire.messages import (
    AskStack,
    FromWorkerSide,
    Inject,
    Order,
    Raised,
    Report,
    Stack,
    ToWorkerSide,
    WorkerHello,
)
from everstep.wire.terms import Terms
from everstep.worker.environment import Seat
from everstep.worker.trace import stacks
from everstep.worker.track import Track

BEAT_S = 0.05
"""Pause between two heartbeats at most; a message ends it early."""

EXIT_ORPHANED = 1

_SENDS: Codec[FromWorkerSide] = Codec(FromWorkerSide)
_RECEIVES: Codec[ToWorkerSide] = Codec(ToWorkerSide)


class Control:
    """Made by the main thread of a worker in `init`, one for its life."""

    def __init__(self, seat: Seat, board: BoardWriter, track: Track) -> None:
        self._seat = seat
        self._board = board
        self._track = track
        self._machine = WorkerMachine(seat.worker)
        self._changed = threading.Condition()
        self._leaving = False
        self._does: dict[Do, Callable[[], None]] = {Do.GO: self._changed.notify_all}
        self._channel = BlockingChannel.connect(seat.socket, Terms(_SENDS, _RECEIVES, seat.token))
        self._channel.send(WorkerHello(seat.worker, os.getpid()))
        threading.Thread(target=self._run, name="everstep-control", daemon=True).start()

    # ── the main thread ──────────────────────────────────────────────────────────────────────────────────

    def register(self) -> Assign:
        """Ask for a rank, and wait for it: a standby stays here for as long as nobody fails."""
        with self._changed:
            self._carry_out(self._machine.register())
            self._stay_while_parked()
            assert isinstance(self._machine.order, Assign)
            return self._machine.order

    @property
    def generation(self) -> Generation:
        return self._machine.generation

    def raised(self, text: str, place: str) -> None:
        """The script has failed with this traceback; the process is about to exit."""
        self._channel.send(Raised(self._seat.worker, text, place))

    def leave(self) -> None:
        """The script has ended, and the interpreter is about to end the threads: nobody shall miss the heartbeat."""
        self._leaving = True
        self._channel.close("the script has ended")

    def _stay_while_parked(self) -> None:
        """Ends by a command; or the agent goes, and with it the process."""
        while self._machine.parked:
            self._changed.wait()

    # ── both, with the lock held ─────────────────────────────────────────────────────────────────────────

    def _carry_out(self, outs: Sequence[Out]) -> None:
        for out in outs:
            if isinstance(out, Do):
                self._does[out]()
            else:
                self._channel.send(Report(out))

    # ── the control thread ───────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            self._serve()
            why = f"the agent is gone ({self._channel.closed})"
        except BaseException:  # noqa: BLE001  (a supervisor: without this thread nobody can wake the main thread)
            why = f"its control thread has failed\n{traceback.format_exc()}"
        if self._leaving:
            return
        # Not sys.stderr: the main thread may hold its lock.
        os.write(2, f"everstep: worker {self._seat.worker} ends: {why}\n".encode(errors="backslashreplace"))
        os._exit(EXIT_ORPHANED)

    def _serve(self) -> None:
        while self._channel.closed is None:
            self._board.beat()
            if self._track.injector is not None:
                self._track.injector.tick()
            try:
                message = self._channel.recv(BEAT_S)
            except TimeoutError:
                continue
            if message is not None:
                self._obey(message)

    def _obey(self, message: ToWorkerSide) -> None:
        if isinstance(message, Order):
            with self._changed:
                if isinstance(message.command, Assign) and self._machine.phase is WorkerPhase.STANDBY:
                    self._take_seat(message.command, message.env)
                self._offer(message.command, When.BEFORE)
                self._carry_out(self._machine.command(message.command))
            self._offer(message.command, When.AFTER)
        elif isinstance(message, AskStack):
            self._channel.send(Stack(self._seat.worker, self._stacks()))
        else:
            self._arm(message)

    def _take_seat(self, assign: Assign, env: dict[str, str]) -> None:
        """Before the main thread goes on: libraries read these variables when they like."""
        os.environ.update(env)
        seat = self._seat
        self._track.injector = Injector.of_job(seat.chaos, assign.rank, seat.node, seat.run_dir)

    def _offer(self, command: Command, when: When) -> None:
        """To the faults that wait for it."""
        if self._track.injector is not None:
            self._track.injector.ordered(command, when)

    def _stacks(self) -> str:
        declared = f"declared: {self._track.activity}\n\n" if self._track.activity else ""
        return declared + stacks()

    def _arm(self, message: Inject) -> None:
        if self._machine.rank is None:
            return  # a standby has no step to be struck in
        try:
            fault = parse(message.spec)
        except ConfigError as error:
            os.write(2, f"everstep: {error}\n".encode(errors="backslashreplace"))
            return
        injector = self._track.injector or Injector(self._machine.rank, self._seat.node)
        injector.arm(fault)
        self._track.injector = injector
