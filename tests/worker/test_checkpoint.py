"""Shares of the state: from live objects into slots, and from slots and files into live objects, by several ranks.

The ranks are threads of this process with real Gloo groups, real slots and real files. Each pair of ranks that has a
node in common has a folder in common.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from everstep.checkpoint.commit import commit
from everstep.checkpoint.files import write
from everstep.checkpoint.names import directory_of, file_of
from everstep.checkpoint.slot import SlotKeeper, SlotReader
from everstep.checkpoint.store import open_store
from everstep.core.events import Checkpoint
from everstep.errors import CheckpointError, ResourceError, SlotHeld
from everstep.types import Coordinate, Generation, Rank, Step
from everstep.wire.messages import Receipt
from everstep.worker.checkpoint.estimate import share_bytes
from everstep.worker.checkpoint.load import Loader
from everstep.worker.checkpoint.share import divide
from everstep.worker.checkpoint.snapshot import Snapshots
from everstep.worker.protection import Protection
from everstep.worker.state.tree import decode

LIMIT = timedelta(seconds=20)
SAVED = Checkpoint(Step(7), Generation(2), 1)
RANKS = 3


class Alone:
    """Of a `World` what protection and checkpoints need: its default group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.default = group
        self.groups: dict[str, Any] = {}


def _group(store: HashStore, rank: int, ranks: int) -> Any:
    return dist.ProcessGroupGloo(store, rank, ranks, LIMIT)


