"""The ring: the last phases that one worker entered, in memory that its agent owns and that outlives the worker.

    offset 0     magic, layout, worker id        written once by the agent, magic last
    offset 64    head: how many notes there were written by the worker, after the note itself
    offset 128   slots of 32 bytes: note n is in slot n % CAPACITY, behind it a CRC over the note that begins with n

A note that is cut off by a kill, or overwritten while it is read, does not have the CRC of its number, whatever order
the processor stores in. It knows nothing of files, sockets or which notes are worth keeping.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from pathlib import Path

from everstep.agent.shm import SharedDirectory, map_file
from everstep.observe.notes import MOST_ATTEMPTS, NOTE, Note
from everstep.types import Mark, WorkerId

CAPACITY = 2048
"""At 5 notes in a step of 5 ms the agent may stand still for two seconds."""

_MAGIC = 0x474E495250455453  # "STEPRING" in the file
_LAYOUT = 1
_HEAD_WORD = 8  # of 8 bytes
_SLOTS_OFFSET, _SLOT_BYTES = 128, 32
SIZE_BYTES = _SLOTS_OFFSET + CAPACITY * _SLOT_BYTES
_SLOT = struct.Struct(f"<{NOTE.size}sI4x")
_CRC = struct.Struct("<I")
_FILLED_BYTES = NOTE.size + _CRC.size
_WRAP = 0xFFFFFFFF


class RingWriter:
    """The worker's side. A note costs about a microsecond.

    The main thread and the control thread share a lock: each holds it for that long only.
    """

    def __init__(self, path: Path) -> None:
        self._map = map_file(path, "ring", SIZE_BYTES, _MAGIC, _LAYOUT)
        self._words = memoryview(self._map).cast("Q")  # a store through it is one aligned machine word
        self._count = self._words[_HEAD_WORD]
        self._lock = threading.Lock()

    def note(self, mark: int, step: int, attempt: int, generation: int) -> None:
        """Now."""
        with self._lock:
            count = self._count
            tries = attempt if attempt < MOST_ATTEMPTS else MOST_ATTEMPTS
            body = NOTE.pack(time.monotonic_ns(), step, generation, tries, mark)
            offset = _SLOTS_OFFSET + count % CAPACITY * _SLOT_BYTES
            self._map[offset : offset + _FILLED_BYTES] = body + _CRC.pack(zlib.crc32(body, count & _WRAP))
            self._count = self._words[_HEAD_WORD] = count + 1

    def close(self) -> None:
        self._words.release()
        self._map.close()


class RingReader:
    """The agent's side. It takes out each note once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """What the worker gives to its RingWriter."""
        self._map = map_file(path, "ring", SIZE_BYTES, _MAGIC, _LAYOUT)
        self._words = memoryview(self._map).cast("Q")
        self._next = 0
        self._last_ns = 0

    @classmethod
    def create(cls, directory: SharedDirectory, worker: WorkerId) -> RingReader:
        """Make the ring of a worker that does not run yet. Its first note is that it was started."""
        path = directory.allocate(f"ring-{worker}", SIZE_BYTES)
        with path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), struct.pack("<Qq", _LAYOUT, worker), 8)
            os.pwrite(file.fileno(), _MAGIC.to_bytes(8, "little"), 0)
        first = RingWriter(path)
        first.note(Mark.SPAWNED, -1, 0, 0)
        first.close()
        return cls(path)

    def take(self, *, final: bool = False) -> list[Note]:
        """What is new, in order. Where notes were lost stands an END just behind the last one before.

        ``final``: the worker is gone, so a note that is not whole will not become so any more.
        """
        head = self._words[_HEAD_WORD]
        notes: list[Note] = []
        if head - self._next > CAPACITY:
            self._lose(notes, head - CAPACITY)
        while self._next < head and self._take_run(notes, head, final=final):
            pass
        return notes

    def _take_run(self, notes: list[Note], head: int, *, final: bool) -> bool:
        """Up to the end of the file, or of what is there. False: the next one is not all here yet."""
        at = self._next % CAPACITY
        start = _SLOTS_OFFSET + at * _SLOT_BYTES
        run = self._map[start : start + min(head - self._next, CAPACITY - at) * _SLOT_BYTES]
        for body, crc in _SLOT.iter_unpack(run):
            if zlib.crc32(body, self._next & _WRAP) == crc:
                notes.append(note := Note._make(NOTE.unpack(body)))
                self._last_ns = note.at_ns
                self._next += 1
            elif final or self._words[_HEAD_WORD] - self._next >= CAPACITY:  # it is not there any more
                self._lose(notes, self._next + 1)
            else:
                return False
        return True

    def _lose(self, notes: list[Note], then: int) -> None:
        self._next = then
        if not notes or notes[-1].mark != Mark.END:
            notes.append(Note(self._last_ns + 1, -1, 0, 0, Mark.END))

    def close(self) -> None:
        self._words.release()
        self._map.close()
