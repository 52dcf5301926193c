"""An invented run with times that a test knows: devices train, one of them fails, another takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from everstep.core.events import JobPhase
from everstep.observe.checkpoints import CheckpointRecord, Fate
from everstep.observe.history import PhaseSpan
from everstep.observe.records import Decision, Donor, Failure, Outcome, Recovery, Replacement
from everstep.observe.report.run import Run, State
from everstep.observe.timeline import Lane, Span
from everstep.types import Generation

ZERO_S = 1_700_000_000.0
FORWARD_S, BACKWARD_S, BARRIER_S, OPTIMIZER_S, PAUSE_S = 0.016, 0.024, 0.003, 0.010, 0.001
STEP_S = FORWARD_S + BACKWARD_S + BARRIER_S + OPTIMIZER_S + PAUSE_S
STOP_S, SETTLE_S, RESET_S, RESTORE_S = 0.004, 0.012, 0.006, 0.009
STEP = 3
"""The one that the failure is in; those before it are healthy."""

_LENGTHS = {"FORWARD": FORWARD_S, "BACKWARD": BACKWARD_S, "READY": BARRIER_S, "COMMITTED": OPTIMIZER_S}


@dataclass(frozen=True)
class Fault:
    rank: int = 2
    phase: str = "BACKWARD"
    part: float = 0.5
    """Of the phase that is over when it fails."""
    detect_s: float = 0.012
    cause: str = "EXIT"
    evidence: str = ""


def invented(ranks: int = 4, fault: Fault | None = None, *, jitter_s: float = 0.0003) -> Run:
    """Four healthy steps at most before the failure, and two after it."""
    fault = fault or Fault()
    healthy = [_steps(rank, 0, STEP, ZERO_S, 1, jitter_s) for rank in range(ranks)]
    begin_s = ZERO_S + STEP * STEP_S
    before = dict(_phase_starts(begin_s))
    failed_s = before[fault.phase] + fault.part * _LENGTHS[fault.phase]
    verdict_s = failed_s + fault.detect_s
    finish = fault.phase == "COMMITTED"
    target = STEP + 1 if finish else STEP
    times = _times(verdict_s)
    lanes = []
    for rank in range(ranks):
        spans = [*healthy[rank], *_cut(_steps(rank, STEP, 1, begin_s, 1, jitter_s), failed_s, verdict_s, rank, fault)]
        if rank != fault.rank:
            spans += _halt(times, target, donor=rank == 0)
            spans += _steps(rank, target, 2, times["resume"], 2, jitter_s)
        dead_s = verdict_s if fault.cause != "EXIT" else failed_s
        lanes.append(Lane(rank, rank, "local-0", tuple(spans), dead_s if rank == fault.rank else None, fault.evidence))
    lanes.append(
        Lane(
            ranks,
            fault.rank,
            "local-0",
            (*_join(times, target, verdict_s), *_steps(ranks, target, 2, times["resume"], 2, 0.0)),
        )
    )
    first_step_s = FORWARD_S + BACKWARD_S + BARRIER_S
    recovery = _recovery(ranks, fault, target, verdict_s, first_step_s, finish=finish)
    return Run(
        name="20260130-101500-train",
        state=State.DONE,
        program="train.py --lr 3e-4",
        ranks=ranks,
        lanes=tuple(lanes),
        recoveries=(recovery,),
        phases=tuple(_phases(verdict_s, times, first_step_s)),
        last_s=times["resume"] + 2 * STEP_S + 0.2,
    )


def _phases(verdict_s: float, times: dict[str, float], first_step_s: float) -> Iterator[PhaseSpan]:
    begins = (
        (JobPhase.RESUMING, 1, ZERO_S),
        (JobPhase.RUNNING, 1, ZERO_S + FORWARD_S + BACKWARD_S + BARRIER_S),
        (JobPhase.STOPPING, 2, verdict_s),
        (JobPhase.SETTLING, 2, times["settle"]),
        (JobPhase.RESETTING, 2, times["reset"]),
        (JobPhase.RESTORING, 2, times["restore"]),
        (JobPhase.RESUMING, 2, times["resume"]),
        (JobPhase.RUNNING, 2, times["resume"] + first_step_s),
        (JobPhase.ENDING, 2, times["resume"] + 2 * STEP_S),
        (JobPhase.DONE, 2, times["resume"] + 2 * STEP_S + 0.2),
    )
    ends = [start_s for _, _, start_s in begins[1:]]
    for (phase, generation, start_s), end_s in zip(begins, [*ends, None], strict=True):
        yield PhaseSpan(phase, Generation(generation), start_s, end_s)


def _times(verdict_s: float) -> dict[str, float]:
    settle = verdict_s + STOP_S
    reset = settle + SETTLE_S
    restore = reset + RESET_S
    return {"stop": verdict_s, "settle": settle, "reset": reset, "restore": restore, "resume": restore + RESTORE_S}


def _phase_starts(begin_s: float) -> Iterator[tuple[str, float]]:
    for phase, length_s in _LENGTHS.items():
        yield phase, begin_s
        begin_s += length_s


def _steps(worker: int, first: int, count: int, begin_s: float, generation: int, jitter_s: float) -> list[Span]:
    """Each device comes to the barrier a little later than the one before."""
    spans = []
    for step in range(first, first + count):
        late_s = jitter_s * (worker % 8)
        for phase, start_s in _phase_starts(begin_s):
            end_s = start_s + _LENGTHS[phase]
            early = start_s + (late_s if phase in ("BACKWARD", "READY") else 0.0)
            late = end_s + (late_s if phase in ("FORWARD", "BACKWARD") else 0.0)
            spans.append(Span(phase, step, 0, generation, early, late))
        begin_s += STEP_S
    return spans


def _cut(spans: list[Span], failed_s: float, verdict_s: float, rank: int, fault: Fault) -> list[Span]:
    """The failed one ends there; the others go on until they are stopped, an update until it is complete."""
    if fault.cause != "EXIT":  # it stands still, and the others wait for it
        waits = [span for span in spans if span.start_s <= failed_s]
        return [*waits[:-1], replace(waits[-1], end_s=verdict_s)]
    until_s = failed_s if rank == fault.rank else verdict_s
    found = [span for span in spans if span.start_s < until_s]
    if rank != fault.rank:
        if fault.phase == "COMMITTED":
            return found
        found = [span for span in found if span.phase != "COMMITTED"]
    return [*found[:-1], replace(found[-1], end_s=until_s)]


def _halt(times: dict[str, float], target: int, *, donor: bool) -> list[Span]:
    spans = [
        Span("STOP", target, 0, 2, times["stop"], times["settle"]),
        Span("CLEAN", target, 0, 2, times["settle"], times["settle"] + 0.002),
        Span("RESET", target, 0, 2, times["reset"], times["restore"]),
    ]
    if donor:
        spans.append(Span("RESTORE", target, 0, 2, times["restore"], times["resume"]))
    return spans


def _join(times: dict[str, float], target: int, verdict_s: float) -> list[Span]:
    return [
        Span("STANDBY", 0, 0, 1, ZERO_S, verdict_s),
        Span("BUILDING", 0, 0, 2, verdict_s + 0.001, times["reset"]),
        Span("RESET", target, 0, 2, times["reset"], times["restore"]),
        Span("RESTORE", target, 0, 2, times["restore"], times["resume"]),
    ]


def _recovery(
    ranks: int, fault: Fault, target: int, verdict_s: float, first_step_s: float, *, finish: bool
) -> Recovery:
    evidence = fault.evidence or f"killed by SIGKILL in {fault.phase} of step {STEP}"
    after = Replacement(ranks, "local-0", standby=True)
    failure = Failure(fault.cause, evidence, fault.rank, fault.rank, "local-0", fault.phase, STEP, after)
    spent_s = fault.detect_s + STOP_S + SETTLE_S + RESET_S + RESTORE_S + first_step_s
    reason = (
        f"of 3 live holders 3 had passed the barrier of step {STEP}, so its update counts: "
        f"3 finish it and all go on with step {target}"
        if finish
        else f"of 3 live holders nobody has passed the barrier of step {STEP}: step {STEP} is done again"
    )
    return Recovery(
        number=0,
        time=verdict_s,
        generation=2,
        generations=(2,),
        cause=fault.cause,
        evidence=evidence,
        rank=fault.rank,
        node="local-0",
        phase=fault.phase,
        step=STEP,
        false_alarm=False,
        target=target,
        decision=Decision.FINISH if finish else Decision.REDO,
        reason=reason,
        replaced_by=after,
        donors=(Donor(0, 0, ranks),),
        bytes=1_266_544,
        t_detect_s=fault.detect_s,
        t_stop_s=STOP_S,
        t_decide_s=0.0,
        t_settle_s=SETTLE_S,
        t_script_s=SETTLE_S + STOP_S,
        t_reset_s=RESET_S,
        t_restore_s=RESTORE_S,
        t_first_step_s=first_step_s,
        t_total_s=spent_s,
        steps_redone=0 if finish else 1,
        outcome=Outcome.RECOVERED,
        failures=(failure,),
    )


def with_checkpoints(run: Run, count: int = 6, k0_s: float = 0.004, k1_s: float = 0.4) -> Run:
    """One each second, before the failure of this run; they come to storage."""
    began_s = ZERO_S - count - 1.0
    records = tuple(
        CheckpointRecord(
            step=20 * (index + 1),
            generation=1,
            attempt=0,
            fate=Fate.COMMITTED,
            reason="",
            time_s=began_s + index + 1,
            k0_s=k0_s,
            sealed_s=began_s + index + 1 + k0_s,
            k1_s=k1_s,
            committed_s=began_s + index + 1 + k0_s + k1_s,
            bytes=5_000_000,
            every=20,
            why="t = 20 steps of 0.05 s: asked for",
        )
        for index in range(count)
    )
    first = PhaseSpan(JobPhase.RESUMING, Generation(1), began_s, ZERO_S)
    return replace(run, checkpoints=records, phases=(first, *run.phases))
