"""A memory checkpoint: one share in a file of the agent's shared memory, which outlives the worker that wrote it.

    byte 0      magic, layout                                       }
    byte 64     state: EMPTY, WRITING, SEALED                       } written by the worker
    byte 128    step, generation, attempt, sizes, a checksum        }
    byte 256    hold                                                  written by the agent
    page 1      the manifest, in msgpack
    then        on the next page, the tensors, as the data of a safetensors file

A file of zeros is an empty slot. The state is SEALED only while all of it is there: a writer that dies in between
leaves WRITING. The checksum covers the manifest and not the tensors, which is the persister's work.

Hold and state exclude each other without a lock: each side writes its own word first and then looks at the other's.
The worst outcome is that both step back, and one checkpoint is left out.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
import xxhash

from everstep.checkpoint.disk import read_at
from everstep.checkpoint.manifest import Manifest
from everstep.core.events import Checkpoint
from everstep.errors import CheckpointError, ResourceError, SlotHeld
from everstep.types import Generation, Step

PAGE_BYTES = 4096
_MAGIC = 0x544F4C5350455453  # "STEPSLOT" in the file
_LAYOUT = 1
_MAGIC_WORD, _LAYOUT_WORD, _STATE_WORD, _HOLD_WORD = 0, 1, 8, 32  # 8 bytes each
_FIELDS = struct.Struct("<qqqQQ")  # step, generation, attempt, bytes of the manifest, bytes of the data
_FIELDS_AT = 128
_CHECKSUM = struct.Struct("<Q")
_MANIFEST = msgspec.msgpack.Decoder(Manifest)


class SlotState(enum.IntEnum):
    EMPTY = 0
    WRITING = 1
    SEALED = 2


class Content:
    """A sealed share. It outlives its reader, and is valid as long as nobody writes to the slot."""

    def __init__(self, manifest: Manifest, data: memoryview, fd: int, at: int) -> None:
        self.manifest = manifest
        self.data = data
        """The mapping itself. Its pages come one by one when they are touched first, which takes longer than a copy."""
        self._fd = os.dup(fd)
        self._at = at
        weakref.finalize(self, os.close, self._fd)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill it with the data from this byte on. For who reads all of it, and once."""
        if read_at(self._fd, self._at + offset, buffer) < len(buffer):
            raise CheckpointError(f"the slot ends within the share of rank {self.manifest.rank}")


def slot_bytes(data_bytes: int, manifest_bytes: int) -> int:
    """How large the file of a slot must be for such a share."""
    return _data_at(manifest_bytes) + _pages(data_bytes)