def together(work: Callable[[Any], Any], ranks: int = RANKS) -> list[Any]:
    """What each rank returns, or what it raises."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = HashStore()

    def end(rank: int) -> Any:
        world = Alone(_group(store, rank, ranks))
        try:
            return work(world)
        except CheckpointError as error:
            return str(error)

    with ThreadPoolExecutor(ranks) as pool:
        return [end.result() for end in [pool.submit(end, rank) for rank in range(ranks)]]


class Trained:
    """A model on one rank; replicas are equal. It has trained so many steps."""

    def __init__(self, world: Any, steps: int, *, width: int = 40) -> None:
        self.random = torch.Generator().manual_seed(1)
        model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 3, dtype=torch.bfloat16))
        for parameter in model.parameters():
            parameter.data.normal_(generator=self.random)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.own = {"seen": [world.default.rank()]}
        self.extra: dict[str, Any] = {"average": torch.zeros(5), "empty": torch.empty(0), "words": ["a"], "count": 0}
        rank, size = world.default.rank(), world.default.size()
        self.protection = Protection(
            world,
            rank,
            size,
            model=model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            extra={"mine": self.extra},
            private={"loader": self.own},
        )
        self.protection.coordinates = [Coordinate(replica, 0) for replica in range(size)]
        self.protection.private.arrange(self.protection.coordinates)
        for step in range(steps):
            self.train(step)

    def train(self, step: int) -> None:
        for parameter in self.protection.state.parameters():
            parameter.grad = torch.empty_like(parameter).normal_(generator=self.random)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.extra["average"] += step
        self.extra["count"] += 1
        self.own["seen"].append(step)

    @property
    def bits(self) -> list[Any]:
        values, flat = self.protection.state.read()
        return [
            values,
            self.own,
            [(name, it.view(-1).tolist()) for name, it in zip(flat.names, flat.tensors, strict=True)],
        ]


def slots(folder: Path, rank: int, size_bytes: int) -> list[str]:
    paths = [folder / f"slot-{rank}-{index}" for index in (0, 1)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size_bytes)
    return [str(path) for path in paths]


def saves(nodes: Sequence[Path], checkpoint: Checkpoint = SAVED, steps: int = 3) -> list[Any]:
    """Each rank of a job saves its share on its node; what it was."""

    def save(world: Any) -> Any:
        rank = world.default.rank()
        trained = Trained(world, steps)
        size_bytes = share_bytes(trained.protection.state, trained.protection.private.image(), RANKS)
        Snapshots(trained.protection, slots(nodes[rank], rank, size_bytes)).take(checkpoint)
        return trained.bits

    return together(save)


def stores(nodes: Sequence[Path], storage: Path, checkpoint: Checkpoint = SAVED) -> None:
    """What persisters and the controller do."""
    store = open_store(str(storage))
    receipts = []
    for rank, node in enumerate(nodes):
        with SlotReader(node / f"slot-{rank}-0") as slot:
            content = slot.read(checkpoint)
            done = write(
                store, f"{directory_of(checkpoint)}/{file_of(Rank(rank))}", content.manifest, content.read_into
            )
            del content
        receipts.append(Receipt(Rank(rank), checkpoint, file_of(Rank(rank)), done.size_bytes, done.digest))
    commit(store, checkpoint, receipts, {Rank(rank): Coordinate(rank, 0) for rank in range(RANKS)}, 1.0)


def loads(nodes: Sequence[Path], storage: Path | str = "", checkpoint: Checkpoint = SAVED, steps: int = 5) -> list[Any]:
    """Each rank of a new job, or of one that goes back, loads it; what it is then, or what it says."""

    def load(world: Any) -> Any:
        trained = Trained(world, steps)
        Loader(trained.protection, nodes[world.default.rank()], str(storage)).load(checkpoint)
        return trained.bits

    return together(load, len(nodes))


def test_what_replicas_save_together_each_loads_bit_for_bit(tmp_path: Path) -> None:
    nodes = [tmp_path / "node"] * RANKS
    saved = saves(nodes)
    assert loads(nodes) == saved


def test_replicas_share_the_work(tmp_path: Path) -> None:
    nodes = [tmp_path / "node"] * RANKS
    saves(nodes)
    shares = []
    for rank in range(RANKS):
        with SlotReader(nodes[rank] / f"slot-{rank}-0") as slot:
            shares.append(slot.read(SAVED).manifest)
    whole = sum(entry.size_bytes for entry in shares[0].entries)
    assert sum(share.data_bytes for share in shares) == whole
    assert max(share.data_bytes for share in shares) < 0.4 * whole


def test_shares_on_other_nodes_come_over_the_group(tmp_path: Path) -> None:
    nodes = [tmp_path / f"node {number}" for number in range(RANKS)]
    saved = saves(nodes)
    assert loads(nodes) == saved


def test_a_share_stays_on_the_node_where_its_rank_died(tmp_path: Path) -> None:
    """Rank 2 is replaced on another node; whoever is on its old one gives it its share."""
    old, other, new = tmp_path / "old", tmp_path / "other", tmp_path / "new"
    new.mkdir()
    saved = saves([old, other, old])
    assert loads([old, other, new]) == saved


def test_what_no_memory_has_is_read_from_storage(tmp_path: Path) -> None:
    nodes = [tmp_path / "one", tmp_path / "two", tmp_path / "two"]
    saved = saves(nodes)
    stores(nodes, tmp_path / "storage")
    (nodes[0] / "slot-0-0").unlink()
    assert loads(nodes, tmp_path / "storage") == saved


def test_a_new_job_reads_all_from_storage(tmp_path: Path) -> None:
    nodes = [tmp_path / "node"] * RANKS
    saved = saves(nodes)
    stores(nodes, tmp_path / "storage")
    assert loads([tmp_path / "elsewhere"] * RANKS, tmp_path / "storage") == saved


# Ranks are threads here, and what one of them does to the filters of warnings, the other one undoes.
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("steps", [0, 2])
def test_a_job_of_another_size_takes_all_but_what_was_private(tmp_path: Path, caplog: Any, steps: int) -> None:
    """That begins anew, also when the job has trained since and goes back to it."""
    nodes = [tmp_path / "node"] * RANKS
    saved = saves(nodes)
    stores(nodes, tmp_path / "storage")
    found = loads([tmp_path / "elsewhere"] * 2, tmp_path / "storage", steps=steps)
    assert [own for _, own, _ in found] == [{"seen": [0]}, {"seen": [1]}]
    for values, _, tensors in found:
        assert decode(values)[:-1] == decode(saved[0][0])[:-1]  # the last ones are facts about the ranks
        assert tensors == saved[0][2]
    assert "step 7 was saved by 3 ranks in another layout; 2 ranks load it now" in caplog.text


def test_torch_reads_it_without_everstep(tmp_path: Path) -> None:
    """A checkpoint of a job is a checkpoint of torch: by the names that the model itself gives to its parameters."""
    nodes = [tmp_path / "node"] * RANKS
    saved = saves(nodes)
    stores(nodes, tmp_path / "storage")
    model = nn.Sequential(nn.Linear(40, 40), nn.BatchNorm1d(40), nn.Linear(40, 3, dtype=torch.bfloat16))
    wanted = {"model": model.state_dict()}
    wanted["optimizer.state.0.weight"] = {"exp_avg": torch.zeros(40, 40)}
    with pytest.warns(UserWarning, match="assuming the intent is to load in a single process"):
        load(wanted, storage_reader=HuggingFaceStorageReader(str(tmp_path / "storage" / directory_of(SAVED))))
    tensors = dict(saved[0][2])
    for name, tensor in model.state_dict().items():
        assert tensor.view(-1).tolist() == tensors[f"model.{name}"], name
    moment = wanted["optimizer.state.0.weight"]["exp_avg"]
    assert moment.view(-1).tolist() == tensors["optimizer.state[0]['exp_avg']"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_model_that_was_changed_is_told_by_name(tmp_path: Path) -> None:
    nodes = [tmp_path / "node"] * RANKS
    saves(nodes)
    stores(nodes, tmp_path / "storage")

    def load(world: Any) -> None:
        Loader(Trained(world, 0, width=41).protection, tmp_path / "elsewhere", str(tmp_path / "storage")).load(SAVED)

    said = together(load)
    assert len(set(said)) == 1
    assert "model.0.weight is (40, 40) torch.float32 in it and (41, 41) torch.float32 in this script" in said[0]


def test_a_share_of_another_attempt_is_never_mixed_in(tmp_path: Path) -> None:
    nodes = [tmp_path / "node"] * RANKS
    saves(nodes)
    later = Checkpoint(SAVED.step, Generation(SAVED.generation + 1), SAVED.attempt)
    (nodes[0] / "slot-0-0").unlink()
    (nodes[0] / "slot-0-1").unlink()
    kept = [(nodes[0] / f"slot-{rank}-0").rename(tmp_path / f"{rank}") for rank in (1, 2)]
    saves(nodes, later)
    for path in kept:
        path.rename(nodes[0] / f"slot-{path.name}-0")
    for checkpoint in (SAVED, later):
        said = loads(nodes, checkpoint=checkpoint)
        assert len(set(said)) == 1
        assert said[0].endswith("it is not complete in memory, and it was not committed to storage")


def test_one_damaged_file_is_told_to_all_and_marked(tmp_path: Path) -> None:
    nodes = [tmp_path / "node"] * RANKS
    saves(nodes)
    storage = tmp_path / "storage"
    stores(nodes, storage)
    file = storage / directory_of(SAVED) / file_of(Rank(1))
    with file.open("r+b") as damaged:
        damaged.seek(-1, os.SEEK_END)
        last = damaged.read(1)
        damaged.seek(-1, os.SEEK_END)
        damaged.write(bytes([last[0] ^ 1]))
    said = loads([tmp_path / "elsewhere"] * RANKS, storage)
    assert len(set(said)) == 1
    assert f"{file}: the checksum of" in said[0]
    assert "the checksum of" in (storage / directory_of(SAVED) / "BAD").read_text()


def test_an_object_that_does_not_take_its_state_is_told_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [tmp_path / "node"] * RANKS
    saves(nodes)
    monkeypatch.setattr(torch.optim.lr_scheduler.StepLR, "load_state_dict", lambda *_: None)
    said = loads(nodes)
    assert len(set(said)) == 1
    assert "scheduler differs from what the donor sent" in said[0]


def test_two_slots_in_turn_and_none_that_is_held(tmp_path: Path) -> None:
    def save(world: Any) -> None:
        trained = Trained(world, 2)
        paths = slots(tmp_path, 0, 1 << 21)
        snapshots = Snapshots(trained.protection, paths)
        names = [Checkpoint(Step(step), Generation(1)) for step in range(6)]
        assert [snapshots.take(name)[0] for name in names[:3]] == [0, 1, 0]
        keeper = SlotKeeper(Path(paths[1]))
        assert keeper.hold(names[1])
        assert [snapshots.take(name)[0] for name in names[3:5]] == [0, 0]
        with SlotKeeper(Path(paths[0])) as other:
            assert other.hold(names[4])
            with pytest.raises(SlotHeld, match="both slots are busy"):
                snapshots.take(names[5])
        with SlotReader(Path(paths[0])) as slot:
            assert slot.checkpoint == names[4]

    together(save, 1)


def test_a_state_that_has_outgrown_its_slots_leaves_them_as_they_were(tmp_path: Path) -> None:
    def save(world: Any) -> None:
        trained = Trained(world, 2)
        snapshots = Snapshots(trained.protection, slots(tmp_path, 0, 1 << 17))
        snapshots.take(SAVED)
        trained.extra["more"] = torch.zeros(1 << 15)
        for _ in range(3):
            with pytest.raises(ResourceError, match="the share needs"):
                snapshots.take(Checkpoint(Step(9), Generation(3)))
        with SlotReader(tmp_path / "slot-0-0") as slot:
            assert slot.checkpoint == SAVED

    together(save, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, foreach=True),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, amsgrad=True, fused=True),
        torch.optim.Adafactor,
    ],
)
def test_the_share_is_as_large_as_was_estimated_before_the_first_step(make: Any, tmp_path: Path) -> None:
    def save(world: Any) -> None:
        model = nn.Linear(512, 512)
        optimizer = make(model.parameters())
        protection = Protection(world, Rank(0), 1, model=model, optimizer=optimizer)
        estimate = share_bytes(protection.state, b"", 1)
        assert not optimizer.state
        snapshots = Snapshots(protection, slots(tmp_path, 0, estimate))
        model(torch.ones(1, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        snapshots.take(SAVED)

    together(save, 1)


def test_tensors_are_divided_evenly_and_the_same_everywhere() -> None:
    sizes = [5, 90, 40, 41, 3, 0, 8, 4]
    owners = divide(sizes, 3)
    assert owners == divide(sizes, 3)
    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == who) for who in range(3)]
    assert sorted(loads) == [50, 51, 90]


class Counting(nn.Module):
    """Its buffer changes in Forward."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(4))

    def step(self, protection: Protection) -> None:
        protection.shadow.begin()
        self.seen.add_(1)
        protection.shadow.at_barrier()


