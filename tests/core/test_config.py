"""A setting that cannot work is refused with its value and the rule."""

import pytest

from everstep.core.config import JobConfig
from everstep.errors import ConfigError
from everstep.types import Coordinate, Mesh, Rank


@pytest.mark.parametrize("name", ["ranks", "standbys", "nodes", "max_failures", "max_failures_per_step"])
def test_counts_are_not_negative(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is -1: it must be a whole number, at least"):
        JobConfig(**{"ranks": 2, name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.5, "2", True, None])
def test_counts_are_whole_numbers(value: object) -> None:
    with pytest.raises(ConfigError, match=r"ranks is .*: it must be a whole number"):
        JobConfig(ranks=value)  # type: ignore[arg-type]


def test_a_standby_needs_ranks_that_it_can_replace() -> None:
    with pytest.raises(ConfigError, match=r"ranks is 0: .* there is nothing for a standby to replace"):
        JobConfig(ranks=0, standbys=1)


@pytest.mark.parametrize("name", ["start_s", "stop_s", "settle_s", "reset_s", "restore_s", "grace_s", "return_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_deadlines_are_positive(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}: a deadline must be more than 0 seconds"):
        JobConfig(ranks=1, **{name: value})  # type: ignore[arg-type]


def test_no_standby_and_no_tolerance_at_all_are_allowed() -> None:
    config = JobConfig(ranks=1, standbys=0, max_failures=0, max_failures_per_step=0)
    assert (config.standbys, config.max_failures, config.max_failures_per_step) == (0, 0, 0)


# ── meshes ───────────────────────────────────────────────────────────────────────────────────────────────


def test_ranks_are_laid_out_by_replica_and_then_by_shard() -> None:
    mesh = Mesh.parse("2x3", ranks=6)
    assert [mesh.coordinate(Rank(rank)) for rank in (0, 2, 3)] == [
        Coordinate(0, 0),
        Coordinate(0, 2),
        Coordinate(1, 0),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2x3", "mesh 2x3 has 6 places but the job has 4 ranks; they must be equal"),
        ("0x4", "mesh 0x4: both sides must be at least 1"),
        ("4", "write it as REPLICATExSHARD"),
        ("axb", "write it as REPLICATExSHARD"),
        ("-2x-2", "write it as REPLICATExSHARD"),
    ],
)
def test_an_impossible_mesh_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Mesh.parse(text, ranks=4)