class Slot:
    """The file, mapped into memory."""

    def __init__(self, path: Path, protection: int, flags: int, size_bytes: int = 0) -> None:
        self.path = path
        self._fd = os.open(path, (os.O_RDWR if protection & mmap.PROT_WRITE else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            if os.fstat(self._fd).st_size < PAGE_BYTES:
                raise CheckpointError(f"{path} is no slot: it has {os.fstat(self._fd).st_size} bytes")
            self._map = mmap.mmap(self._fd, size_bytes, flags, protection)
        except BaseException:
            os.close(self._fd)
            raise
        self._view = memoryview(self._map)
        self._words = self._view[:PAGE_BYTES].cast("Q")  # access through it is one aligned machine word
        magic = self._words[_MAGIC_WORD], self._words[_LAYOUT_WORD]
        if magic not in ((0, 0), (_MAGIC, _LAYOUT)):
            self.close()
            raise CheckpointError(f"{path} is no slot of layout {_LAYOUT} (magic {magic[0]:#x}, layout {magic[1]})")

    @property
    def state(self) -> SlotState:
        try:
            return SlotState(self._words[_STATE_WORD])
        except ValueError as error:
            raise CheckpointError(f"{self.path} is damaged: its state is {error}") from None

    @property
    def held(self) -> bool:
        return bool(self._words[_HOLD_WORD])

    @property
    def checkpoint(self) -> Checkpoint | None:
        """What is sealed in it."""
        if self._words[_STATE_WORD] != SlotState.SEALED:
            return None
        step, generation, attempt, *_ = _FIELDS.unpack_from(self._view, _FIELDS_AT)
        return Checkpoint(Step(step), Generation(generation), attempt)

    def read(self, checkpoint: Checkpoint) -> Content:
        """The share of this checkpoint, or a CheckpointError that says what is there instead."""
        if (found := self.checkpoint) != checkpoint:
            state = self.state.name if found is None else f"has {found}"
            raise CheckpointError(f"{self.path}: {checkpoint} is not there: the slot is {state}")
        fields = bytes(self._view[_FIELDS_AT : _FIELDS_AT + _FIELDS.size])
        *_, manifest_bytes, data_bytes = _FIELDS.unpack(fields)
        if slot_bytes(data_bytes, manifest_bytes) > len(self._view):
            raise CheckpointError(f"{self.path} is damaged: its header tells of more than it has")
        encoded = self._view[PAGE_BYTES : PAGE_BYTES + manifest_bytes]
        (checksum,) = _CHECKSUM.unpack_from(self._view, _FIELDS_AT + _FIELDS.size)
        if checksum != _checksum(fields, encoded):
            raise CheckpointError(f"{self.path} is damaged: the checksum of its header is wrong")
        manifest = _MANIFEST.decode(encoded)
        if manifest.checkpoint != checkpoint or manifest.data_bytes != data_bytes:
            raise CheckpointError(f"{self.path} is damaged: its manifest is of {manifest.checkpoint}")
        at = _data_at(manifest_bytes)
        return Content(manifest, self._view[at : at + data_bytes], self._fd, at)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._words.release()
        self._view.release()
        with suppress(BufferError):  # a view of it is still in use; the mapping goes with the last one
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SlotWriter(Slot):
    """The worker's side: `begin`, write the tensors into what it gives, `seal`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._fields = b""

    @property
    def size_bytes(self) -> int:
        return len(self._view)

    def begin(self, manifest: Manifest) -> memoryview:
        """The room for the tensors of the share; what the slot held is gone.

        SlotHeld: it is still needed. ResourceError: the share does not fit. Both leave the slot as it was.
        """
        encoded = msgspec.msgpack.encode(manifest)
        data_bytes = manifest.data_bytes
        need_bytes = slot_bytes(data_bytes, len(encoded))
        if need_bytes > self.size_bytes:
            raise ResourceError(f"{self.path} has {self.size_bytes} bytes, the share needs {need_bytes}")
        self._take()
        self._fields = _FIELDS.pack(manifest.step, manifest.generation, manifest.attempt, len(encoded), data_bytes)
        self._view[PAGE_BYTES : PAGE_BYTES + len(encoded)] = encoded
        at = _data_at(len(encoded))
        return self._view[at : at + data_bytes]

    def seal(self) -> None:
        """All tensors are written."""
        assert self._words[_STATE_WORD] == SlotState.WRITING, "sealed without begin"
        manifest_bytes = _FIELDS.unpack(self._fields)[3]
        checksum = _checksum(self._fields, self._view[PAGE_BYTES : PAGE_BYTES + manifest_bytes])
        end = _FIELDS_AT + _FIELDS.size
        self._view[_FIELDS_AT:end] = self._fields
        self._view[end : end + _CHECKSUM.size] = _CHECKSUM.pack(checksum)
        self._words[_LAYOUT_WORD] = _LAYOUT
        self._words[_MAGIC_WORD] = _MAGIC
        self._words[_STATE_WORD] = SlotState.SEALED

    def _take(self) -> None:
        before = self._words[_STATE_WORD]
        if not self._words[_HOLD_WORD]:
            self._words[_STATE_WORD] = SlotState.WRITING
            if not self._words[_HOLD_WORD]:
                return
            self._words[_STATE_WORD] = before
        raise SlotHeld(f"{self.path} is held: its checkpoint is the newest complete one, or is being persisted")


class SlotKeeper(Slot):
    """The agent's side: what is in it, and whether it may be overwritten. It maps the first page only."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, PAGE_BYTES)

    def hold(self, checkpoint: Checkpoint) -> bool:
        """Keep this checkpoint until `release`. False: the slot has another one, or is being overwritten."""
        self._words[_HOLD_WORD] = 1
        if self.checkpoint == checkpoint:
            return True
        self.release()
        return False

    def release(self) -> None:
        self._words[_HOLD_WORD] = 0


class SlotReader(Slot):
    """Who loads or persists what is in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, mmap.PROT_READ, mmap.MAP_SHARED)


def choose(slots: Sequence[SlotWriter]) -> SlotWriter | None:
    """The slot to write next: one that is not held, and of two such the one with the older checkpoint."""
    oldest: tuple[tuple[int, int, int], SlotWriter] | None = None
    for slot in slots:
        if slot.held:
            continue
        if (checkpoint := slot.checkpoint) is None:
            return slot
        if oldest is None or checkpoint.age < oldest[0]:
            oldest = checkpoint.age, slot
    return oldest and oldest[1]


def _data_at(manifest_bytes: int) -> int:
    return PAGE_BYTES + _pages(manifest_bytes)


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _checksum(fields: bytes, manifest: memoryview) -> int:
    digest = xxhash.xxh3_64(fields)
    digest.update(manifest)
    return digest.intdigest()