@pytest.mark.parametrize("where", ["another node", "storage"])
def test_a_redo_behind_a_load_puts_back_what_was_loaded(tmp_path: Path, where: str) -> None:
    """What a survivor has kept for a redo is of the steps that the load has undone."""
    nodes = [tmp_path / f"node {rank}" for rank in range(RANKS)]

    def play(world: Any) -> list[float]:
        rank = world.default.rank()
        model = Counting()
        protection = Protection(world, rank, RANKS, model=model, optimizer=torch.optim.SGD(model.parameters()))
        protection.coordinates = [Coordinate(replica, 0) for replica in range(RANKS)]
        protection.private.arrange(protection.coordinates)
        for _ in range(3):
            model.step(protection)
        Snapshots(protection, slots(nodes[rank], rank, 1 << 21)).take(SAVED)
        for _ in range(4):
            model.step(protection)
        world.default.barrier().wait()
        if rank == 0:
            stores(nodes, tmp_path / "storage")
        world.default.barrier().wait()
        memory = nodes[rank] if where == "another node" else tmp_path / "none"
        model.step(protection)
        protection.shadow.put_back()  # the step in which somebody died is dropped first
        Loader(protection, memory, str(tmp_path / "storage")).load(SAVED)
        assert model.seen.tolist() == [3.0] * 4
        model.step(protection)
        protection.shadow.put_back()
        return model.seen.tolist()

    assert together(play) == [[3.0] * 4] * RANKS


