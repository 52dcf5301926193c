"""The control thread of a worker: it beats, hears the agent, and drives the machine together with the main thread.

The machine has one lock (I5). What it puts out is carried out under that lock, so reports leave in the order in which
they became true. A worker never outlives its agent: when the connection ends, or this thread fails, so does the
process.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.agent.board import BoardWriter
from everstep.chaos.inject import Injector
from everstep.chaos.spec import parse
from everstep.core.effects import Assign, Command, Donate, Reset, Restore
from everstep.core.events import Cause, Checkpoint
from everstep.core.worker import Do, Move, Out, WorkerMachine
from everstep.errors import CheckpointError, ConfigError, EverstepError, ResourceError
from everstep.types import Coordinate, Generation, Moment, Step, WorkerPhase
from everstep.wire.blocking import BlockingChannel
from everstep.wire.codec import Codec
from everstep.wire.messages import (
    AskStack,
    FromWorkerSide,
    Inject,
    Keep,
    Meet,
    Memories,
    NeedSlots,
    Order,
    Publish,
    Raised,
    Report,
    Schedule,
    SealedSlot,
    SkippedSlot,
    Slots,
    Stack,
    StateDigest,
    ToWorkerSide,
    WorkerHello,
)
from everstep.wire.terms import Terms
from everstep.worker.environment import Seat
from everstep.worker.phases import RecoveryPhase
from everstep.worker.trace import stacks
from everstep.worker.track import Track

if TYPE_CHECKING:
    from everstep.worker.checkpoint.keeper import Keeper
    from everstep.worker.groups.world import World
    from everstep.worker.protection import Protection

SLOTS_S = 60.0
FILL_BYTES_PER_S = 200e6
"""What an agent needs at most to give slots: a moment, and the time to fill them with zeros."""

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
        self.failed = False
        """The script has raised an exception and ends with it."""
        self._todo: deque[tuple[Do, Command | None]] = deque()
        """What the control thread has for the main thread."""
        self.world: World | None = None
        self.protection: Protection | None = None
        self.memories: dict[str, bytes] = {}
        """What those that founded the job have kept for a newcomer."""
        self.keeper: Keeper | None = None
        self.slots: Slots | None = None
        self.schedule: Schedule | None = None
        self._agreed = Generation(0)
        """The newest generation whose first words were exchanged."""
        self._in_flight: int | None = None
        self._waits = False
        self._channel = BlockingChannel.connect(seat.socket, Terms(_SENDS, _RECEIVES, seat.token))
        self._channel.send(WorkerHello(seat.worker, os.getpid()))
        threading.Thread(target=self._run, name="everstep-control", daemon=True).start()

    # ── the main thread ──────────────────────────────────────────────────────────────────────────────────

    def register(self) -> Assign:
        """Ask for a rank, and wait for it: a standby stays here for as long as nobody fails."""
        with self._changed:
            self._carry_out(self._machine.register())
        self.follow()
        assert isinstance(self._machine.order, Assign)
        return self._machine.order

    def protect(self, coordinate: Coordinate, layout: str) -> None:
        """The objects exist. Returns when this worker holds state and the job trains."""
        with self._changed:
            self._carry_out(self._machine.protect(coordinate, layout))
        self.follow()

    def move(self, move: Move) -> bool:
        """Whether the main thread may go on; else it is parked, and has to `follow`."""
        with self._changed:
            self._carry_out(self._machine.move(move))
            return not self._machine.parked

    def park(self) -> None:
        """Inside a step that cannot go on: `follow` is next."""
        with self._changed:
            self._carry_out(self._machine.safe_point())

    def broken(self, evidence: str) -> None:
        """A collective failed. Behind the barrier's door, and outside of a step, this parks where it stands."""
        with self._changed:
            brief = evidence if self.world is None else self.world.seam.brief(evidence)
            self._carry_out(self._machine.broken(brief.partition("\n")[0]))

    def dropped(self) -> None:
        """The step is unwound and its gradients are gone."""
        with self._changed:
            self._carry_out(self._machine.dropped())

    def publish(self, generation: Generation, key: str, rank: int, size: int, address: bytes) -> None:
        """For the other members of a group."""
        self._channel.send(Publish(self._seat.worker, generation, key, rank, size, address))

    def keep(self, memories: dict[str, bytes]) -> None:
        """For newcomers."""
        self._channel.send(Keep(self._seat.worker, self.generation, memories))

    def tell_digest(self, moment: Moment, version: Step, shard: int, digest: str) -> None:
        """For the record."""
        machine = self._machine
        assert machine.rank is not None
        self._channel.send(
            StateDigest(machine.worker, machine.rank, shard, machine.generation, version, moment, digest)
        )

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────

    def need_slots(self, size_bytes: int) -> None:
        """Two of at least this size; those that were given before are void."""
        self.slots = None
        self._channel.send(NeedSlots(self._seat.worker, size_bytes))

    def wait_for_slots(self, size_bytes: int) -> Slots:
        with self._changed:
            if not self._changed.wait_for(lambda: self.slots is not None, SLOTS_S + 2 * size_bytes / FILL_BYTES_PER_S):
                raise ResourceError(f"the agent has not given two slots of {size_bytes} bytes for checkpoints in time")
            assert self.slots is not None
            return self.slots

    def taken(self) -> None:
        """A checkpoint is taken now, so nobody has to wait for the next one that is due."""
        with self._changed:
            if self.schedule is not None and self.schedule.soon:
                self.schedule = replace(self.schedule, soon=False)

    def sealed(self, checkpoint: Checkpoint, slot: int, size_bytes: int, k0_s: float, began_s: float) -> None:
        self._channel.send(SealedSlot(self._seat.worker, checkpoint, slot, size_bytes, k0_s, began_s))

    def skipped(self, version: Step, reason: str) -> None:
        """A checkpoint was due and is left out."""
        self._channel.send(SkippedSlot(self._seat.worker, version, reason))

    # ── what is ordered ──────────────────────────────────────────────────────────────────────────────────

    def follow(self) -> Do:
        """Do what is ordered until the main thread may go on: from where it stands, or by leaving the step."""
        while True:
            with self._changed:
                while not self._todo:
                    self._changed.wait()  # ends by a command; or the agent goes, and with it the process
                do, command = self._todo.popleft()
            if do is Do.CONNECT:
                assert isinstance(command, Reset)
                self._connect(command)
            elif do is Do.FILL:
                assert isinstance(command, Restore)
                self._fill(command)
            elif do is Do.SERVE:
                assert isinstance(command, Donate)
                self._serve_newcomers(command)
            elif do is Do.GREET:
                self._greet()
            elif do is not Do.GO or self._agree():
                return do

    @property
    def generation(self) -> Generation:
        return self._machine.generation

    @property
    def version(self) -> Step:
        return self._machine.version

    @property
    def phase(self) -> WorkerPhase:
        return self._machine.phase

    @property
    def over(self) -> bool:
        return self._machine.over

    @property
    def must_park(self) -> bool:
        return self._machine.must_park

    @property
    def memory(self) -> Path:
        """Where the agent keeps what its workers share: boards, and memory checkpoints."""
        return self._seat.board.parent

    def raised(self, text: str, place: str, cause: Cause) -> None:
        """The script has failed with this traceback; the process is about to exit."""
        self.failed = True
        self._channel.send(Raised(self._seat.worker, text, place, cause))

    def leave(self) -> None:
        """The script has ended, and the interpreter is about to end the threads: nobody shall miss the heartbeat."""
        self._leaving = True
        self._channel.close("the script has ended")

    # ── orders that the main thread carries out ──────────────────────────────────────────────────────────

    def _connect(self, reset: Reset) -> None:
        assert self.world is not None
        self._track.generation = reset.generation
        self._track.recovering(RecoveryPhase.RESET, self.version)
        try:
            self.world.settle()
            self.world.connect(reset.generation)
        except RuntimeError as error:
            self.broken(str(error))
            return
        self._track.stand(self._machine.phase, reset.generation)
        with self._changed:
            self._carry_out(self._machine.connected())

    def _fill(self, restore: Restore) -> None:
        assert self.protection is not None
        if restore.checkpoint is not None:
            self._load(restore.checkpoint)
            return
        assert restore.donor is not None
        self._track.recovering(RecoveryPhase.RESTORE, restore.target)
        try:
            received = self.protection.fill(self._machine.table.index(restore.donor), restore.target)
        except RuntimeError as error:
            self.broken(str(error))
            return
        self._track.version = restore.target
        self._track.recovered(WorkerPhase.IDLE, restore.target)
        with self._changed:
            self._carry_out(self._machine.filled(restore.target, received))

    def _load(self, checkpoint: Checkpoint) -> None:
        """Together with all ranks: either all have it, or all report that it cannot be used."""
        assert self.keeper is not None
        self._track.recovering(RecoveryPhase.RESTORE, checkpoint.step)
        try:
            size_bytes = self.keeper.load(checkpoint)
        except RuntimeError as error:
            self.broken(str(error))
            return
        except CheckpointError as error:
            with self._changed:
                self._carry_out(self._machine.unusable(checkpoint, str(error)))
            return
        assert self.protection is not None
        self.protection.audit(Moment.LOAD, checkpoint.step)
        self._track.version = checkpoint.step
        self._track.recovered(WorkerPhase.IDLE, checkpoint.step)
        with self._changed:
            self._carry_out(self._machine.filled(checkpoint.step, size_bytes))

    def _serve_newcomers(self, donate: Donate) -> None:
        """Whatever goes wrong here, the newcomer or the controller finds it too; this worker stays parked."""
        assert self.protection is not None
        self._track.recovering(RecoveryPhase.RESTORE, self.version)
        for newcomer in donate.to:
            with suppress(RuntimeError, EverstepError):
                self.protection.serve(self._machine.table.index(newcomer), self.version)
        self._track.recovered(self.phase, self.version)

    def _greet(self) -> None:
        """This worker has left the loop and stays parked; a failure that ends this is met by a Stop."""
        assert self.protection is not None
        with suppress(RuntimeError):
            self.protection.agree(self.version)
            if self.keeper is not None:
                self.keeper.save_last(self.version)  # the newcomers do so, and a checkpoint has one generation

    def _agree(self) -> bool:
        """Before the first step in new groups. False: one more failure came, so there is more to follow."""
        protection, generation = self.protection, self.generation
        if protection is None or self._agreed == generation or self._machine.phase is WorkerPhase.ENDED:
            return True
        self._track.recovering(RecoveryPhase.RESUME, self.version)
        try:
            protection.agree(self.version)
        except RuntimeError as error:
            self.broken(str(error))
            return False
        self._agreed = generation
        return True

    # ── both, with the lock held ─────────────────────────────────────────────────────────────────────────

    def _carry_out(self, outs: Sequence[Out]) -> None:
        for out in outs:
            if out is Do.CUT:
                self._cut()
            elif isinstance(out, Do):
                self._todo.append((out, self._machine.order))
                self._changed.notify_all()
            else:
                self._channel.send(Report(out))

    def _cut(self) -> None:
        """Those that would have been served or greeted are not all there any more."""
        self._track.generation = self._machine.stop
        self._track.recovering(RecoveryPhase.STOP, self.version, main_thread=False)
        self._todo = deque(item for item in self._todo if item[0] not in (Do.SERVE, Do.GREET))
        if self.world is not None:
            self.world.cut(self._machine.stop)

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
            self._show_waiting()
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
                self._carry_out(self._machine.command(message.command))
        elif isinstance(message, AskStack):
            self._channel.send(Stack(self._seat.worker, self._stacks()))
        elif isinstance(message, Meet):
            if self.world is not None:
                self.world.rendezvous.arrive(message.generation, message.key, message.rows)
        elif isinstance(message, Memories):
            self.memories = message.memories
        elif isinstance(message, Slots):
            with self._changed:
                self.slots = message
                self._changed.notify_all()
        elif isinstance(message, Schedule):
            with self._changed:
                self.schedule = message
        else:
            self._arm(message)

    def _show_waiting(self) -> None:
        """On the board: a collective is in flight that was so at the last beat too, and no other one was begun."""
        if self.world is None:
            return
        in_flight = self.world.waiting()
        waits = in_flight is not None and in_flight == self._in_flight
        self._in_flight = in_flight
        if waits != self._waits:
            self._waits = waits
            self._board.waiting(waits)

    def _take_seat(self, assign: Assign, env: dict[str, str]) -> None:
        """Before the main thread goes on: libraries read these variables when they like."""
        os.environ.update(env)
        seat = self._seat
        self._track.injector = Injector.of_job(seat.chaos, assign.rank, seat.node, seat.run_dir)

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
