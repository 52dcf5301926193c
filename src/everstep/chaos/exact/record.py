"""What is left of an exact run: for each rank hashes of its state and the loss of each step, as files.

A loss is written with one append, so that no kill loses or tears a line; a rank that was replaced goes on in the file
of its forerunner. Needs torch for the hashes only.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

Loss = tuple[int, int]
"""Rank and step."""


def fingerprint(state: object) -> str:
    """A hash over every bit of it: tensors, numbers, containers, and what has a `state_dict`."""
    digest = hashlib.sha256()
    _feed(digest, state)
    return digest.hexdigest()


def _feed(digest: Any, state: Any) -> None:
    """Each value with its type, so that 1, 1.0 and True differ; of an unordered one the order is that of its keys."""
    if hasattr(state, "state_dict"):
        state = state.state_dict()
    if isinstance(state, Mapping):
        digest.update(b"mapping")  # of whatever kind
        for key in sorted(state, key=repr):
            digest.update(repr(key).encode())
            _feed(digest, state[key])
        return
    if hasattr(state, "to_local"):
        state = state.to_local()  # this rank's piece of a sharded tensor
    digest.update(type(state).__name__.encode())
    if hasattr(state, "untyped_storage"):
        dense = state.detach().cpu().contiguous()
        digest.update(f"{dense.dtype}{tuple(dense.shape)}".encode())
        digest.update(ctypes.string_at(dense.data_ptr(), dense.numel() * dense.element_size()))
    elif isinstance(state, list | tuple):
        for value in state:
            _feed(digest, value)
    elif isinstance(state, str | int | float | None):
        digest.update((state.hex() if isinstance(state, float) else repr(state)).encode())
    else:
        raise TypeError(f"{type(state).__name__} has no defined bytes")


class Recorder:
    """The files of one rank, whoever fills it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._losses = os.open(_losses(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def loss(self, step: int, loss: float) -> None:
        os.write(self._losses, f"{step} {loss.hex()} {os.getpid()}\n".encode())

    def note(self, word: str) -> None:
        """That something happened which a test wants to have happened."""
        (self._folder / f"note-{word}-{self._rank}-{os.getpid()}").touch()

    def result(self, parts: Mapping[str, object]) -> None:
        hashes = {name: fingerprint(state) for name, state in parts.items() if state is not None}
        part = self._folder / f"result-{self._rank}.part"
        part.write_text(json.dumps(hashes))
        part.replace(_result(self._folder, self._rank))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the ranks of one run have written."""

    ranks: int
    hashes: dict[int, dict[str, str]]
    """For each rank that finished, by the part of its state."""
    losses: dict[Loss, str]
    twice: tuple[str, ...]
    """Steps of which a rank wrote two different losses: a redo that was none."""

    @classmethod
    def read(cls, folder: Path, ranks: int) -> Self:
        results = {rank: _result(folder, rank) for rank in range(ranks)}
        hashes = {rank: json.loads(path.read_text()) for rank, path in results.items() if path.exists()}
        losses: dict[Loss, str] = {}
        twice: list[str] = []
        for rank in range(ranks):
            for line in _lines(_losses(folder, rank)):
                step, loss, _ = line.split()
                before = losses.setdefault((rank, int(step)), loss)
                if before != loss:
                    twice.append(f"rank {rank} had the losses {before} and {loss} in step {step}")
        return cls(ranks, hashes, losses, tuple(twice))

    def gaps(self, steps: int) -> list[str]:
        """What a run without failures has and this one has not."""
        missing = [f"rank {rank} has no result" for rank in range(self.ranks) if not self.hashes.get(rank)]
        for rank in range(self.ranks):
            missing.extend(
                f"rank {rank} has no step {step}" for step in range(steps) if (rank, step) not in self.losses
            )
        return missing


def differences(clean: Outcome, seen: Outcome) -> list[str]:
    """Each sentence is a bit that was lost; none: the two runs are equal.

    A rank that died after its update and before it wrote the loss leaves a gap, because nobody runs that step again.
    So each step has to be there of some rank, and what is there has to be equal.
    """
    found = list(seen.twice)
    for rank in range(clean.ranks):
        ours, theirs = clean.hashes[rank], seen.hashes.get(rank)
        if theirs is None:
            found.append(f"rank {rank} has no result")
            continue
        names = sorted(ours.keys() | theirs.keys())
        found.extend(f"rank {rank} ends on other {name}" for name in names if ours.get(name) != theirs.get(name))
    for place, loss in sorted(seen.losses.items()):
        if clean.losses.get(place) != loss:
            found.append("rank {} in step {}: loss {}, not {}".format(*place, loss, clean.losses.get(place)))
    missing = {step for _, step in clean.losses} - {step for _, step in seen.losses}
    found.extend(f"no rank has a loss of step {step}" for step in sorted(missing))
    return found


def _losses(folder: Path, rank: int) -> Path:
    return folder / f"losses-{rank}"


def _result(folder: Path, rank: int) -> Path:
    return folder / f"result-{rank}.json"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
