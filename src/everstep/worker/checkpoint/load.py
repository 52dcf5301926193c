"""All ranks load one checkpoint together, from the memory of their nodes where it is there, else from storage.

    locate    who has which share in memory
    read      what this rank reaches, each digest checked
    exchange  what only others reach
    put       into the live objects

Behind each part all tell whether it went well, so that either all have the checkpoint or all say that it cannot be
used. Nobody waits for one that has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from everstep.checkpoint.catalog import mark_bad, open_share
from everstep.checkpoint.commit import Commit, read_commit
from everstep.checkpoint.names import directory_of
from everstep.checkpoint.slot import Slot
from everstep.checkpoint.store import Store, open_store
from everstep.core.events import Checkpoint
from everstep.errors import CheckpointError, Unreadable
from everstep.types import Rank, Step
from everstep.worker.checkpoint.assembly import Assembly, send_share
from everstep.worker.checkpoint.locate import Located, locate
from everstep.worker.checkpoint.reshard import Resharding
from everstep.worker.groups.exchange import gather_bytes
from everstep.worker.protection import Protection
from everstep.worker.state.protected import digest

log = logging.getLogger(__name__)

EVIDENCE_BYTES = 320
"""So much of an explanation is told to all."""

T = TypeVar("T")


class Loader:
    """For one load of one checkpoint. The groups are connected, and all ranks are here."""

    def __init__(
        self, protection: Protection, memory: Path, checkpoint_dir: str, mapped: Mapping[Path, Slot] | None = None
    ) -> None:
        """``mapped`` are the slots that this worker has open."""
        self._protection = protection
        self._group = protection.world.default
        self._rank = protection.rank
        self._layout = digest(protection.layout)
        self._memory = memory
        self._checkpoint_dir = checkpoint_dir
        self._mapped = mapped or {}

    def load(self, checkpoint: Checkpoint) -> int:
        """How many bytes it was for this rank. CheckpointError, on all ranks: it cannot be used, and this is why.
        RuntimeError: one more failure has come."""
        located = locate(self._group, self._memory, checkpoint, self._mapped)
        commit = None
        if located.missing:
            commit, fits = self._together(lambda: self._look(checkpoint))
            if b"\0" in self._say(bytes([fits])):
                return self._reshard(commit)
        with torch.no_grad():
            size_bytes = self._assemble(located, commit, checkpoint.step)
        self._protection.take_facts()
        self._protection.private.start_anew(self._group, checkpoint.step)
        return size_bytes

    # ── as it was ────────────────────────────────────────────────────────────────────────────────────────

    def _assemble(self, located: Located, commit: Commit | None, version: Step) -> int:
        protection, rank, group = self._protection, self._rank, self._group
        assembly = Assembly(protection.state, self._layout)
        self._together(lambda: self._read(assembly, located, commit))
        for reader, share, to in located.transfers(protection.coordinates):
            if rank == reader:
                send_share(group, to, located.here[share])
            elif rank == to:
                assembly.receive(group, reader)

        def put() -> None:
            private = assembly.finish(protection.coordinate.replicate)
            if protection.private:
                protection.private.take(private, version)

        self._together(put)
        return assembly.size_bytes

    def _read(self, assembly: Assembly, located: Located, commit: Commit | None) -> None:
        """What this rank reaches by itself."""
        shard = self._protection.coordinate.shard
        for share in (Rank(rank) for rank, at in enumerate(self._protection.coordinates) if at.shard == shard):
            if located.reads(self._rank, share):
                assembly.take_slot(located.here[share])
            elif share in located.missing:
                assert commit is not None
                with self._noting_damage(commit.checkpoint), open_share(self._store, commit, share) as file:
                    assembly.take_file(file)

    @contextmanager
    def _noting_damage(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Beside the files, so that nobody tries them again."""
        try:
            yield
        except Unreadable:
            raise
        except CheckpointError as error:
            mark_bad(self._store, checkpoint, str(error))
            raise

    # ── as another job left it ───────────────────────────────────────────────────────────────────────────

    def _look(self, checkpoint: Checkpoint) -> tuple[Commit, bool]:
        """What storage has, and whether each rank finds its own share there as it is now."""
        commit = None
        if self._checkpoint_dir:
            with self._noting_damage(checkpoint):
                commit = read_commit(self._store, directory_of(checkpoint))
        if commit is None:
            raise CheckpointError("it is not complete in memory, and it was not committed to storage")
        saved = [(share.replicate, share.shard) for share in commit.shares]
        if saved != [(at.replicate, at.shard) for at in self._protection.coordinates]:
            return commit, False
        with self._noting_damage(checkpoint), open_share(self._store, commit, self._rank) as file:
            return commit, file.manifest.layout == self._layout

    def _reshard(self, commit: Commit) -> int:
        protection = self._protection
        if self._rank == 0:
            log.warning(
                "everstep: step %d was saved by %d ranks in another layout; %d ranks load it now, so from here on each "
                "sees other data in another order, and what was private to a rank begins anew",
                commit.step,
                commit.world_size,
                len(protection.coordinates),
            )
        resharding = Resharding(protection.state, self._store, commit)

        def verify() -> None:
            with self._noting_damage(commit.checkpoint):
                resharding.verify(self._rank, len(protection.coordinates))

        self._together(verify)
        with protection.own_facts(), torch.no_grad():
            protection.private.reset()  # first: buffers may be private and saved too
            size_bytes = self._together(resharding.load)
        protection.private.start_anew(self._group, commit.checkpoint.step)
        return size_bytes

    # ── all together ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def _store(self) -> Store:
        return open_store(self._checkpoint_dir)

    def _together(self, work: Callable[[], T]) -> T:
        """Do it on all ranks; it succeeds on all, or raises the same CheckpointError on all."""
        results: list[T] = []
        evidence = ""
        try:
            results.append(work())
        except CheckpointError as error:
            evidence = str(error)
        except Exception as error:  # noqa: BLE001  (all wait for this rank; the script's load_state_dict() may raise)
            evidence = f"{type(error).__name__}: {error}"
        encoded = evidence.partition("\n")[0].encode()[:EVIDENCE_BYTES].ljust(EVIDENCE_BYTES, b"\0")
        said = self._say(encoded)
        for rank, words in enumerate(said):
            if found := words.rstrip(b"\0").decode(errors="replace"):
                raise CheckpointError(f"rank {rank}: {found}")
        return results[0]

    def _say(self, words: bytes) -> list[bytes]:
        return gather_bytes(self._group, words)
