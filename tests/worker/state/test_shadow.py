"""What a step has changed before its barrier is put back for a redo, whatever it is and however it was changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from everstep.errors import LostError
from everstep.worker.state.parts import ModulePart
from everstep.worker.state.protected import Protected
from everstep.worker.state.shadow import ALWAYS_BYTES, LEARNING_STEPS, Shadow

LARGE = ALWAYS_BYTES // 4 + 1
"""Numbers in a tensor of which there is no copy at first."""


class Net(nn.Module):
    seen: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.trained = nn.Parameter(torch.zeros(size))
        self.frozen = nn.Parameter(torch.ones(size), requires_grad=False)
        self.register_buffer("seen", torch.ones(size))


class Job:
    """Of one process: the state, and steps that change it."""

    def __init__(self, size: int = 4) -> None:
        self.net = Net(size)
        self.average: dict[str, Any] = {"count": 0, "of": torch.zeros(size)}
        state = Protected(
            {"model": self.net, "optimizer": torch.optim.SGD([self.net.trained]), "extra.average": self.average}
        )
        self.shadow = Shadow(state, ModulePart("nothing", nn.Module()))

    def step(self, early: Callable[[], object], late: Callable[[], object] = lambda: None) -> None:
        self.shadow.begin()
        early()
        self.shadow.at_barrier()
        late()

    def redo(self, early: Callable[[], object]) -> None:
        self.shadow.begin()
        early()
        self.shadow.put_back()

    def all(self) -> list[torch.Tensor]:
        values = [*self.net.state_dict().values(), self.average["of"], torch.tensor(self.average["count"])]
        return [value.clone() for value in values]


def in_place(job: Job) -> None:
    with torch.no_grad():
        job.net.trained.mul_(2).add_(1)
        job.net.frozen.mul_(0.5)


def by_data(job: Job) -> None:
    job.net.frozen.data = job.net.frozen.data * 0.5


def in_data(job: Job) -> None:
    job.net.frozen.data.mul_(0.5)


def another_buffer(job: Job) -> None:
    job.net.seen = job.net.seen * 0.5


def counted(job: Job) -> None:
    job.average["count"] += 1


WAYS = [in_place, by_data, in_data, another_buffer, counted]


def check(job: Job, change: Callable[[Job], None]) -> None:
    before = job.all()
    job.redo(lambda: change(job))
    assert all(torch.equal(*pair) for pair in zip(job.all(), before, strict=True))


@pytest.mark.parametrize("steps", [0, 1, LEARNING_STEPS + 1])
@pytest.mark.parametrize("change", WAYS)
def test_it_is_put_back(change: Callable[[Job], None], steps: int) -> None:
    """An average follows by `.data` behind each barrier, which no counter tells."""
    job = Job()
    for _ in range(steps):
        job.step(lambda: change(job), lambda: job.average["of"].data.add_(1))
    check(job, change)


@pytest.mark.parametrize("change", [in_place, by_data, in_data])
def test_large_parameters_too_once_it_is_known(change: Callable[[Job], None]) -> None:
    job = Job(LARGE)
    job.step(lambda: change(job))
    check(job, change)


def test_another_rank_tells_a_newcomer_which_parameters_change_early() -> None:
    old, new = Job(LARGE), Job(LARGE)
    for told in (None, ["model.frozen"]):
        old.step(lambda: in_data(old))
        assert old.shadow.early == told
    new.shadow.forget(old.shadow.early)
    check(new, in_data)


@pytest.mark.parametrize(("steps", "change"), [(0, in_place), (0, by_data), (LEARNING_STEPS, in_place)])
def test_what_was_not_kept_is_told(steps: int, change: Callable[[Job], None]) -> None:
    """All go back to a checkpoint then."""
    job = Job(LARGE)
    for _ in range(steps):
        job.step(lambda: None, lambda: in_place(job))
    with pytest.raises(LostError, match=r"(frozen|trained) was changed before the update for the first time"):
        job.redo(lambda: change(job))


def test_what_changes_behind_the_barrier_only_is_not_copied() -> None:
    job = Job()
    for _ in range(LEARNING_STEPS):
        job.step(lambda: None, lambda: in_place(job))
    assert job.shadow.early == []


def test_the_switches_that_a_step_has_flipped_are_flipped_back() -> None:
    job = Job()

    def flip() -> None:
        job.net.eval()
        job.net.trained.requires_grad_(False)
        job.net.frozen.requires_grad_(True)

    job.redo(flip)
    assert job.net.training
    assert [parameter.requires_grad for parameter in job.net.parameters()] == [True, False]
