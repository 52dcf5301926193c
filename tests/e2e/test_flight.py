"""The flight record of a real job: what each worker did around a failure, on all nodes, by one clock."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import perfetto
from tests.e2e.conftest import SCRIPTS, Run, eventually
from tests.observe.traces import check

from everstep.observe.digests import scan_digests
from everstep.observe.flight import read_lanes
from everstep.observe.report.audit import comparisons
from everstep.observe.timeline import Lane, Span
from everstep.types import Moment

Start = Callable[..., Run]
TRAINING = str(SCRIPTS / "breaks.py")
STEPS = str(SCRIPTS / "steps.py")


def trace(run: Run) -> dict[str, object]:
    """As a person would."""
    command = [sys.executable, "-m", "everstep.cli", "trace", str(run.dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads((run.dir / "trace.json").read_text()))


def of(lanes: tuple[Lane, ...], rank: int) -> list[Lane]:
    return [lane for lane in lanes if lane.rank == rank]


def first(spans: tuple[Span, ...], phase: str, step: int, generation: int) -> float | None:
    found = (s.start_s for s in spans if (s.phase, s.step, s.generation) == (phase, step, generation))
    return next(found, None)


def test_a_recovery_over_two_nodes_is_recorded_from_both_sides(start: Start, tmp_path: Path) -> None:
    fault = ("--chaos", "kill rank=1 step=3 phase=backward")
    run = start("--nproc", "2", "--local-nodes", "2", *fault, TRAINING, "no rule", str(tmp_path))
    assert run.wait() == 0, run.text()
    lanes = read_lanes(run.dir)
    [survivor], [victim, replacement] = of(lanes, 0), of(lanes, 1)
    assert {survivor.node, victim.node} == {"local-0", "local-1"}

    assert (victim.spans[-1].phase, victim.spans[-1].step) == ("BACKWARD", 3)
    assert victim.end == "killed by SIGKILL in BACKWARD of step 3"
    assert victim.end_s is not None
    assert victim.spans[-1].start_s <= victim.end_s

    stopped = next(index for index, span in enumerate(survivor.spans) if span.phase == "STOP")
    phases = [span.phase for span in survivor.spans[stopped:]]
    assert [phase for phase in phases if phase not in ("IDLE", "RESTORE")][:5] == [
        *("STOP", "CLEAN", "RESET", "RESUME", "FORWARD")
    ]
    redone = [(span.step, span.attempt) for span in survivor.spans[stopped:] if span.phase == "BACKWARD"]
    assert redone == [(3, 1), (4, 0), (5, 0)]

    named = [span.phase for span in replacement.spans]
    assert named.index("BUILDING") < named.index("RESET") < named.index("RESTORE") < named.index("FORWARD")
    assert [span.step for span in replacement.spans if span.phase == "COMMITTED"] == [3, 4, 5]

    nobody_passes_the_barrier_before_all_are_in_it(lanes)
    assert audited(run) == [
        (Moment.PROTECT, 0, "equal"),
        (Moment.FIRST_STEP, 1, "equal"),
        (Moment.RESTORATION, 3, "equal"),
        (Moment.FIRST_STEP, 4, "equal"),
        (Moment.END, 6, "equal"),
    ]
    phs = [event["ph"] for event in check(trace(run))]
    assert [phs.count(kind) for kind in "stf"] == [1, 1, 1]
    if not perfetto.LIBRARY.exists():
        return
    errors, arrows = perfetto.ask(run.dir / "trace.json", perfetto.ERRORS, perfetto.ARROWS)
    assert errors == []
    assert [(source, target) for _, source, _, target in arrows] == [
        ("worker 1 on local-1", "job"),
        ("job", f"worker {replacement.worker} on {replacement.node}"),
    ]


def audited(run: Run) -> list[tuple[Moment, int, str]]:
    made = comparisons(scan_digests(run.dir / "digests.jsonl").whole())
    assert all(len(each.records) == 2 for each in made)
    return [(each.moment, each.version, each.verdict) for each in made]


def test_replicas_that_drift_apart_are_found_at_the_end(start: Start, tmp_path: Path) -> None:
    run = start("--nproc", "2", "--standby", "0", TRAINING, "drifts", str(tmp_path))
    assert run.wait() == 0, run.text()
    assert audited(run)[1:] == [(Moment.FIRST_STEP, 1, "equal"), (Moment.END, 6, "DIFFERENT")]
    command = [sys.executable, "-m", "everstep.cli", "report", str(run.dir)]
    subprocess.run(command, check=True, capture_output=True)
    assert "replicas had different digests at step 6" in (run.dir / "report.html").read_text()


def nobody_passes_the_barrier_before_all_are_in_it(lanes: tuple[Lane, ...]) -> None:
    """True of every run (I1), so it is true of the record if the clocks of the nodes are one."""
    passed = 0
    for generation in (1, 2):
        for step in range(6):
            entered = [first(lane.spans, "READY", step, generation) for lane in lanes]
            left = [first(lane.spans, "COMMITTED", step, generation) for lane in lanes]
            if any(left):
                assert max(filter(None, entered)) <= min(filter(None, left)), (generation, step)
                passed += 1
    assert passed == 6


def test_what_an_agent_has_written_is_there_when_it_is_killed(start: Start) -> None:
    run = start("--nproc", "2", "--no-zygote", STEPS, "10000", "0.02")
    before = {lane["worker"] for lane in run.training(5)["workers"]}
    eventually(lambda: all(lane.spans[-1].step >= 5 for lane in known(run, before)), "the steps are in the files")
    check(trace(run))
    victim = next(process for process in run.family() if {"everstep.agent", "local-0"} <= set(process.cmdline()))
    victim.kill()
    run.when(lambda status: {lane["worker"] for lane in status["workers"]}.isdisjoint(before), "all are new")
    run.training(5)
    for lane in known(run, before):
        assert lane.end == "node local-0: its agent's connection ended"
        assert lane.spans[-1].step >= 5
    eventually(lambda: [lane for lane in read_lanes(run.dir) if lane.worker not in before and lane.spans], "it goes on")
    run.process.terminate()
    run.wait()
    check(trace(run))


def known(run: Run, workers: set[int]) -> list[Lane]:
    return [lane for lane in read_lanes(run.dir) if lane.worker in workers]


@pytest.mark.parametrize("content", [b"everstep flight 0\n", b"not at all"])
def test_a_record_of_another_version_is_told_in_one_line(start: Start, content: bytes) -> None:
    run = start("--nproc", "1", "--no-zygote", STEPS, "1", "0.01")
    assert run.wait() == 0
    (run.dir / "flight" / "local-0.flight").write_bytes(content)
    command = [sys.executable, "-m", "everstep.cli", "trace", str(run.dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "local-0.flight is not a flight record of this version of everstep" in done.stderr