def test_a_rank_may_have_nothing_to_save(tmp_path: Path) -> None:
    """There are more replicas than tensors."""

    def play(world: Any) -> list[float]:
        rank = world.default.rank()
        model = nn.Linear(2, 1, bias=False)
        nn.init.constant_(model.weight, 5.0)
        protection = Protection(world, rank, RANKS, model=model, optimizer=torch.optim.SGD(model.parameters()))
        protection.coordinates = [Coordinate(replica, 0) for replica in range(RANKS)]
        protection.private.arrange(protection.coordinates)
        Snapshots(protection, slots(tmp_path / "node", rank, 1 << 21)).take(SAVED)
        nn.init.constant_(model.weight, 6.0)
        world.default.barrier().wait()
        Loader(protection, tmp_path / "node", "").load(SAVED)
        return model.weight.view(-1).tolist()

    assert together(play) == [[5.0, 5.0]] * RANKS


def test_a_parameter_without_gradient_has_none_behind_a_load(tmp_path: Path) -> None:
    """An optimizer with weight decay would change it. The others have theirs at zero, already behind the first step."""

    def play(world: Any) -> tuple[bool, bool]:
        model = nn.Linear(2, 2)
        protection = Protection(world, Rank(0), 1, model=model, optimizer=torch.optim.AdamW(model.parameters()))
        protection.private.arrange(protection.coordinates)
        protection.begin(Step(0))
        model.weight.grad = torch.zeros_like(model.weight)
        Snapshots(protection, slots(tmp_path, 0, 1 << 21)).take(SAVED)
        model.weight.grad, model.bias.grad = None, torch.zeros_like(model.bias)
        Loader(protection, tmp_path, "").load(SAVED)
        return model.weight.grad is not None, model.bias.grad is not None

    assert together(play, 1) == [(True, False)]
