"""The protocol is right: in these scopes every interleaving was tried, and none breaks a rule of docs/protocol.md.

Run with ``-rP`` to see how many states each proof has. Larger scopes are in ``make chaos``.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import click
import pytest
from click.testing import CliRunner, Result

from everstep.core import planner
from everstep.core.machine import Machine
from everstep.errors import ConfigError
from everstep.sim.explore import Explorer, explore, main
from everstep.sim.world import Kind, Scope
from everstep.types import Mesh

ALL = tuple(Kind)
PROCESSES = (Kind.CRASH, Kind.SUSPECT, Kind.TIMER)
NODES = (Kind.NODE, Kind.PARTITION)


def assert_proved(scope: Scope) -> None:
    result = explore(scope)
    kinds = "all kinds" if scope.kinds == ALL else ", ".join(kind.value for kind in scope.kinds)
    click.echo(
        f"{scope.ranks} ranks ({scope.layout}), {scope.standbys} standbys, {scope.nodes} nodes, {scope.steps} steps, "
        f"{scope.failures} failures ({kinds}): {result.states:,} states, {result.transitions:,} transitions, "
        f"deepest path {result.depth}, {result.seconds} s; {result.outcomes}"
    )
    assert result.violation is None, "\n".join((result.violation.message, *result.violation.trace))
    assert result.complete
    assert result.outcomes["DONE"]


# ── the proofs ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long_proof
@pytest.mark.timeout(400)
def test_two_failures_of_two_ranks_and_a_standby() -> None:
    assert_proved(Scope(ranks=2, standbys=1, failures=2, steps=1))


@pytest.mark.long_proof
@pytest.mark.timeout(400)
def test_any_failure_of_three_ranks() -> None:
    assert_proved(Scope(ranks=3, standbys=0, failures=1, steps=1))


SCOPES = {
    "any failure over two steps": Scope(ranks=2, standbys=1, failures=1, steps=2),
    "no failure over three steps": Scope(ranks=3, standbys=1, failures=0, steps=3),
    "two standbys": Scope(ranks=2, standbys=2, failures=1, steps=1, kinds=PROCESSES),
    "any failure on two nodes": Scope(ranks=2, standbys=0, failures=1, steps=1, nodes=2),
    "two nodes, and a standby on one": Scope(ranks=2, standbys=1, failures=1, steps=1, nodes=2, kinds=NODES),
    "both nodes go": Scope(ranks=2, standbys=0, failures=2, steps=1, nodes=2, kinds=NODES),
    "a crash around a restarted controller": Scope(
        ranks=2, standbys=0, failures=2, steps=1, kinds=(Kind.CRASH, Kind.RESTART)
    ),
    "a crash around a command that comes again": Scope(
        ranks=2, standbys=0, failures=2, steps=1, kinds=(Kind.CRASH, Kind.ECHO)
    ),
    "a broken collective around a restarted controller": Scope(
        ranks=2, standbys=0, failures=2, steps=1, kinds=(Kind.BREAK, Kind.RESTART)
    ),
    "one rank and the checkpoint": Scope(ranks=1, standbys=1, failures=2, steps=1, checkpoint=True),
    "two replicas and the checkpoint": Scope(
        ranks=2, standbys=0, failures=2, steps=1, checkpoint=True, kinds=(Kind.CRASH,)
    ),
    "two shards and the checkpoint": Scope(ranks=2, standbys=0, failures=1, steps=1, mesh=Mesh(1, 2), checkpoint=True),
    "two shards that seal": Scope(
        ranks=2, standbys=0, failures=1, steps=2, mesh=Mesh(1, 2), seal=True, kinds=(Kind.CRASH,)
    ),
    "two shards that seal on two nodes": Scope(
        ranks=2, standbys=0, failures=1, steps=2, nodes=2, mesh=Mesh(1, 2), seal=True, kinds=(Kind.NODE, Kind.RESTART)
    ),
    "a damaged checkpoint of one rank": Scope(
        ranks=1, standbys=0, failures=2, steps=2, checkpoint=True, seal=True, kinds=(Kind.CRASH, Kind.DAMAGE)
    ),
    "two ranks that go on from a checkpoint": Scope(
        ranks=2, standbys=0, failures=1, steps=1, checkpoint=True, resume=True
    ),
    "a damaged checkpoint to go on from": Scope(
        ranks=2, standbys=0, failures=1, steps=1, checkpoint=True, resume=True, seal=True, kinds=(Kind.DAMAGE,)
    ),
    "two shards and no checkpoint": Scope(ranks=2, standbys=0, failures=1, steps=1, mesh=Mesh(1, 2)),
    "two replicas of two shards, no failure": Scope(ranks=4, standbys=0, failures=0, steps=1, mesh=Mesh(2, 2)),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_every_interleaving(scope: Scope) -> None:
    assert_proved(scope)


# ── the reduction loses nothing ──────────────────────────────────────────────────────────────────────────


def assert_reduction_loses_nothing(scope: Scope) -> None:
    """Taking some steps first reaches the same states of the controller's machine by the same rows."""
    reduced, full = Explorer(replace(scope, reduce=True)), Explorer(replace(scope, reduce=False))
    less, more = reduced.run(), full.run()
    assert less.violation is None
    assert more.violation is None
    assert less.states < more.states
    assert less.outcomes == more.outcomes
    assert set(reduced.rules.cores.views) == set(full.rules.cores.views)
    assert less.core_states == more.core_states
    assert changes(less.rows) == changes(more.rows)


