"""Writes a flight record once more with fewer samples. What was kept because of a failure is all in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from everstep.agent.tape import is_sample
from everstep.observe.notes import CODEC, KIND, MAGIC, NOTE, Chunk, Entry, Note, Opened, unpack
from everstep.types import Mark
from everstep.wire.records import RecordFile, scan

_CHUNK_BYTES = 1024 * NOTE.size
"""Who wants to know of a short time only skips the chunks of others."""
_FORWARD, _CHECKPOINT = int(Mark.FORWARD), int(Mark.CHECKPOINT)


def thin(path: Path, end: int, part: Path, stride: int) -> int:
    """What is before ``end``, into ``part``. The bytes of samples that it has."""
    found, _ = scan(path, MAGIC, KIND)
    entries = list(_thinned((CODEC.decode(body) for at, body in found if at < end), stride))
    file = RecordFile.create(part, MAGIC)
    file.append(*map(CODEC.encode, entries))
    file.close()
    return sum(map(sample_bytes, entries))


def sample_bytes(entry: Entry) -> int:
    return len(entry.data) if isinstance(entry, Chunk) and entry.sample else 0


def _thinned(entries: Iterable[Entry], stride: int) -> Iterator[Entry]:
    """The samples of a worker come together, before the next agent begins."""
    samples: dict[int, list[Chunk]] = {}
    for entry in entries:
        if isinstance(entry, Chunk) and entry.sample:
            samples.setdefault(entry.worker, []).append(entry)
            continue
        if isinstance(entry, Opened):
            yield from _joined(samples, stride)
            samples.clear()
        yield entry
    yield from _joined(samples, stride)


def _joined(samples: dict[int, list[Chunk]], stride: int) -> Iterator[Chunk]:
    for worker, chunks in samples.items():
        data = b"".join(chunk.data for chunk in chunks)
        kept = bytearray()
        for start, stop, step, checkpoint in _units(unpack(data)):
            if is_sample(step, stride, checkpoint):
                kept += data[start * NOTE.size : stop * NOTE.size]
        for start in range(0, len(kept), _CHUNK_BYTES):
            yield Chunk(worker, chunks[-1].rank, sample=True, data=bytes(kept[start : start + _CHUNK_BYTES]))


def _units(notes: list[Note]) -> Iterator[tuple[int, int, int, bool]]:
    """From where to where each step goes, by which number it is chosen, and whether it has a checkpoint."""
    start, step, checkpoint = 0, -1, False
    begin: tuple[int, int] | None = None
    for index, note in enumerate(notes):
        if note.mark == _FORWARD and (note.step, note.attempt) != begin:
            if index > start:
                yield start, index, step, checkpoint
            begin = note.step, note.attempt
            start, step, checkpoint = index, note.step, False
        if note.mark == _CHECKPOINT:  # often in an odd step, before an even one
            step, checkpoint = note.step, True
    if len(notes) > start:
        yield start, len(notes), step, checkpoint
