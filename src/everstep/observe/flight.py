"""Reads what the flight recorders of all nodes have written, together with the journal: one lane for each worker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from everstep.errors import ConfigError, WireError
from everstep.observe.clocks import NodeClock
from everstep.observe.history import JOB_ENDED, Fate, read_history
from everstep.observe.notes import (
    CODEC,
    FOLDER,
    KIND,
    MAGIC,
    NOTE,
    Chunk,
    Clock,
    Entry,
    Gone,
    Note,
    Opened,
    marks,
    unpack,
)
from everstep.observe.timeline import Lane, Span
from everstep.types import Mark, WorkerId
from everstep.wire.records import scan

EVER = (-math.inf, math.inf)
_KNOWN = frozenset(Mark)
_NAMES = {int(mark): mark.name for mark in Mark}
_STOP, _END = int(Mark.STOP), int(Mark.END)
_IN_AN_UPDATE = [Mark.COMMITTED, Mark.STOP, Mark.IDLE]


def read_lanes(run_dir: Path, within: tuple[float, float] = EVER) -> tuple[Lane, ...]:
    """All workers of a run, by rank and age; also of one that is under way, or of which files are missing.

    A worker of which nothing was recorded has no spans. ``within`` leaves out spans that lie outside of these seconds.
    A file of another version, or one that is damaged, is a ConfigError.
    """
    fates = read_history(run_dir / "journal").workers
    tracks: dict[int, _Track] = {}
    for path in sorted((run_dir / FOLDER).glob("*.flight")):
        for session in _sessions(path):
            tracks.update(session.tracks)
    lanes = [_lane(worker, tracks.get(worker), fates.get(WorkerId(worker)), within) for worker in {*tracks, *fates}]
    return tuple(sorted(lanes, key=lambda lane: (math.inf if lane.rank is None else lane.rank, lane.worker)))


@dataclass(slots=True)
class _Track:
    """One worker in the file of its node."""

    node: str
    clocks: list[Clock]
    opened: Opened
    rank: int | None = None
    chunks: list[bytes] = field(default_factory=list)
    gone: Gone | None = None


@dataclass(slots=True)
class _Session:
    """What one agent has written."""

    opened: Opened
    clocks: list[Clock] = field(default_factory=list)
    tracks: dict[int, _Track] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        if isinstance(entry, Clock):
            self.clocks.append(entry)
        elif isinstance(entry, Chunk):
            track = self._track(entry.worker)
            track.rank = entry.rank if entry.rank is not None else track.rank
            if len(entry.data) % NOTE.size or not entry.data:
                raise WireError(f"{len(entry.data)} bytes of notes")
            if strange := set(marks(entry.data)) - _KNOWN:
                raise WireError(f"phase {min(strange)}")
            track.chunks.append(entry.data)
        elif isinstance(entry, Gone):
            self._track(entry.worker).gone = entry

    def _track(self, worker: int) -> _Track:
        return self.tracks.setdefault(worker, _Track(self.opened.node, self.clocks, self.opened))


def _sessions(path: Path) -> Iterator[_Session]:
    session: _Session | None = None
    for at, body in scan(path, MAGIC, KIND)[0]:
        try:
            entry = CODEC.decode(body)
            if isinstance(entry, Opened):
                if session is not None:
                    yield session
                session = _Session(entry)
            elif session is not None:
                session.take(entry)
        except WireError as error:
            raise ConfigError(
                f"{path} holds something at byte {at} that another version of everstep has written: {error}"
            ) from None
    if session is not None:
        yield session


def _lane(worker: int, track: _Track | None, fate: Fate | None, within: tuple[float, float]) -> Lane:
    end_s, end = (fate.end_s, fate.end) if fate is not None else (None, "")
    rank: int | None = fate.rank if fate is not None else None
    if track is None:
        return Lane(worker, rank, fate.node if fate is not None else "", (), end_s, end)
    clock = NodeClock(track.opened, track.clocks)
    if track.gone is not None:
        gone_s = clock.wall_s(track.gone.at_ns)
        if not end or (end == JOB_ENDED and end_s is not None and gone_s < end_s):
            end = track.gone.how
        end_s = gone_s
    rank = track.rank if rank is None else rank
    return Lane(worker, rank, track.node, tuple(_spans(track.chunks, clock, within)), end_s, end)


def _spans(chunks: Iterable[bytes], clock: NodeClock, within: tuple[float, float]) -> Iterator[Span]:
    # What was taken as a sample may have been written again when a failure followed.
    ordered = sorted({note for data in _near(chunks, clock, within) for note in unpack(data)})
    _let_updates_end(ordered)
    for note, following in zip_longest(ordered, ordered[1:]):
        if note.mark == _END:
            continue
        start_s = clock.wall_s(note.at_ns)
        end_s = clock.wall_s(following.at_ns) if following is not None else None
        if start_s > within[1] or (end_s is not None and end_s < within[0]):
            continue
        yield Span(_NAMES[note.mark], note.step, note.attempt, note.generation, start_s, end_s)


def _near(chunks: Iterable[bytes], clock: NodeClock, within: tuple[float, float]) -> Iterator[bytes]:
    """Those with notes of that time, and the ones next to it: a span may begin or end in these."""
    before: tuple[float, bytes] | None = None
    after: tuple[float, bytes] | None = None
    for data in chunks:
        first_s = clock.wall_s(NOTE.unpack_from(data)[0])
        last_s = clock.wall_s(NOTE.unpack_from(data, len(data) - NOTE.size)[0])
        if last_s < within[0]:
            before = max(before or (last_s, data), (last_s, data))
        elif first_s > within[1]:
            after = min(after or (first_s, data), (first_s, data))
        else:
            yield data
    yield from (data for _, data in filter(None, (before, after)))


def _let_updates_end(notes: list[Note]) -> None:
    """A Stop cuts the collectives, and an update needs none: it goes on to its end, and only then the worker stands."""
    for index in reversed([index for index, note in enumerate(notes) if note.mark == _STOP]):
        if [note.mark for note in notes[max(0, index - 1) : index + 2]] == _IN_AN_UPDATE:
            notes[index : index + 2] = [notes[index + 1]._replace(mark=_STOP)]
