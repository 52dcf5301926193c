"""Which batch a step gets, and that it gets it in every way: read here or ahead, again, late, or after a failure."""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.worker.conftest import DEADLINE_S, ENV, StandIn, run_script
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import everstep
from everstep.errors import ConfigError, ProtocolError, RuleError
from everstep.worker.loader import Loader, PrivateLoader, guard_plain_loaders, make_loader
from everstep.worker.loader.copying import NotCopied, copy_batch
from everstep.worker.loader.make import KEEP_BYTES


def step(index: int, attempt: int = 0) -> Any:
    return SimpleNamespace(index=index, attempt=attempt)


class Numbers(Dataset[Any]):
    """Item i is i, with a draw from each generator beside it."""

    def __init__(self, length: int = 40) -> None:
        self.length = length
        self.reads = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, item: int) -> Any:
        self.reads += 1
        return torch.tensor([float(item), torch.rand(()).item(), np.random.random(), random.random()])


class Large(Dataset[Any]):
    """An item alone is more than a loader copies. It counts how often this process has read."""

    reads = 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, item: int) -> Any:
        self.reads += 1
        return torch.full((KEEP_BYTES // 4,), float(item)), self.reads


class Stopped(BaseException):
    """As the interruption of a step."""


@pytest.fixture
def make() -> Iterator[Callable[..., Loader]]:
    loaders: list[Loader] = []

    def make_one(source: Any, *, rank: int = 0, world_size: int = 1, **options: Any) -> Loader:
        loaders.append(make_loader(source, rank=rank, world_size=world_size, **options))
        return loaders[-1]

    yield make_one
    for loader in loaders:
        loader.close()


Make = Callable[..., Loader]


def items(batch: torch.Tensor) -> list[int]:
    return [int(item) for item in batch[:, 0]]


def generators() -> Any:
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()


# ── which items ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_epoch_reads_every_item_once_over_all_ranks_in_another_order_than_the_next(make: Make) -> None:
    ranks = [make(Numbers(24), batch_size=2, rank=rank, world_size=3) for rank in range(3)]
    assert [loader.steps_per_epoch for loader in ranks] == [4, 4, 4]
    epochs = [[item for i in range(4) for loader in ranks for item in items(loader.batch(e * 4 + i))] for e in (0, 1)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(24))] * 2
    assert epochs[0] != epochs[1] != list(range(24))


def test_the_global_batch_of_a_step_is_the_next_stretch_of_the_order(make: Make) -> None:
    alone = make(Numbers(24), batch_size=6)
    ranks = [make(Numbers(24), batch_size=2, rank=rank, world_size=3) for rank in range(3)]
    for index in range(8):
        whole = items(alone.batch(index))
        assert [items(loader.batch(index)) for loader in ranks] == [whole[0::3], whole[1::3], whole[2::3]]


@pytest.mark.parametrize(("length", "drop_last"), [(24, True), (25, False), (29, False), (24, False)])
def test_without_shuffling_the_batches_are_those_of_torch(make: Make, length: int, drop_last: bool) -> None:
    for rank in range(3):
        sampler: DistributedSampler[Any] = DistributedSampler(Numbers(length), num_replicas=3, rank=rank, shuffle=False)
        plain = DataLoader(Numbers(length), batch_size=4, sampler=sampler, drop_last=drop_last)
        loader = make(Numbers(length), batch_size=4, shuffle=False, drop_last=drop_last, rank=rank, world_size=3)
        ours = [items(loader.batch(index)) for index in range(loader.steps_per_epoch or 0)]
        assert ours == [items(batch) for batch in plain]


def test_the_short_last_batch_is_equally_long_on_every_rank(make: Make) -> None:
    ranks = [make(Numbers(10), batch_size=2, drop_last=False, rank=rank, world_size=3) for rank in range(3)]
    assert [loader.steps_per_epoch for loader in ranks] == [2, 2, 2]
    last = [items(loader.batch(1)) for loader in ranks]
    first = items(ranks[0].batch(0))
    assert [len(batch) for batch in last] == [2, 2, 2]
    assert len({item for loader in ranks for index in (0, 1) for item in items(loader.batch(index))}) == 10
    assert last[1][1] == first[0]  # the order goes on from its beginning


def test_the_seed_makes_the_order(make: Make) -> None:
    orders = [items(make(Numbers(), batch_size=40, seed=seed).batch(0)) for seed in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]


def test_an_epoch_of_a_step_needs_no_data(make: Make) -> None:
    loader = make(Numbers(40), batch_size=4, rank=1, world_size=2)
    assert [loader.epoch(index) for index in (0, 4, 5, 49, 50)] == [0, 0, 1, 9, 10]


# ── the same in every way ────────────────────────────────────────────────────────────────────────────────


def test_worker_processes_and_this_one_read_the_same_bits_across_epochs(make: Make) -> None:
    here, ahead = make(Numbers(12), batch_size=4), make(Numbers(12), batch_size=4, num_workers=2)
    for index in range(8):
        assert torch.equal(here.batch(step(index)), ahead.batch(step(index)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_newcomer_begins_at_any_step(make: Make, num_workers: int) -> None:
    old = make(Numbers(), batch_size=4, num_workers=num_workers)
    wanted = {index: old.batch(step(index)) for index in range(8)}
    new = make(Numbers(), batch_size=4, num_workers=num_workers)
    new.start(5)
    assert all(torch.equal(new.batch(step(index)), wanted[index]) for index in (5, 6, 7))
    assert all(torch.equal(new.batch(step(index)), wanted[index]) for index in (1, 6, 0))  # back, forth, and back


def test_what_is_random_in_an_item_differs_by_step_and_rank(make: Make) -> None:
    ranks = [make(Numbers(8), batch_size=4, rank=rank, world_size=2) for rank in (0, 1)]
    draws = [loader.batch(index)[0, 1:] for loader in ranks for index in (0, 1)]
    assert len({value.item() for draw in draws for value in draw}) == 4 * 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_generators_of_the_training_process_stay_where_they_are(make: Make, num_workers: int) -> None:
    before = generators()
    loader = make(Numbers(8), batch_size=4, num_workers=num_workers)
    for index in (0, 1, 2, 2, 7):
        loader.batch(step(index))
    loader.close()
    assert generators() == before


# ── again ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_redo_gets_the_batch_as_it_was_though_the_step_has_changed_it(make: Make, num_workers: int) -> None:
    loader = make(Numbers(), batch_size=4, num_workers=num_workers)
    batch = loader.batch(step(3))
    original = batch.clone()
    for attempt in (1, 2):
        batch.numpy()[:] = -1  # torch does not see this
        batch = loader.batch(step(3, attempt))
        assert torch.equal(batch, original)


def test_a_redo_of_a_small_batch_reads_nothing(make: Make) -> None:
    dataset = Numbers()
    loader = make(dataset, batch_size=4)
    loader.batch(step(0))
    loader.batch(step(0, 1))
    assert dataset.reads == 4


def test_a_large_batch_is_read_once_more_and_what_was_read_ahead_is_not_lost(make: Make) -> None:
    loader = make(Large(), batch_size=2, shuffle=False, num_workers=1, prefetch=3)
    first, _ = loader.batch(step(0))
    first += 5
    again, reads = loader.batch(step(0, 1))
    assert (again[:, 0].tolist(), max(reads)) == ([0, 1], 2 * 5)  # 0, then 1 to 3 that were on the way, then 0
    rest = [loader.batch(step(index)) for index in (1, 2, 3, 4)]
    assert [batch[0, 0].item() for batch, _ in rest] == [2, 4, 6, 8]
    assert [max(reads) // 2 for _, reads in rest[:3]] == [2, 3, 4]


def test_a_copy_is_exact_and_shares_what_was_shared() -> None:
    base = torch.arange(24).reshape(4, 6)
    rows = [1, 2]
    batch: dict[str, Any] = {
        "view": base[1:, ::2].t(),
        "base": base,
        "rows": (rows, rows),
        "array": np.arange(6).reshape(2, 3).T.copy("F"),
    }
    copy = copy_batch(batch)
    assert copy["rows"] == ([1, 2], [1, 2])
    assert copy["rows"][0] is copy["rows"][1] is not rows
    assert np.array_equal(copy["array"], batch["array"])
    assert (copy["view"].stride(), copy["array"].strides) == (batch["view"].stride(), batch["array"].strides)
    base.zero_()
    assert torch.equal(copy["base"], torch.arange(24).reshape(4, 6))
    copy["base"].fill_(7)
    assert copy["view"].unique().tolist() == [7]


@pytest.mark.parametrize("part", [{1}, np.arange(6)[1:], torch.ones(2, requires_grad=True), torch.ones(2).to_sparse()])
def test_what_might_differ_is_not_copied(part: Any) -> None:
    with pytest.raises(NotCopied):
        copy_batch([part])


def test_what_is_too_large_is_not_copied() -> None:
    whole = torch.zeros(100)
    assert len(copy_batch([whole, whole[1:]], most_bytes=400)) == 2
    with pytest.raises(NotCopied):
        copy_batch(whole[:1], most_bytes=399)  # its memory is that of the whole


def test_asking_twice_in_one_attempt_gives_the_same_objects(make: Make) -> None:
    loader = make(Numbers(), batch_size=4)
    now = step(0)
    batch = loader.batch(now)
    assert loader.batch(now) is batch
    now.attempt = 1
    assert loader.batch(now) is not batch


@pytest.mark.parametrize(("begun", "file"), [(False, "read.py"), (True, "")])
def test_an_interruption_loses_no_batch_at_whichever_line_it_strikes(make: Make, begun: bool, file: str) -> None:
    calm, loader = make(Numbers(), batch_size=2), make(Numbers(), batch_size=2, num_workers=1, prefetch=1)
    for line in itertools.count():
        index = 3 * line
        if begun:
            loader.batch(step(index))
        else:
            loader.close()
        with stop_at_line(line, file) as stopped:
            loader.batch(step(index + 1))
        assert torch.equal(loader.batch(step(index + 1, 1)), calm.batch(index + 1))
        if not stopped:
            break
    assert line > 20


@contextmanager
def stop_at_line(number: int, file: str) -> Iterator[list[bool]]:
    """Raises at the line of these files that is reached so late inside; tells whether there are so many."""
    files = os.path.join(os.path.dirname(make_loader.__code__.co_filename), file)
    pid, stopped = os.getpid(), list[bool]()
    seen: set[tuple[str, int]] = set()

    def trace(frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(files) or os.getpid() != pid:
            return None
        if event == "line" and not stopped:
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            if len(seen) > number:
                stopped.append(True)
                raise Stopped
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield stopped
    except Stopped:
        pass
    finally:
        sys.settrace(before)


def test_a_step_that_is_stopped_does_not_wait_for_its_batch(make: Make) -> None:
    begun, go = torch.multiprocessing.Event(), torch.multiprocessing.Event()

    class Slow(Numbers):
        def __getitem__(self, item: int) -> Any:
            begun.set()
            go.wait()
            return super().__getitem__(item)

    def stop() -> None:
        if begun.is_set() and not go.is_set():
            raise Stopped

    loader = make(Slow(), batch_size=2, num_workers=1, shuffle=False, safe_point=stop)
    with pytest.raises(Stopped):
        loader.batch(step(0))
    waiting = processes(loader)
    go.set()
    assert items(loader.batch(step(0, 1))) == [0, 1]
    assert processes(loader) == waiting  # and nothing was begun anew


class Failing(Numbers):
    def __getitem__(self, item: int) -> Any:
        if item == 7:
            raise LookupError("item 7 is broken")
        return super().__getitem__(item)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_dataset_comes_in_the_step_that_reads_it(make: Make, num_workers: int) -> None:
    loader = make(Failing(), batch_size=2, shuffle=False, num_workers=num_workers)
    for index in (0, 1, 2):
        loader.batch(step(index))
    with pytest.raises(LookupError, match="item 7 is broken"):
        loader.batch(step(3))
    assert items(loader.batch(step(4))) == [8, 9]


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────


def processes(loader: Loader) -> list[Any]:
    reader: Any = vars(loader)["_reader"]
    return list(reader._iterator._workers)


def test_a_process_that_dies_is_an_error_of_the_batch_it_was_to_read_and_of_nothing_else(make: Make) -> None:
    go = torch.multiprocessing.Event()

    class Deadly(Numbers):
        def __getitem__(self, item: int) -> Any:
            if item == 4:
                go.wait()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(item)

    loader = make(Deadly(), batch_size=2, shuffle=False, num_workers=1)
    for index in (0, 1):
        loader.batch(step(index))
    (process,) = processes(loader)
    go.set()
    assert select.select([process.sentinel], [], [], DEADLINE_S)[0]
    signal.raise_signal(signal.SIGCHLD)  # torch would raise here
    with pytest.raises(RuntimeError, match=rf"pid\(s\) {process.pid}\) exited unexpectedly"):
        loader.batch(step(2))
    assert items(loader.batch(step(3))) == [6, 7]


class Told(Dataset[Any]):
    """What its process was told at its start."""

    story = "nothing"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, item: int) -> str:
        return self.story


def tell(worker_id: int) -> None:
    info: Any = get_worker_info()
    info.dataset.story = f"{worker_id} of {info.num_workers}"


def test_the_function_for_a_new_process_finds_the_dataset_of_the_user(make: Make) -> None:
    loader = make(DataLoader(Told(), batch_size=2, num_workers=2, worker_init_fn=tell))
    assert [loader.batch(index) for index in (0, 1)] == [["0 of 2"] * 2, ["1 of 2"] * 2]


def test_processes_may_be_spawned(make: Make) -> None:
    dataset = TensorDataset(torch.arange(10))
    loader = make(dataset, batch_size=2, num_workers=1, shuffle=False, multiprocessing_context="spawn")
    assert [loader.batch(index)[0].tolist() for index in (3, 4)] == [[6, 7], [8, 9]]


def test_closing_ends_the_processes(make: Make) -> None:
    loader = make(Large(), batch_size=1, num_workers=2)
    loader.batch(0)
    started = processes(loader)
    loader.close()
    assert [process.is_alive() for process in started] == [False, False]


STUCK = """
    import os, signal, sys, threading
    import torch, everstep
    from everstep.worker.loader import make_loader

    class Stuck(torch.utils.data.Dataset):
        def __len__(self):
            return 100
        def __getitem__(self, item):
            if item >= 2:
                signal.pause()  # in here nothing of torch looks whether the parent lives
            return torch.full((1 << 18,), os.getpid())

    job = everstep.init()
    loader = make_loader(Stuck(), rank=0, world_size=1, batch_size=1, shuffle=False, num_workers=2, prefetch=4)
    print(*(int(loader.batch(index)[0, 0]) for index in (0, 1)), flush=True)
    signal.pause()
    """


TESTED = {"PYTHONPATH": str(Path(everstep.__file__).parents[1])}


def assert_both_die_with(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    ends = [os.pidfd_open(pid) for pid in pids]
    process.kill()
    try:
        assert len({process.pid, *pids}) == 3
        for end in ends:
            assert select.select([end], [], [], DEADLINE_S)[0]
        left = [name for name in os.listdir("/dev/shm") for pid in (process.pid, *pids) if f"torch_{pid}_" in name]
        assert left == []
    finally:
        for end in ends:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(end, signal.SIGKILL)
            os.close(end)
        process.communicate(timeout=DEADLINE_S)


def test_the_processes_die_with_their_killed_rank(agent: StandIn) -> None:
    worker = agent.start(STUCK, env=TESTED)
    agent.assign(worker, size=1)
    assert_both_die_with(worker.process)


def test_they_die_also_with_a_script_that_nobody_protects(tmp_path: Path) -> None:
    assert_both_die_with(run_script(tmp_path, STUCK, ENV | TESTED))


# ── a DataLoader ─────────────────────────────────────────────────────────────────────────────────────────


def pair(samples: list[Any]) -> Any:
    return "collated", [int(sample[0]) for sample in samples]


def test_a_data_loader_keeps_its_dataset_its_collation_and_its_order(make: Make) -> None:
    plain = DataLoader(Numbers(10), batch_size=4, collate_fn=pair)
    loader = make(plain)
    assert loader.steps_per_epoch == 3
    assert [loader.batch(index) for index in range(3)] == list(plain)
    shuffled = make(DataLoader(Numbers(10), batch_size=5, shuffle=True, drop_last=True), seed=3)
    assert torch.equal(shuffled.batch(1), make(Numbers(10), batch_size=5, seed=3).batch(1))


def test_a_distributed_sampler_says_which_part_of_the_data_is_read(make: Make) -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(Numbers(20), num_replicas=2, rank=1, seed=5)
    loader = make(DataLoader(Numbers(20), batch_size=5, sampler=sampler), rank=3, world_size=4)
    assert torch.equal(loader.batch(0), make(Numbers(20), batch_size=5, seed=5, rank=1, world_size=2).batch(0))


def test_a_batch_sampler_of_torch_is_recognised(make: Make) -> None:
    sampler = BatchSampler(SequentialSampler(range(10)), batch_size=3, drop_last=True)
    loader = make(DataLoader(Numbers(10), batch_sampler=sampler))
    assert (loader.steps_per_epoch, items(loader.batch(2))) == (3, [6, 7, 8])


# ── a source that keeps its own place ────────────────────────────────────────────────────────────────────


class Stream:
    """Counts up, three to an epoch, with a draw from the global generator. It may be interrupted half-way."""

    def __init__(self, *, copyable: bool = True) -> None:
        self.place = 0
        self.copyable = copyable
        self.stop = False

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.place += 1
            if self.stop:
                self.stop = False
                raise Stopped
            batch = torch.tensor([[float(self.place), torch.rand(()).item()]])
            yield batch if self.copyable else {batch}
            if self.place % 3 == 0:
                return

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state.pop("place")


def private(source: Any) -> PrivateLoader:
    loader = make_loader(source, rank=0, world_size=2)
    assert isinstance(loader, PrivateLoader)
    assert loader.private
    return loader


def values(batch: Any) -> list[float]:
    (row,) = next(iter(batch)) if isinstance(batch, set) else batch
    return [float(value) for value in row]


def test_a_stream_gives_one_batch_per_step_and_begins_again_at_its_end() -> None:
    before, loader = generators(), private(Stream())
    assert [values(loader.batch(step(index)))[0] for index in range(7)] == [1, 2, 3, 4, 5, 6, 7]
    assert (loader.steps_per_epoch, loader.epoch(6)) == (None, 0)
    assert generators() == before


@pytest.mark.parametrize("copyable", [True, False])
def test_a_stream_gives_the_same_batch_to_a_redo(copyable: bool) -> None:
    loader = private(Stream(copyable=copyable))
    for index in range(5):
        batch = loader.batch(step(index))
        original = values(batch)
        for attempt in (1, 2):
            for part in batch:
                part.zero_()
            batch = loader.batch(step(index, attempt))
            assert values(batch) == original
    assert original[0] == 5


@pytest.mark.parametrize("version", range(7))
def test_a_stream_goes_on_from_its_state_with_the_batch_of_that_version(version: int) -> None:
    old = private(Stream())
    wanted = [values(old.batch(step(index))) for index in range(version)]
    state = old.state_dict()
    wanted += [values(old.batch(step(index))) for index in range(version, 9)]
    new = private(Stream())
    new.load_state_dict(state)
    assert [values(new.batch(step(index))) for index in range(version, 9)] == wanted[version:]


def test_a_stream_has_the_state_before_and_after_the_step_in_flight() -> None:
    loader = private(Stream())
    for index in range(3):
        loader.batch(step(index))
    places = [loader.state_dict(version)["place"] for version in (2, 3)]
    assert places == [2, 3]
    with pytest.raises(ProtocolError, match="no state of version 1"):
        loader.state_dict(1)


def test_an_interruption_inside_a_stream_loses_no_batch() -> None:
    calm, source = private(Stream()), Stream()
    loader = private(source)
    for index in range(5):
        source.stop = index in (1, 3)
        if source.stop:
            with pytest.raises(Stopped):
                loader.batch(step(index))
            assert loader.state_dict() is loader.state_dict(index)
        assert values(loader.batch(step(index, 1))) == values(calm.batch(step(index)))


@pytest.mark.parametrize("copyable", [True, False])
def test_an_interruption_at_any_line_loses_no_batch_of_a_stream(copyable: bool) -> None:
    calm, loader = private(Stream()), private(Stream(copyable=copyable))
    for index in itertools.count():
        wanted = values(calm.batch(step(index)))
        with stop_at_line(index, "private.py") as stopped:
            loader.batch(step(index))
        for attempt in (1, 2):
            assert values(loader.batch(step(index, attempt))) == wanted
        if not stopped:
            break
    assert index > 10


def test_a_step_after_an_interrupted_one_does_not_get_its_batch() -> None:
    calm, source = private(Stream()), Stream()
    wanted = [values(calm.batch(step(index))) for index in range(3)]
    loader = private(source)
    loader.batch(step(0))
    source.stop = True
    with pytest.raises(Stopped):
        loader.batch(step(1))
    assert values(loader.batch(step(2))) == wanted[2]


def test_a_stream_cannot_go_back() -> None:
    loader = private(Stream())
    loader.batch(step(4))
    with pytest.raises(ProtocolError, match="step 3 was asked for after step 4"):
        loader.batch(step(3))


def test_a_stream_that_has_nothing_to_give_says_so() -> None:
    class Empty(Stream):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    with pytest.raises(ConfigError, match="the loader over a Empty gives no batch"):
        private(Empty()).batch(step(0))


# ── what cannot work ─────────────────────────────────────────────────────────────────────────────────────


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (Numbers(), {}, r"job.loader\(Numbers\) needs a batch_size"),
        (Numbers(), {"batch_size": 0}, "batch_size=0: it must be a whole number, at least 1"),
        (Numbers(), {"batch_size": 2.0}, "batch_size=2.0: it must be a whole number"),
        (Numbers(), {"batch_size": 4, "num_workers": -1}, "num_workers=-1: it must be a whole number, at least 0"),
        (Numbers(), {"batch_size": 4, "prefetch": 0}, "prefetch=0: it must be a whole number, at least 1"),
        (Numbers(), {"batch_size": 4, "seed": "x"}, "seed='x': it must be a whole number"),
        (Numbers(), {"batch_size": 4, "timeout": -1}, "timeout=-1: it must be a number of seconds"),
        (Numbers(), {"batch_size": 4, "collate_fn": 3}, "collate_fn=3: it must be a function"),
        (Numbers(), {"batch_size": 4, "multiprocessing_context": "x"}, "multiprocessing_context='x': it must be one"),
        (Numbers(), {"batch_size": 4, "sampler": 1}, "sampler=1 is no option of job.loader; there is batch_size, "),
        (Numbers(7), {"batch_size": 4}, r"7 items, less than one global batch of 8 \(2 ranks × batch_size=4\)"),
        (Numbers(0), {"batch_size": 1, "drop_last": False}, "the dataset is empty"),
        (Endless(), {"batch_size": 1}, r"job.loader\(Endless\).*needs __getitem__ and __len__, or __iter__ with"),
        ({1, 2}, {"batch_size": 1}, r"job.loader\(set\).*from step.index"),
        (Stream(), {"batch_size": 1}, "batch_size=1 is no option for a Stream, which brings the others; there is seed"),
        (DataLoader(Numbers()), {"shuffle": True}, "shuffle=True is no option for a DataLoader"),
        (DataLoader(Endless()), {}, r"job.loader\(Endless\)"),
        (DataLoader(Numbers(), batch_size=None), {}, "batch_size=None.*job.loader.Numbers, .* with batch_size=1"),
        (DataLoader(Numbers(), batch_sampler=[[0], [1]]), {}, "batch_sampler=list.*Give the dataset itself"),
        (DataLoader(Numbers(), sampler=[3, 1]), {}, "sampler=list.*Give the dataset itself"),
        (DataLoader(Numbers(), sampler=WeightedRandomSampler([1.0], 1)), {}, "sampler=WeightedRandomSampler"),
        (DataLoader(Numbers(), sampler=RandomSampler(Numbers(), num_samples=9)), {}, "with replacement or num_samples"),
    ],
)
def test_what_cannot_work_is_refused(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_loader(source, rank=0, world_size=2, **options)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_place_that_does_not_exist_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ConfigError):
        make_loader(Numbers(), rank=rank, world_size=world_size, batch_size=1)


def test_a_step_before_the_first_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"loader.batch\(-1\)"):
        make(Numbers(), batch_size=1).batch(-1)


# ── a plain DataLoader inside a step ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def inside() -> Iterator[list[bool]]:
    state = [True]
    undo = guard_plain_loaders(lambda: state[0])
    yield state
    undo()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_plain_data_loader_inside_a_step_is_refused(inside: list[bool], num_workers: int) -> None:
    plain = DataLoader(Numbers(), num_workers=num_workers)
    with pytest.raises(RuleError, match=r"job\.loader\(dataloader\)"):
        iter(plain)
    inside[0] = False
    iterator = iter(plain)
    next(iterator)
    inside[0] = True
    with pytest.raises(RuleError, match="a plain DataLoader was iterated inside"):
        next(iterator)


def test_loaders_of_ours_are_not_refused(inside: list[bool], make: Make) -> None:
    class Holder(Stream):
        def __iter__(self) -> Iterator[Any]:
            return iter(DataLoader(Numbers(3)))

    assert len(make(Numbers(), batch_size=4, num_workers=1).batch(step(0))) == 4
    assert values(private(Holder()).batch(step(0)))[0] == 0
    with pytest.raises(RuleError):
        list(DataLoader(Numbers()))


def test_the_guard_can_be_taken_away() -> None:
    undo = guard_plain_loaders(lambda: True)
    undo()
    assert len(list(DataLoader(Numbers(3)))) == 3
