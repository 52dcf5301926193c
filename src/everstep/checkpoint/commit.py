"""COMMIT.json: what makes a checkpoint one. It is written when every rank's share is durable, and names them all.

Without it a directory is an attempt that nobody loads. The controller writes it, and nobody changes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import msgspec
import xxhash

from everstep.checkpoint import names
from everstep.checkpoint.store import Store
from everstep.core.events import Checkpoint
from everstep.errors import CheckpointError, Unreadable
from everstep.types import Coordinate, Generation, Rank, Step
from everstep.wire.messages import Receipt

log = logging.getLogger(__name__)

FORMAT = 1


class Share(msgspec.Struct, frozen=True):
    """The file of one rank."""

    file: str
    replicate: int
    shard: int
    size_bytes: int
    digest: str
    """xxh3-128 of its header, which has the digests of its tensors."""


class Commit(msgspec.Struct, frozen=True):
    """A complete checkpoint."""

    format: int
    step: int
    generation: int
    attempt: int
    world_size: int
    shares: list[Share]
    """By rank."""
    time_s: float
    """When it was committed, in seconds since 1970."""
    versions: dict[str, str]
    digest: str = ""
    """xxh3-128 of all the rest, as compact JSON in this order with an empty digest."""

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(Step(self.step), Generation(self.generation), self.attempt)

    @property
    def directory(self) -> str:
        return names.directory_of(self.checkpoint)

    @property
    def bytes(self) -> int:
        return sum(share.size_bytes for share in self.shares)

    def name_of(self, rank: Rank) -> str:
        """Of its file in the store."""
        return f"{self.directory}/{self.shares[rank].file}"

    def sealed(self) -> Commit:
        return msgspec.structs.replace(self, digest=self._digest())

    @property
    def intact(self) -> bool:
        return self.digest == self._digest()

    def _digest(self) -> str:
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(msgspec.structs.replace(self, digest="")))


_COMMIT = msgspec.json.Decoder(Commit)


def commit(
    store: Store,
    checkpoint: Checkpoint,
    receipts: Sequence[Receipt],
    coordinates: Mapping[Rank, Coordinate],
    time_s: float,
) -> Commit:
    """Make it a checkpoint. CheckpointError: it is not complete. OSError: storage refuses; it may be tried again."""
    shares = {receipt.rank: _share(receipt, checkpoint, coordinates) for receipt in receipts}
    if missing := sorted(set(coordinates) - set(shares)):
        raise CheckpointError(f"{checkpoint} is not complete: there is no receipt of rank {missing[0]}")
    made = Commit(
        FORMAT,
        checkpoint.step,
        checkpoint.generation,
        checkpoint.attempt,
        len(coordinates),
        [shares[rank] for rank in sorted(coordinates)],
        time_s,
        {name: version(name) for name in ("everstep", "torch")},
    ).sealed()
    for share in made.shares:
        _look(store, made, share)
    store.put(f"{made.directory}/{names.COMMIT}", msgspec.json.format(msgspec.json.encode(made)))
    try:
        store.put(names.LATEST, f"{made.directory}\n".encode())
    except OSError as error:  # it is only a hint
        log.warning("%s/%s cannot be written: %s", store.where, names.LATEST, error.strerror)
    return made


def _share(receipt: Receipt, checkpoint: Checkpoint, coordinates: Mapping[Rank, Coordinate]) -> Share:
    if receipt.error or receipt.checkpoint != checkpoint or receipt.rank not in coordinates:
        raise CheckpointError(f"{checkpoint} cannot be committed with {receipt}")
    at = coordinates[receipt.rank]
    return Share(receipt.file, at.replicate, at.shard, receipt.size_bytes, receipt.digest)


def _look(store: Store, made: Commit, share: Share) -> None:
    """Whoever commits must see what the nodes have written, or it would vouch for what no other node can read."""
    name = f"{made.directory}/{share.file}"
    try:
        with store.source(name) as source:
            size_bytes = source.size_bytes
    except FileNotFoundError:
        raise CheckpointError(
            f"{store.where}/{name} was written on its node and is not there for the controller: "
            "--checkpoint-dir must be on a file system that all nodes share"
        ) from None
    if size_bytes != share.size_bytes:
        raise CheckpointError(f"{store.where}/{name} has {size_bytes} bytes; its node wrote {share.size_bytes}")


def read_commit(store: Store, directory: str) -> Commit | None:
    """None: it was never committed. CheckpointError: it was, and the COMMIT is damaged."""
    where = f"{store.where}/{directory}/{names.COMMIT}"
    try:
        data = store.read(f"{directory}/{names.COMMIT}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(f"{where}: {error.strerror}") from None
    try:
        found = _COMMIT.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from None
    if found.format != FORMAT:
        raise Unreadable(f"{where} has format {found.format}; this version of everstep reads {FORMAT}")
    if not found.intact or found.world_size != len(found.shares):
        raise CheckpointError(f"{where} is damaged: its checksum is wrong")
    if found.directory != directory:
        raise CheckpointError(f"{where} is of another checkpoint: {found.directory}")
    return found
