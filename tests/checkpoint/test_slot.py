"""A memory checkpoint: what a reader finds in a slot, whatever became of its writer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.checkpoint.conftest import fill, manifest, point, share

from everstep.checkpoint.slot import SlotKeeper, SlotReader, SlotState, SlotWriter, choose, slot_bytes
from everstep.errors import CheckpointError, ResourceError, SlotHeld

OLD, NEW = point(10), point(20)


@pytest.fixture
def slot(tmp_path: Path) -> Path:
    return fill(tmp_path / "slot-0-0", OLD, 0)


def test_a_sealed_share_is_read_as_it_was_written(slot: Path) -> None:
    with SlotReader(slot) as reader:
        content = reader.read(OLD)
        assert content.manifest == manifest(OLD, 0)
        assert bytes(content.data) == share(OLD, 0)


def test_what_was_read_outlives_the_reader(slot: Path) -> None:
    with SlotReader(slot) as reader:
        content = reader.read(OLD)
    assert bytes(content.data) == share(OLD, 0)


def test_the_data_begins_on_a_page(slot: Path) -> None:
    assert slot.read_bytes().index(share(OLD, 0)) % 4096 == 0


def test_a_file_of_zeros_is_an_empty_slot(tmp_path: Path) -> None:
    (tmp_path / "slot").write_bytes(bytes(8192))
    with SlotReader(tmp_path / "slot") as reader:
        assert (reader.state, reader.checkpoint) == (SlotState.EMPTY, None)
        with pytest.raises(CheckpointError, match="the slot is EMPTY"):
            reader.read(OLD)


def test_what_is_no_slot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "slot").write_bytes(b"other" * 1000)
    with pytest.raises(CheckpointError, match="is no slot of layout 1"):
        SlotReader(tmp_path / "slot")
    (tmp_path / "slot").write_bytes(b"")
    with pytest.raises(CheckpointError, match="it has 0 bytes"):
        SlotReader(tmp_path / "slot")


def test_another_checkpoint_than_the_one_asked_for_is_named(slot: Path) -> None:
    with SlotReader(slot) as reader, pytest.raises(CheckpointError, match=r"has Checkpoint\(step=10"):
        reader.read(NEW)


@pytest.mark.parametrize("stage", ["begun", "half written", "written"])
def test_a_writer_that_is_killed_before_the_seal_leaves_nothing(slot: Path, stage: str) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from everstep.checkpoint.slot import SlotWriter
from tests.checkpoint.conftest import manifest, point, share
data = SlotWriter(Path(sys.argv[1])).begin(manifest(point(20), 0))
end = {"begun": 0, "half written": len(data) // 2, "written": len(data)}[sys.argv[2]]
data[:end] = share(point(20), 0)[:end]
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script, str(slot), stage], cwd=root, timeout=60, check=False)
    assert done.returncode == -9
    with SlotReader(slot) as reader:
        assert reader.state is SlotState.WRITING
        for wanted in (OLD, NEW):
            with pytest.raises(CheckpointError, match="the slot is WRITING"):
                reader.read(wanted)
    fill(slot, NEW, 0)  # the next worker of the rank uses it as if nothing had been
    with SlotReader(slot) as reader:
        assert bytes(reader.read(NEW).data) == share(NEW, 0)


def test_a_held_slot_is_not_overwritten(slot: Path) -> None:
    with SlotKeeper(slot) as keeper, SlotWriter(slot) as writer, SlotReader(slot) as reader:
        assert keeper.hold(OLD)
        with pytest.raises(SlotHeld, match="is held"):
            writer.begin(manifest(NEW, 0))
        assert bytes(reader.read(OLD).data) == share(OLD, 0)
        keeper.release()
        writer.begin(manifest(NEW, 0)).release()
        assert reader.state is SlotState.WRITING


def test_only_what_is_there_can_be_held(slot: Path) -> None:
    with SlotKeeper(slot) as keeper, SlotWriter(slot) as writer:
        assert not keeper.hold(NEW)
        assert not keeper.held
        writer.begin(manifest(NEW, 0)).release()
        assert not keeper.hold(OLD), "it is being overwritten"
        writer.seal()
        assert keeper.hold(NEW)


def test_a_writer_that_finds_the_hold_in_the_last_moment_steps_back(
    slot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent holds between the two looks of the worker."""
    with SlotKeeper(slot) as keeper, SlotWriter(slot) as writer:

        class Words:
            def __init__(self, words: memoryview) -> None:
                self._words = words

            def __getitem__(self, word: int) -> int:
                return int(self._words[word])

            def __setitem__(self, word: int, value: int) -> None:
                if value == SlotState.WRITING:
                    assert keeper.hold(OLD)
                self._words[word] = value

            def release(self) -> None:
                self._words.release()

        monkeypatch.setattr(writer, "_words", Words(writer._words))
        with pytest.raises(SlotHeld):
            writer.begin(manifest(NEW, 0))
        assert keeper.checkpoint == OLD


def test_a_share_that_has_grown_does_not_fit_and_harms_nothing(slot: Path) -> None:
    grown = msgspec.structs.replace(manifest(NEW, 0), values=bytes(10_000))
    with SlotWriter(slot) as writer, SlotReader(slot) as reader:
        need = slot_bytes(grown.data_bytes, len(msgspec.msgpack.encode(grown)))
        with pytest.raises(ResourceError, match=f"has {slot.stat().st_size} bytes, the share needs {need}"):
            writer.begin(grown)
        assert bytes(reader.read(OLD).data) == share(OLD, 0)


def test_a_damaged_header_is_found(slot: Path) -> None:
    whole = slot.read_bytes()
    for at in (*range(128, 176), *range(4096, 4096 + 300, 7)):  # the fields, their checksum, the manifest
        slot.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with SlotReader(slot) as reader, pytest.raises(CheckpointError):
            reader.read(OLD)


def test_the_slot_to_write_next_is_the_older_one_that_is_not_held(tmp_path: Path) -> None:
    first = fill(tmp_path / "0", point(30, generation=1), 0)
    second = fill(tmp_path / "1", point(20, generation=2), 0)  # it went back, and is the newer one all the same
    with SlotWriter(first) as a, SlotWriter(second) as b, SlotKeeper(first) as of_a, SlotKeeper(second) as of_b:
        assert choose([a, b]) is a
        assert of_a.hold(point(30, generation=1))
        assert choose([a, b]) is b
        assert of_b.hold(point(20, generation=2))
        assert choose([a, b]) is None
        of_a.release()
        of_b.release()
        b.begin(manifest(NEW, 0)).release()
        assert choose([a, b]) is b, "what was not sealed is worth nothing"
