"""Faults as people write them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.chaos.spec import Action, Fault, When, parse, parse_lines
from everstep.errors import ConfigError
from everstep.types import NodeId, Rank, Step, WorkerPhase
from everstep.worker.phases import PHASES

SECONDS = st.floats(min_value=1e-9, max_value=1e9)
PLACES = {
    "rank": st.integers(0, 10**6).map(Rank),
    "node": st.text("abé1.:=-_", min_size=1).map(NodeId),
    "times": st.integers(1, 10**6),
    "delay_s": SECONDS,
}
IN_WORKER = [action for action in Action if Fault(action).in_worker]
FAULTS = st.one_of(
    st.fixed_dictionaries(
        {"action": st.sampled_from(IN_WORKER), "step": st.integers(0, 10**9).map(Step)},
        optional=PLACES | {"phase": st.sampled_from(list(PHASES.values())), "when": st.sampled_from(list(When))},
    ),
    st.fixed_dictionaries(
        {"action": st.sampled_from([Action.PARTITION, Action.SLOW, Action.HANG, Action.GIL])},
        optional=PLACES | {"for_s": SECONDS},
    ),
    st.fixed_dictionaries({"action": st.sampled_from([Action.AGENT_KILL, *IN_WORKER])}, optional=PLACES),
).map(lambda values: Fault(**cast("dict[str, Any]", values)))


@given(FAULTS)
def test_what_is_written_is_read(fault: Fault) -> None:
    assert parse(str(fault)) == fault


def test_a_fault_reads_as_it_is_spoken() -> None:
    text = "kill rank=2 node=n1 step=7 phase=optimizer when=mid times=3 delay=0.5"
    fault = parse(text)
    assert fault == Fault(
        Action.KILL, Rank(2), NodeId("n1"), Step(7), WorkerPhase.COMMITTED, When.MID, times=3, delay_s=0.5
    )
    assert str(fault) == text
    assert parse("  slow   for=2 ") == Fault(Action.SLOW, for_s=2.0)


def test_several_faults_come_one_on_each_line() -> None:
    assert parse_lines("kill rank=0\npartition for=2") == (parse("kill rank=0"), parse("partition for=2"))
    assert parse_lines("") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with an action: kill, stop, segv, exit, raise, hang, gil, slow, agent-kill"),
        ("explode rank=1", "action='explode' cannot be: it is one of kill, stop, segv"),
        ("kill who=1", "'who=1' is not KEY=VALUE with a key of rank, node, step, phase, when, times, delay, for"),
        ("kill rank", "'rank' is not KEY=VALUE"),
        ("kill rank=1 rank=2", "rank is given twice"),
        ("kill rank=-1", "rank='-1' cannot be: it is a whole number"),
        ("kill rank=٣", "it is a whole number"),
        ("kill node=", "node='' cannot be: it is the name of a node"),
        ("kill step=1.5", "step='1.5' cannot be: it is a whole number"),
        ("kill phase=lunch", "phase='lunch' cannot be: it is one of idle, forward, backward, barrier, optimizer"),
        ("kill step=1 when=soon", "when='soon' cannot be: it is one of before, mid, after"),
        ("kill when=mid", "when=mid needs step= or phase="),
        ("kill times=0", "times=0 cannot be: it is at least 1"),
        ("kill delay=fast", "delay='fast' cannot be: it is a number of seconds"),
        ("kill delay=-1", "delay=-1.0 cannot be: it is a number of seconds, more than 0"),
        ("kill delay=nan", "delay=nan cannot be"),
        ("slow for=0", "for=0.0 cannot be: it is a number of seconds, more than 0"),
        ("kill for=1", "kill takes no for; its keys are rank, node, step"),
        ("agent-kill step=1", "agent-kill takes no step; its keys are rank, node, times, delay"),
        ("controller-kill rank=1", "controller-kill takes no rank; its keys are times, delay"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_a_phase_outside_the_loop_is_refused() -> None:
    with pytest.raises(ConfigError, match="phase=STANDBY cannot be"):
        Fault(Action.KILL, phase=WorkerPhase.STANDBY)


@given(st.lists(st.sampled_from(["kill", "slow", "rank", "for", "delay", "=", " ", "1", "-1", "nan", "٣"]) | st.text()))
def test_any_text_is_a_fault_or_a_config_error(words: list[str]) -> None:
    with suppress(ConfigError):
        parse("".join(words))


@pytest.mark.parametrize(
    ("text", "concerned"),
    [
        ("kill", True),
        ("kill rank=1", True),
        ("kill rank=0", False),
        ("kill node=a", True),
        ("kill node=b", False),
        ("kill rank=1 node=b", False),
    ],
)
def test_a_fault_concerns_whom_it_names(text: str, concerned: bool) -> None:
    assert parse(text).concerns(Rank(1), NodeId("a")) is concerned


def test_what_the_worker_does_itself_is_told_from_the_rest() -> None:
    others = {action.value for action in Action if not Fault(action).in_worker}
    assert others == {"agent-kill", "controller-kill", "partition"}
