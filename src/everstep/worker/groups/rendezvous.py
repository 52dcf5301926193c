"""Where the members of a group find each other: each publishes one small address, all get the rows of all.

A `torch.distributed.Store` in front of the connection to the agent. It carries rendezvous and nothing else: a
process group of this generation asks for its rows, and a Stop makes every wait of an older generation fail.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NoReturn

from torch._C._distributed_c10d import Store

from everstep.errors import RuleError
from everstep.types import Generation

CONNECT_S = 60.0
"""For all members to come. Only against hangs: who does not come is found by the detector, and a Stop ends the wait."""

Publish = Callable[[Generation, str, int, int, bytes], None]
"""Tell the others of a group: generation, key, rank in the group, its size, address."""


@dataclass(slots=True)
class _Meeting:
    own: dict[int, bytes] = field(default_factory=dict)
    rows: tuple[bytes, ...] = ()


class Rendezvous:
    """One for a process. Its stores wait in the threads that build groups; rows and Stops come from control."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._changed = threading.Condition()
        self._meetings: dict[tuple[Generation, str], _Meeting] = {}
        self._oldest = Generation(0)

    def arrive(self, generation: Generation, key: str, rows: Sequence[bytes]) -> None:
        """All members have published."""
        with self._changed:
            self._meetings.setdefault((generation, key), _Meeting()).rows = tuple(rows)
            self._changed.notify_all()

    def abandon(self, before: Generation) -> None:
        """Nobody waits for a generation before this one any more."""
        with self._changed:
            self._oldest = max(self._oldest, before)
            for old in [place for place in self._meetings if place[0] < self._oldest]:
                del self._meetings[old]
            self._changed.notify_all()

    def store(self, generation: Generation, key: str, size: int) -> MeetingStore:
        return MeetingStore(self, generation, key, size)

    def every_row(self) -> list[bytes]:
        """Every address that this process has published or heard of, in the generations that are not abandoned."""
        with self._changed:
            return [row for meeting in self._meetings.values() for row in (*meeting.own.values(), *meeting.rows)]

    def publish(self, generation: Generation, key: str, rank: int, size: int, address: bytes) -> None:
        with self._changed:
            self._check(generation)
            self._meetings.setdefault((generation, key), _Meeting()).own[rank] = address
        if size == 1:
            self.arrive(generation, key, [address])
        else:
            self._publish(generation, key, rank, size, address)

    def wait(self, generation: Generation, key: str, timeout_s: float) -> tuple[bytes, ...]:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                self._check(generation)
                meeting = self._meetings.get((generation, key))
                if meeting is not None and meeting.rows:
                    return meeting.rows
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise RuntimeError(f"group {key}: not every member came within {timeout_s:.0f} s")

    def _check(self, generation: Generation) -> None:
        if generation < self._oldest:
            raise RuntimeError(f"generation {generation} was stopped while its groups were being made")


class MeetingStore(Store):
    """What a backend is given to find its peers: keys end in the rank they belong to."""

    def __init__(self, rendezvous: Rendezvous, generation: Generation, key: str, size: int) -> None:
        super().__init__()
        self._rendezvous = rendezvous
        self._place = (generation, key)
        self._size = size
        self.set_timeout(timedelta(seconds=CONNECT_S))

    def beside(self, name: str) -> MeetingStore:
        """For a second address of the same members."""
        generation, key = self._place
        return MeetingStore(self._rendezvous, generation, f"{key}/{name}", self._size)

    def set(self, key: str, value: str | bytes) -> None:
        address = value.encode() if isinstance(value, str) else bytes(value)
        self._rendezvous.publish(*self._place, _rank_of(key), self._size, address)

    def get(self, key: str) -> bytes:
        return self._rendezvous.wait(*self._place, CONNECT_S)[_rank_of(key)]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._rendezvous.wait(*self._place, CONNECT_S)


class NoStore(Store):
    """What `torch.distributed` holds for the job: nothing of everstep goes through a store."""

    def set(self, key: str, value: str | bytes) -> NoReturn:
        self._refuse(key)

    def get(self, key: str) -> NoReturn:
        self._refuse(key)

    def add(self, key: str, value: int) -> NoReturn:
        self._refuse(key)

    def check(self, keys: list[str]) -> NoReturn:
        self._refuse(", ".join(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> NoReturn:
        self._refuse(", ".join(keys))

    def _refuse(self, key: str) -> NoReturn:
        raise RuleError(
            f"the key {key!r} was asked of the store of torch.distributed: a job of everstep has none, because a store "
            "does not survive its members; use a collective before protect() or a file"
        )


def _rank_of(key: str) -> int:
    return int(key.rpartition("/")[2])
