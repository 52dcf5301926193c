"""The board: one small shared file per worker that says where it is, readable without asking it.

The agent makes the file and reads it; the worker stamps it. It knows nothing of torch, sockets or verdicts.

    offset 0     magic, layout, worker id        written once by the agent, magic last
    offset 24    pid                             written once by the worker
    offset 64    heartbeat counter               written by the control thread only
    offset 128   moves                           written by whoever stamps; names the valid slot
    offset 192   slot 0, offset 320: slot 1      fields and a CRC

Two slots, not one with an odd and an even sequence number: a process that is stopped or killed in the middle
of a stamp leaves a torn slot, and the other one still holds the stamp before. The CRC finds a slot that is
overwritten while it is read, whatever order the processor stores in.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from everstep.agent.shm import SharedDirectory, map_file
from everstep.errors import BoardError
from everstep.types import Generation, Step, WorkerId, WorkerPhase

SIZE_BYTES = 512
_MAGIC = 0x44524F4250455453  # "STEPBORD" in the file
_LAYOUT = 1
_MAGIC_WORD, _LAYOUT_WORD, _WORKER_WORD, _PID_WORD, _BEAT_WORD, _MOVES_WORD = (
    0,
    1,
    2,
    3,
    8,
    16,
)  # 8 bytes each
_SLOT_OFFSETS = (192, 320)
# moves, generation, step, version, phase start, moved, limit, attempt, phase, waiting
_FIELDS = struct.Struct("<QqqqqqdIH?")
_SLOT_BYTES = _FIELDS.size + 4
# A read takes 2 µs and a torn one needs two stamps within it, so a second try is rare and a third rarer.
_READ_TRIES = 100
NO_LIMIT_S = 0.0


@dataclass(frozen=True, slots=True)
class BoardSample:
    """What a worker stamped last. Times are CLOCK_MONOTONIC of this machine, in nanoseconds."""

    worker: WorkerId
    pid: int  # 0 until the worker has opened its board
    phase: WorkerPhase
    generation: Generation
    step: Step  # -1 before the first
    version: int  # -1 while it holds no state
    attempt: int
    phase_start_ns: int
    moved_ns: int  # when it last stamped anything
    limit_s: float  # of a declared long phase, else NO_LIMIT_S
    waiting: bool  # it is inside a collective, waiting for others
    moves: int  # counts all stamps: standing still means not moving
    heartbeat: int


class _Fields:
    """The fields of a slot in their order. The writer packs them; nobody else needs them mutable."""

    __slots__ = (
        "attempt",
        "generation",
        "limit_s",
        "moves",
        "phase",
        "phase_start_ns",
        "step",
        "version",
        "waiting",
    )

    def __init__(self) -> None:
        self.moves = 0
        self.generation = 0
        self.step = -1
        self.version = -1
        self.phase_start_ns = time.monotonic_ns()
        self.limit_s = NO_LIMIT_S
        self.attempt = 0
        self.phase: int = WorkerPhase.SPAWNED
        self.waiting = False

    def pack(self, now_ns: int) -> bytes:
        body = _FIELDS.pack(
            self.moves,
            self.generation,
            self.step,
            self.version,
            self.phase_start_ns,
            now_ns,
            self.limit_s,
            self.attempt,
            self.phase,
            self.waiting,
        )
        return body + zlib.crc32(body).to_bytes(4, "little")


class BoardWriter:
    """The worker's side. A stamp costs about a microsecond.

    `beat` belongs to one thread; the stamps may come from any other. They share no lock, so a thread that is
    stuck never holds up the heartbeat.
    """

    def __init__(self, path: Path) -> None:
        self._map = map_file(path, "board", SIZE_BYTES, _MAGIC, _LAYOUT)
        self._words = memoryview(self._map).cast("Q")  # a store through it is one aligned machine word
        self._fields = _Fields()
        self._beats = 0
        self._lock = threading.Lock()  # collectives may be issued from autograd's threads
        self._words[_PID_WORD] = os.getpid()

    def stamp(
        self,
        phase: WorkerPhase,
        *,
        step: int | None = None,
        version: int | None = None,
        generation: int | None = None,
        attempt: int | None = None,
    ) -> None:
        """Enter a phase now. What is not given stays as it was."""
        with self._lock:
            fields = self._fields
            fields.phase = phase
            if step is not None:
                fields.step = step
            if version is not None:
                fields.version = version
            if generation is not None:
                fields.generation = generation
            if attempt is not None:
                fields.attempt = attempt
            fields.phase_start_ns = now_ns = time.monotonic_ns()
            self._publish(now_ns)

    def waiting(self, inside: bool) -> None:
        """Say that a collective is being waited for, or no longer is."""
        with self._lock:
            self._fields.waiting = inside
            self._publish(time.monotonic_ns())

    def long(self, limit_s: float) -> None:
        """Declare that what comes now may take this long; NO_LIMIT_S takes it back."""
        with self._lock:
            self._fields.limit_s = limit_s
            self._publish(time.monotonic_ns())

    def beat(self) -> None:
        """Show that the process runs. From the control thread only."""
        self._beats += 1
        self._words[_BEAT_WORD] = self._beats

    def close(self) -> None:
        self._words.release()
        self._map.close()

    def _publish(self, now_ns: int) -> None:
        fields = self._fields
        fields.moves = moves = fields.moves + 1
        offset = _SLOT_OFFSETS[moves & 1]
        self._map[offset : offset + _SLOT_BYTES] = fields.pack(now_ns)
        self._words[_MOVES_WORD] = moves


class BoardReader:
    """The agent's side. It reads the file, never the process, so it also reads the stopped and the dead."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map = map_file(path, "board", SIZE_BYTES, _MAGIC, _LAYOUT)
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls, directory: SharedDirectory, worker: WorkerId) -> BoardReader:
        """Make the board of a worker that does not run yet."""
        path = directory.allocate(f"board-{worker}", SIZE_BYTES)
        fields = _Fields()
        with path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), fields.pack(fields.phase_start_ns), _SLOT_OFFSETS[0])
            os.pwrite(file.fileno(), struct.pack("<Qq", _LAYOUT, worker), 8)
            os.pwrite(file.fileno(), _MAGIC.to_bytes(8, "little"), 0)
        return cls(path)

    @property
    def path(self) -> Path:
        """What the worker gives to its BoardWriter."""
        return self._path

    def read(self) -> BoardSample:
        """The last complete stamp, or a BoardError if the file never held still."""
        for _ in range(_READ_TRIES):
            moves = self._words[_MOVES_WORD]
            offset = _SLOT_OFFSETS[moves & 1]
            slot = self._map[offset : offset + _SLOT_BYTES]
            body, crc = slot[:-4], int.from_bytes(slot[-4:], "little")
            if zlib.crc32(body) == crc and (sample := self._sample(body)).moves >= moves:
                return sample
        raise BoardError(f"{self._path}: no complete stamp in {_READ_TRIES} reads; something else writes to this file")

    def close(self) -> None:
        self._words.release()
        self._map.close()

    def _sample(self, body: bytes) -> BoardSample:
        moves, generation, step, version, start_ns, moved_ns, limit_s, attempt, phase, waiting = _FIELDS.unpack(body)
        return BoardSample(
            worker=WorkerId(self._words[_WORKER_WORD]),
            pid=self._words[_PID_WORD],
            phase=WorkerPhase(phase),
            generation=Generation(generation),
            step=Step(step),
            version=version,
            attempt=attempt,
            phase_start_ns=start_ns,
            moved_ns=moved_ns,
            limit_s=limit_s,
            waiting=waiting,
            moves=moves,
            heartbeat=self._words[_BEAT_WORD],
        )
