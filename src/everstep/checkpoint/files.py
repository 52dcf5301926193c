"""One share in a safetensors file: written while it is hashed, read with every digest checked.

    length of the header, 8 bytes · header in JSON, spaces up to a page · the tensors, without gaps

The header has what stock torch.distributed.checkpoint readers want (DCP_SHARDING_INFO), and under ``everstep`` the
manifest and a digest for each tensor. Digests have a fixed width, so the header is sized before they are known and
written last. docs/checkpoint-format.md is the specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import xxhash

from everstep.checkpoint.manifest import Entry, Manifest
from everstep.checkpoint.store import Part, Source, Store
from everstep.errors import CheckpointError, StateError, Unreadable

FORMAT = 1
PAGE_BYTES = 4096
HEADER_LIMIT_BYTES = 100_000_000
"""What the safetensors library reads at most."""
BLOCK_BYTES = 256 << 10
"""What is read is hashed and written while it is in the cache of the core."""
_LENGTH_BYTES = 8

ReadInto = Callable[[int, memoryview], None]
"""Fills the buffer with the data of a share from this byte on."""
_NO_DIGEST = "0" * 32


class Note(msgspec.Struct, frozen=True):
    """What a file holds beyond its tensors."""

    format: int
    manifest: Manifest
    digests: dict[str, str]
    """xxh3-128 of the bytes of each tensor, by key."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is durable."""

    size_bytes: int
    digest: str
    """xxh3-128 of its header, which has the digests of the tensors."""


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_NOTE = msgspec.json.Decoder(Note)
_OUTLINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXTS = msgspec.json.Decoder(dict[str, str])


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────


def write(
    store: Store, name: str, manifest: Manifest, read_into: ReadInto, check: Callable[[], object] = lambda: None
) -> Written:
    """Make the share durable under this name. OSError: it is not there, and nothing else either.

    ``check`` is called when all data has been read, and raises if it was not the same all the time.
    """
    entries = _stored(manifest)
    header_bytes = len(_header(manifest, entries, [_NO_DIGEST] * len(entries)))
    part = store.part(name)
    try:
        digests = _stream(part, header_bytes, entries, read_into)
        check()
        header = _header(manifest, entries, digests)
        assert len(header) == header_bytes, "the digests have changed the size of the header"
        part.write(0, header)
        part.publish()
    finally:
        part.discard()
    return Written(header_bytes + _size_bytes(entries), xxhash.xxh3_128_hexdigest(header))


def _stream(part: Part, offset: int, entries: list[Entry], read_into: ReadInto) -> list[str]:
    """Block by block, so that the data comes from memory once."""
    hashes = [xxhash.xxh3_128() for _ in entries]
    size_bytes, current = _size_bytes(entries), 0
    room = memoryview(bytearray(min(BLOCK_BYTES, size_bytes)))
    for begin in range(0, size_bytes, BLOCK_BYTES):
        block = room[: size_bytes - begin]
        end = begin + len(block)
        read_into(begin, block)
        part.write(offset + begin, block)
        for number in range(current, len(entries)):
            entry = entries[number]
            if entry.start >= end:
                break
            current = number
            hashes[number].update(block[max(0, entry.start - begin) : entry.start + entry.size_bytes - begin])
    return [each.hexdigest() for each in hashes]


def _size_bytes(entries: list[Entry]) -> int:
    return entries[-1].start + entries[-1].size_bytes if entries else 0


def _stored(manifest: Manifest) -> list[Entry]:
    """The tensors in the file, in the order of their bytes. Those without elements are only in the manifest."""
    entries = sorted((entry for entry in manifest.own() if entry.size_bytes), key=lambda entry: entry.start)
    end = 0
    for entry in entries:
        if entry.start != end:
            raise StateError(f"{entry.key} begins at byte {entry.start} of its share and not at {end}")
        end += entry.size_bytes
    keys = [entry.key for entry in entries]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise StateError(f"two tensors of one share have the key {twice}")
    return entries