def changes(rows: frozenset[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """The reduction delivers what changes nothing at once, so it sees that in fewer phases."""
    return {row for row in rows if row[1] != row[2]}


SMALL = {
    "any failure of two ranks": Scope(ranks=2, standbys=0, failures=1, steps=1),
    "one rank, two steps": Scope(ranks=1, standbys=1, failures=1, steps=2),
    "two failures and a checkpoint": Scope(
        ranks=1, standbys=0, failures=2, steps=1, checkpoint=True, kinds=(Kind.CRASH, Kind.SUSPECT, Kind.RESTART)
    ),
    "two nodes": Scope(ranks=2, standbys=0, failures=1, steps=1, nodes=2, kinds=(*NODES, Kind.RESTART)),
    "two shards and a checkpoint": Scope(
        ranks=2, standbys=0, failures=1, steps=1, mesh=Mesh(1, 2), checkpoint=True, kinds=(Kind.CRASH,)
    ),
}


@pytest.mark.parametrize("scope", SMALL.values(), ids=SMALL)
def test_the_reduction_loses_no_state_of_the_controller(scope: Scope) -> None:
    assert_reduction_loses_nothing(scope)


def drop_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "_fence_pending", lambda self: False)


def commit_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_reaches", lambda at: at.version + 1)


@pytest.mark.parametrize("mutate", [drop_the_fence, commit_what_is_ready])
@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.SUSPECT])
def test_the_reduction_loses_no_violation(
    monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None], kind: Kind
) -> None:
    mutate(monkeypatch)
    scope = Scope(ranks=2, standbys=0, failures=1, steps=1, kinds=(kind,))
    less, more = explore(scope), explore(replace(scope, reduce=False))
    assert (less.violation is None) == (more.violation is None)


# ── what a violation looks like ──────────────────────────────────────────────────────────────────────────


def test_a_violation_comes_with_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_the_fence(monkeypatch)
    found = explore(Scope(ranks=2, standbys=0, failures=1, steps=1, kinds=(Kind.SUSPECT,))).violation
    assert found is not None
    assert "is decided before workers" in found.message
    assert any(line.startswith("SUSPECT") for line in found.trace)


def test_an_error_of_the_core_is_a_violation_with_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "decide", lambda positions: 1 / 0)
    found = explore(Scope(ranks=2, standbys=0, failures=1, steps=1, kinds=(Kind.CRASH,))).violation
    assert found is not None
    assert "ZeroDivisionError" in found.message
    assert found.trace


def test_a_limit_of_states_is_no_proof() -> None:
    result = explore(Scope(ranks=2, standbys=0, failures=1, steps=1), max_states=100)
    assert not result.complete
    assert result.violation is None


def test_it_goes_deeper_level_by_level() -> None:
    levels: list[tuple[int, int]] = []
    result = explore(
        Scope(ranks=1, standbys=0, failures=0, steps=1),
        progress=lambda depth, states, frontier: levels.append((depth, states)),
    )
    assert all(one[1] <= two[1] for one, two in pairwise(levels))
    assert levels[-1] == (result.depth, result.states)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


QUICK = ("--ranks", "1", "--standby", "0", "--steps", "1")


def test_json_has_the_counts_and_no_violation() -> None:
    done = run(*QUICK, "--json")
    shown = json.loads(done.stdout)
    assert done.exit_code == 0
    assert shown["violations"] == 0
    assert shown["complete"]
    assert min(shown["states"], shown["transitions"], shown["depth"], shown["core_states"]) > 0


def test_text_has_the_counts_and_no_violation() -> None:
    done = run(*QUICK, "--kind", "crash")
    assert done.exit_code == 0
    assert "no violation" in done.stdout
    assert " states, " in done.stdout
    assert "DONE" in done.stdout


def test_a_violation_exits_1_and_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_the_fence(monkeypatch)
    scope = ("--standby", "0", "--steps", "1", "--kind", "suspect")
    shown = json.loads(run(*scope, "--json").stdout)
    assert shown["violations"] == 1
    assert shown["message"]
    assert shown["trace"]
    text = run(*scope)
    assert text.exit_code == 1
    assert f"VIOLATION: {shown['message']}" in text.stdout
    assert shown["trace"][-1] in text.stdout


def test_a_limit_of_states_is_said_to_be_no_proof() -> None:
    done = run("--max-states", "50")
    assert done.exit_code == 0
    assert "not a proof" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "value", "rule"),
    [
        (("--failures", "-1"), "failures is -1", "at least 0"),
        (("--steps", "0"), "steps is 0", "at least 1"),
        (("--nodes", "0"), "nodes is 0", "at least 1"),
        (("--nodes", "3"), "nodes is 3", "only 2 ranks"),
        (("--resume",), "resume needs a checkpoint", "begin with"),
        (("--ranks", "-2"), "ranks is -2", "at least 1"),
        (("--ranks", "0"), "ranks is 0", "nothing for a standby to replace"),
        (("--ranks", "0", "--standby", "0"), "ranks is 0", "at least 1"),
        (("--standby", "-1"), "standbys is -1", "at least 0"),
        (("--ranks", "4", "--mesh", "2x3"), "mesh 2x3 has 6 places", "4 ranks; they must be equal"),
        (("--ranks", "4", "--mesh", "0x4"), "mesh 0x4", "at least 1"),
        (("--ranks", "4", "--mesh", "two"), "mesh 'two'", "write it as REPLICATExSHARD"),
    ],
)
def test_bad_input_exits_2_with_the_value_and_the_rule(arguments: tuple[str, ...], value: str, rule: str) -> None:
    done = run(*arguments)
    said = " ".join(done.stderr.replace("│", " ").split())
    assert done.exit_code == 2
    assert value in said
    assert rule in said


def test_a_scope_that_cannot_be_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="mesh 2x3 has 6 places, not 4"):
        Scope(ranks=4, mesh=Mesh(2, 3))
