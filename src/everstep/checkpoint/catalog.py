"""What checkpoints a store has, which of them are good, and the shares of one.

Quick checks read the COMMIT and the header of every file; a full one reads every byte. Found damage is written down
beside the checkpoint, so that nobody tries it again.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from everstep.checkpoint import names
from everstep.checkpoint.commit import Commit, read_commit
from everstep.checkpoint.files import ShareFile
from everstep.checkpoint.store import Store, open_store
from everstep.core.events import Checkpoint
from everstep.errors import CheckpointError, ConfigError, Unreadable
from everstep.types import Rank

log = logging.getLogger(__name__)


class Condition(enum.StrEnum):
    COMMITTED = "committed"
    INCOMPLETE = "incomplete"  # no COMMIT: it was not finished, or is being written
    BAD = "bad"  # it was found damaged
    UNREADABLE = "unreadable"  # storage does not give it, or it is of another version of everstep


@dataclass(frozen=True, slots=True)
class Found:
    """One directory of a checkpoint."""

    directory: str
    checkpoint: Checkpoint
    condition: Condition
    commit: Commit | None
    """Of a committed one."""
    reason: str = ""
    """Why it is not a good one."""


def locate(path: Path) -> tuple[Store, Checkpoint | None]:
    """The store that a path means: a run, a checkpoint directory, or one checkpoint, which is given too."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a directory: name a run, a checkpoint directory, or one checkpoint in it")
    if (only := names.checkpoint_in(path.resolve().name)) is not None:
        return open_store(str(path.resolve().parent)), only
    inside = path / names.DEFAULT
    return open_store(str(inside if inside.is_dir() else path)), None


def claim_attempt(store: Store) -> int:
    """The number of this job among all that have used this store, for the names of its checkpoints."""
    taken = [int(name) for name in store.names(names.ATTEMPTS) if name.isdecimal()]
    taken += [checkpoint.attempt for _, checkpoint in _directories(store)]
    attempt = max(taken, default=0) + 1
    while not store.claim(names.attempt_file(attempt)):
        attempt += 1
    return attempt


def find(store: Store) -> list[Found]:
    """All of them, the newest first."""
    found = [_look(store, directory, checkpoint) for directory, checkpoint in _directories(store)]
    return sorted(found, key=lambda each: each.checkpoint.age, reverse=True)


def good(store: Store) -> Iterator[Found]:
    """Those that pass the quick check, the newest first. Damage that is met is marked and logged."""
    for each in find(store):
        if each.commit is None:
            if each.condition is not Condition.INCOMPLETE:
                log.warning("checkpoint %s is not used: %s", each.directory, each.reason)
            continue
        try:
            check(store, each.commit)
        except Unreadable as error:
            log.warning("checkpoint %s is not used: %s", each.directory, error)
        except CheckpointError as error:
            log.warning("checkpoint %s is not used: %s", each.directory, error)
            mark_bad(store, each.checkpoint, str(error))
        else:
            yield each


def check(store: Store, commit: Commit) -> None:
    """Every file is there, with the size and the header that were committed; else a CheckpointError."""
    for rank in range(commit.world_size):
        open_share(store, commit, Rank(rank)).close()


def verify(store: Store, commit: Commit) -> Iterator[CheckpointError]:
    """Read every byte; what is wrong, one for each file."""
    for rank in range(commit.world_size):
        try:
            with open_share(store, commit, Rank(rank)) as share:
                share.verify()
        except CheckpointError as error:
            yield error


def open_share(store: Store, commit: Commit, rank: Rank) -> ShareFile:
    """One rank's file, with its size and its header as they were committed. CheckpointError: it is not that."""
    share = commit.shares[rank]
    file = ShareFile(store, commit.name_of(rank), share.digest, share.size_bytes)
    manifest = file.manifest
    if manifest.checkpoint != commit.checkpoint or manifest.rank != rank:
        file.close()
        raise CheckpointError(f"{file.where} is the share of rank {manifest.rank} of {manifest.checkpoint}")
    return file


def mark_bad(store: Store, checkpoint: Checkpoint, reason: str) -> bool:
    """Nobody loads it again. False: the store cannot be written, so each who meets it finds the damage anew."""
    try:
        store.put(f"{names.directory_of(checkpoint)}/{names.BAD}", f"{reason}\n".encode())
    except OSError as error:
        log.warning("the damage of %s cannot be written down: %s", names.directory_of(checkpoint), error.strerror)
        return False
    return True


def _directories(store: Store) -> Iterator[tuple[str, Checkpoint]]:
    for name in store.names():
        if (checkpoint := names.checkpoint_in(name)) is not None:
            yield name, checkpoint


def _look(store: Store, directory: str, checkpoint: Checkpoint) -> Found:
    try:
        if (marked := _mark(store, directory)) is not None:
            return Found(directory, checkpoint, Condition.BAD, None, marked)
        commit = read_commit(store, directory)
    except Unreadable as error:
        return Found(directory, checkpoint, Condition.UNREADABLE, None, str(error))
    except CheckpointError as error:
        return Found(directory, checkpoint, Condition.BAD, None, str(error))
    if commit is None:
        return Found(directory, checkpoint, Condition.INCOMPLETE, None, "it was not committed")
    return Found(directory, checkpoint, Condition.COMMITTED, commit)


def _mark(store: Store, directory: str) -> str | None:
    name = f"{directory}/{names.BAD}"
    try:
        return store.read(name).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(f"{store.where}/{name}: {error.strerror}") from None