def _header(manifest: Manifest, entries: list[Entry], digests: list[str]) -> bytes:
    note = Note(FORMAT, manifest, dict(zip((entry.key for entry in entries), digests, strict=True)))
    sharding = {entry.key: {"saved_offsets": entry.offsets} for entry in entries}
    header: dict[str, Any] = {
        "__metadata__": {
            "format": "pt",
            "DCP_VERSION": "1.0",
            "DCP_SHARDING_INFO": msgspec.json.encode(sharding).decode(),
            "everstep": msgspec.json.encode(note).decode(),
        }
    }
    for entry in entries:
        header[entry.key] = _Tensor(entry.dtype, entry.shape, (entry.start, entry.start + entry.size_bytes))
    encoded = msgspec.json.encode(header)
    total_bytes = -(-(_LENGTH_BYTES + len(encoded)) // PAGE_BYTES) * PAGE_BYTES
    if total_bytes > HEADER_LIMIT_BYTES:
        raise StateError(
            f"what is no tensor in the state of rank {manifest.rank} makes a header of {total_bytes} bytes; readers "
            f"take {HEADER_LIMIT_BYTES}: keep large things as tensors, or out of state_dict()"
        )
    length = total_bytes - _LENGTH_BYTES
    return length.to_bytes(_LENGTH_BYTES, "little") + encoded.ljust(length)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────


class ShareFile:
    """A share on storage. What it gives is what was written, or it raises a CheckpointError that says what is wrong."""

    def __init__(self, store: Store, name: str, digest: str | None = None, size_bytes: int | None = None) -> None:
        """``digest`` and ``size_bytes`` as the COMMIT has them; None trusts the file."""
        self.where = f"{store.where}/{name}"
        try:
            self._source: Source = store.source(name)
        except FileNotFoundError:
            raise CheckpointError(f"{self.where} is missing") from None
        except OSError as error:
            raise Unreadable(f"{self.where} cannot be opened: {error.strerror}") from None
        try:
            if size_bytes is not None and self._source.size_bytes != size_bytes:
                raise self._bad(f"it has {self._source.size_bytes} bytes instead of {size_bytes}")
            header = self._read_header()
            if digest is not None and xxhash.xxh3_128_hexdigest(header) != digest:
                raise self._bad("the checksum of its header is wrong")
            note = self._parse(header)
        except BaseException:
            self.close()
            raise
        self.manifest = note.manifest
        self._digests = note.digests
        self._data_at = len(header)

    def read_into(self, entry: Entry, buffer: bytearray | memoryview) -> None:
        """The bytes of one of its own tensors, right into where they belong."""
        if len(buffer) != entry.size_bytes:
            raise StateError(f"{entry.name} takes {len(buffer)} bytes here and has {entry.size_bytes} in {self.where}")
        if not entry.size_bytes:
            return
        self._fill(self._data_at + entry.start, buffer, entry.key)
        if xxhash.xxh3_128_hexdigest(buffer) != self._digests.get(entry.key):
            raise self._bad(f"the checksum of {entry.key} is wrong")

    def verify(self) -> None:
        """Read every tensor."""
        for entry in self.manifest.own():
            digest = xxhash.xxh3_128()
            block = memoryview(bytearray(min(BLOCK_BYTES, entry.size_bytes)))
            for begin in range(0, entry.size_bytes, BLOCK_BYTES):
                piece = block[: entry.size_bytes - begin]
                self._fill(self._data_at + entry.start + begin, piece, entry.key)
                digest.update(piece)
            if entry.size_bytes and digest.hexdigest() != self._digests.get(entry.key):
                raise self._bad(f"the checksum of {entry.key} is wrong")

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_header(self) -> bytes:
        size_bytes = self._source.size_bytes
        start = bytearray(_LENGTH_BYTES)
        self._fill(0, start, "its header")
        length = int.from_bytes(start, "little")
        if not length <= min(size_bytes, HEADER_LIMIT_BYTES) - _LENGTH_BYTES:
            raise self._bad(f"its header should have {length} bytes, the file has {size_bytes}")
        rest = bytearray(length)
        self._fill(_LENGTH_BYTES, rest, "its header")
        return bytes(start + rest)

    def _parse(self, header: bytes) -> Note:
        try:
            outline = _OUTLINE.decode(header[_LENGTH_BYTES:])
            note = _NOTE.decode(_TEXTS.decode(outline["__metadata__"])["everstep"])
        except KeyError:
            raise self._bad("it was not written by everstep") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._bad(f"its header is {error}") from None
        if note.format != FORMAT:
            raise self._bad(f"it has format {note.format}; this version of everstep reads {FORMAT}")
        return note

    def _fill(self, offset: int, buffer: bytearray | memoryview, what: str) -> None:
        try:
            count = self._source.read_into(offset, buffer)
        except OSError as error:
            raise Unreadable(f"{self.where}: {what} cannot be read: {error.strerror}") from None
        if count < len(buffer):
            raise self._bad(f"it ends within {what}")

    def _bad(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {what}")
