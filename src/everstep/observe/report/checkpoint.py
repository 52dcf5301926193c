"""The checkpoint timeline: t steps of training, k0 on the same lane, k1 above the next t steps; and the whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everstep.observe.checkpoints import CheckpointRecord, Fate
from everstep.observe.report import words
from everstep.observe.report.markup import Markup, join
from everstep.observe.report.parts import Key, bolt, legend, square
from everstep.observe.report.run import Run
from everstep.observe.report.scale import Scale, nice
from everstep.observe.report.svg import (
    SMALL_PX,
    Svg,
    fitting,
    group,
    hint,
    line,
    nothing,
    path,
    rect,
    text,
    text_width,
    wrapped,
)

WIDE = 1120.0
LANE = 40.0
BELOW_K0 = 40.0
"""Where its name is, if there is no room above."""
POINT = 10.0
"""How far the chevrons of the training reach."""
LEAST_K0 = 64.0
"""A copy to memory is short: it is drawn so wide at least, and the picture says so."""
MOST_CHEVRONS = 6
CHEVRON_PX = 26.0


@dataclass(frozen=True, slots=True)
class Cycle:
    """A checkpoint between the t steps before it and the t steps after it."""

    checkpoint: CheckpointRecord
    start_s: float
    end_s: float
    """When the next one began."""

    @property
    def sealed_s(self) -> float:
        return self.checkpoint.time_s + self.checkpoint.k0_s


def checkpoint_timeline(run: Run, width: float = WIDE) -> Svg:
    name, title = "checkpoints", "Two-tier checkpoints"
    if not run.checkpoints:
        return nothing(name, title, "No checkpoint was recorded in this run.", width)
    keys, y = legend(_keys(), 8, width - 8, 6)
    cycle = find_cycle(run)
    parts = [keys]
    if cycle is not None:
        shapes, y = _cycle(cycle, y + 6, width)
        parts.append(shapes)
    overview, y = _overview(run, y + 10, width)
    return Svg(name, width, y, title, checkpoint_summary(run, cycle), join([*parts, overview]))


def checkpoint_summary(run: Run, cycle: Cycle | None) -> str:
    fates = Counter(record.fate for record in run.checkpoints)
    said = ", ".join(f"{fates[fate]} {fate.value}" for fate in Fate if fates[fate])
    last = run.checkpoints[-1]
    when = f" The last one, of step {last.step}, was {last.fate.value}."
    times = ""
    if cycle is not None and cycle.checkpoint.k1_s:
        k0, k1 = words.duration(cycle.checkpoint.k0_s), words.duration(cycle.checkpoint.k1_s)
        times = f" Training stood still for k₀ = {k0}; storage took k₁ = {k1} while it went on."
    return f"{words.plural(len(run.checkpoints), 'checkpoint')}: {said}.{times}{when}"


def find_cycle(run: Run) -> Cycle | None:
    """A whole one that nothing disturbed, of a usual length; else any."""
    cycles = list(_cycles(run))
    good = [cycle for cycle in cycles if cycle.checkpoint.k1_s is not None] or cycles
    if not good:
        return None
    return sorted(good, key=lambda cycle: cycle.checkpoint.k1_s or cycle.checkpoint.k0_s)[len(good) // 2]


def _cycles(run: Run) -> Iterator[Cycle]:
    records = [record for record in run.checkpoints if record.fate is not Fate.SKIPPED]
    failed = [recovery.time for recovery in run.recoveries]
    for index, record in enumerate(records):
        before = records[index - 1] if index else None
        after = records[index + 1] if index + 1 < len(records) else None
        end_s = after.time_s if after is not None else record.committed_s or run.trained_s or run.last_s
        start_s = before.time_s + before.k0_s if before is not None else run.began_s
        if start_s is None and end_s is not None:
            start_s = record.time_s - (end_s - record.time_s)
        if start_s is None or end_s is None or not start_s < record.time_s < end_s:
            continue
        if not any(start_s <= time <= end_s for time in failed):
            yield Cycle(record, start_s, end_s)


def _keys() -> Iterator[Key]:
    yield Key("training", square("forward"))
    yield Key("checkpoint → memory (k₀)", square("memory-block"))
    yield Key("checkpoint → persistent storage (k₁)", square("storage-block"))


# ── one cycle, as the eye knows it ───────────────────────────────────────────────────────────────────────


def _cycle(cycle: Cycle, top: float, width: float) -> tuple[Markup, float]:
    record = cycle.checkpoint
    scale, magnified = _cycle_scale(cycle, 8.0, width - 8.0)
    start, k0, k0_end, end = (scale(t) for t in (cycle.start_s, record.time_s, cycle.sealed_s, cycle.end_s))
    upper = top + 18
    lane = upper + LANE + 20
    below = lane + LANE + 8
    k1_start_s = record.sealed_s if record.sealed_s is not None else cycle.sealed_s
    k1_end_s = record.committed_s if record.committed_s is not None else k1_start_s + (record.k1_s or 0.0)
    if record.k1_s is not None:
        k1_start_s = max(cycle.sealed_s, k1_end_s - record.k1_s)
    parts = [
        *(line(x, lane - 10, x, lane + LANE + 26, "delimiter") for x in (start, k0, k0_end, end)),
        _training(start, k0, lane, record.every, cycle.start_s, record.time_s, cycle.start_s),
        _training(k0_end, end, lane, record.every, cycle.sealed_s, cycle.end_s, cycle.start_s),
        _memory(record, cycle, k0, k0_end, lane, width),
    ]
    if record.k1_s is not None:
        parts.append(
            _storage(record, cycle, scale(k1_start_s), scale(k1_end_s), k0, k0_end, upper, lane, k1_start_s, width)
        )
    for x, right, seconds in (
        (start, k0, record.time_s - cycle.start_s),
        (k0_end, end, cycle.end_s - cycle.sealed_s),
    ):
        parts.append(path(f"M{x + 2:.2f},{below}v5H{right - 2:.2f}v-5", "bracket"))
        room = right - x - 4
        said = f"Training for t = {record.every} steps"
        label = fitting([f"{said}, {words.duration(seconds)}", said, f"t = {record.every} steps"], room, SMALL_PX)
        parts.append(text((x + right) / 2, below + 18, label, "small middle"))
    y = below + (30 if _said_of_k0(record, k0 - 6) else BELOW_K0)
    notes = f"Around the checkpoint of step {record.step}."
    if magnified > 1.5:
        notes += f" k₀ is drawn {magnified:.0f} × as wide as it was; all else is to scale."
    for row in wrapped(notes, width - 16, SMALL_PX):
        y += 14
        parts.append(text(8, y - 4, row, "small soft"))
    knots = zip(scale.times, scale.places, strict=True)
    return group(
        *parts, class_="cycle", data_scale=" ".join(f"{t - cycle.start_s:.6f}:{x:.2f}" for t, x in knots)
    ), y + 4


def _cycle_scale(cycle: Cycle, left: float, right: float) -> tuple[Scale, float]:
    """Linear, but for k0, which has its least width; and how often wider that is."""
    k0_s = max(cycle.checkpoint.k0_s, 1e-6)
    whole_s = cycle.end_s - cycle.start_s
    true_px = k0_s / whole_s * (right - left)
    if true_px >= LEAST_K0:
        return Scale((cycle.start_s, cycle.end_s), (left, right)), 1.0
    rest = (right - left - LEAST_K0) / (whole_s - k0_s)
    k0 = left + (cycle.checkpoint.time_s - cycle.start_s) * rest
    times = (cycle.start_s, cycle.checkpoint.time_s, cycle.checkpoint.time_s + k0_s, cycle.end_s)
    return Scale(times, (left, k0, k0 + LEAST_K0, right)), LEAST_K0 / (k0_s * rest)


def _training(x: float, right: float, y: float, steps: int, start_s: float, end_s: float, zero_s: float) -> Markup:
    """Chevrons: each a step if there are few, else a few of them and dots."""
    room = right - x
    told = hint(f"Training for {words.plural(steps, 'step')}", words.exact(end_s - start_s))
    facts = {"data_start": f"{start_s - zero_s:.6f}", "data_end": f"{end_s - zero_s:.6f}"}
    if 0 < steps <= MOST_CHEVRONS and room / steps >= CHEVRON_PX:
        length = room / steps
        shapes = [_chevron(x + index * length, x + (index + 1) * length, y) for index in range(steps)]
        return group(told, *shapes, class_="train", **facts)
    size = min(room / 4, 70.0)
    shapes = [_chevron(x, x + size, y), _chevron(x + size, right - size, y), _chevron(right - size, right, y)]
    dots = text((x + right) / 2, y + LANE / 2 + 6, "· · ·", "on-block middle title") if room > 90 else None
    return group(told, *shapes, dots, class_="train", **facts)


def _chevron(x: float, right: float, y: float) -> Markup:
    """Pointed to the right, notched on the left; its body ends where its time does."""
    point = min(POINT, (right - x) / 2)
    d = (
        f"M{x:.2f},{y}H{right - point:.2f}L{right:.2f},{y + LANE / 2}L{right - point:.2f},{y + LANE}"
        f"H{x:.2f}L{x + point:.2f},{y + LANE / 2}Z"
    )
    return path(d, "training")


def _memory(record: CheckpointRecord, cycle: Cycle, x: float, right: float, y: float, width: float) -> Markup:
    told = hint(
        "checkpoint → memory (k₀): training stands still",
        f"{words.exact(record.k0_s)}, {words.size(record.bytes)} over all ranks",
    )
    facts = {
        "data_start": f"{record.time_s - cycle.start_s:.6f}",
        "data_end": f"{cycle.sealed_s - cycle.start_s:.6f}",
    }
    shapes = [rect(x, y, right - x, LANE, "memory-block", told, **facts)]
    above = x - 6  # on the left of the arrow to storage
    said = _said_of_k0(record, above)
    for row, line_ in enumerate(reversed(said)):
        shapes.append(text(above, y - 8 - 14 * row, line_, "small green bold end"))
    if not said:  # below the lane, where only training is said at its sides
        brief = f"k₀ = {words.duration(record.k0_s)}"
        half = text_width(brief, SMALL_PX, bold=True) / 2
        middle = min(max((x + right) / 2, half + 4), width - half - 4)
        shapes.append(text(middle, y + LANE + BELOW_K0, brief, "small green bold middle outlined"))
    return group(*shapes, class_="k0")


def _said_of_k0(record: CheckpointRecord, room: float) -> list[str]:
    """The lines that fit above the lane."""
    lines = ["checkpoint → memory", f"k₀ = {words.duration(record.k0_s)}"]
    while lines and max(text_width(each, SMALL_PX, bold=True) for each in lines) > room:
        lines.pop(0)
    return lines


def _storage(
    record: CheckpointRecord,
    cycle: Cycle,
    x: float,
    right: float,
    k0: float,
    k0_end: float,
    y: float,
    lane: float,
    start_s: float,
    width: float,
) -> Markup:
    assert record.k1_s is not None
    told = hint(
        "checkpoint → persistent storage (k₁): training goes on",
        f"{words.exact(record.k1_s)}, {words.size(record.bytes)}, {record.fate.value}",
    )
    facts = {
        "data_start": f"{start_s - cycle.start_s:.6f}",
        "data_end": f"{start_s + record.k1_s - cycle.start_s:.6f}",
    }
    said = f"k₁ = {words.duration(record.k1_s)}"
    full = f"checkpoint → persistent storage  {said}"
    inside = fitting([full, said], right - x - 8, SMALL_PX)
    label = Markup()
    if inside:
        label += text((x + right) / 2, y + LANE / 2 + 4, inside, "on-block small bold middle")
    rest = "" if inside == full else "checkpoint → persistent storage" if inside else full
    beside = fitting([rest, said], width - right - 12, SMALL_PX * 1.1)
    if rest and beside:
        label += text(right + 8, y + LANE / 2 + 4, beside, "small bold")
    elif rest:
        label += text(width - 8, y - 5, rest, "small bold end")
    from_x = min(k0_end - 8, (k0 + k0_end) / 2 + 14)
    middle = y + LANE / 2
    shaft = f"M{from_x:.2f},{lane}V{middle}H{x - 6:.2f}"
    head = f"M{x:.2f},{middle}l-9,-5v10Z"
    ell = group(path(shaft, "shaft"), path(head, "head"), class_="arrow storage")
    return group(rect(x, y, max(right - x, 3), LANE, "storage-block", told, **facts), ell, label, class_="k1")


# ── the whole run, to scale ──────────────────────────────────────────────────────────────────────────────

_MARKS = {
    Fate.COMMITTED: "on storage",
    Fate.SEALED: "in memory only",
    Fate.INCOMPLETE: "incomplete",
    Fate.SKIPPED: "skipped",
}


def _overview(run: Run, top: float, width: float) -> tuple[Markup, float]:
    records = run.checkpoints
    start_s = min([records[0].time_s, *([run.began_s] if run.began_s is not None else [])])
    ends = [record.committed_s or record.time_s + record.k0_s for record in records]
    end_s = max([*ends, *([run.trained_s] if run.trained_s is not None else [])])
    scale = Scale((start_s, max(end_s, start_s + 1e-3)), (8.0, width - 8.0))
    present = {record.fate for record in records}
    keys = [Key(_MARKS[fate], lambda x, y, fate=fate: _mark(fate, x, y)) for fate in Fate if fate in present]  # type: ignore[misc]
    if run.recoveries:
        keys.append(Key("Failure", lambda x, y: bolt(x, y, size=0.55)))
    head, y = legend(keys, 8, width - 8, top + 22)
    parts = [text(8, top + 10, "The whole run, to scale", "bold"), head]
    storage, bar = y + 4, y + 22
    parts.append(rect(scale.left, bar, scale.right - scale.left, 16, "forward"))
    for recovery in run.recoveries:
        at_s = recovery.time - recovery.t_detect_s
        x = scale(at_s)
        told = hint(f"recovery {recovery.number}: {words.duration(recovery.t_total_s)}")
        parts.append(rect(x, bar, max(scale(at_s + recovery.t_total_s) - x, 1), 16, "halt"))
        parts.append(bolt(x, bar + 8, told, size=0.7))
    parts += [_way_to_storage(records, scale, storage), *_marks(records, scale, bar + 26)]
    seconds = scale.end_s - scale.start_s
    tick_s = nice(seconds / max(2, (scale.right - scale.left) // 110))
    base = bar + 38
    parts.append(line(scale.left, base, scale.right, base, "axis"))
    for index in range(int(seconds / tick_s + 1e-9) + 1):
        x, label = scale(start_s + index * tick_s), words.duration(index * tick_s) if index else "0"
        half = text_width(label, SMALL_PX) / 2
        parts.append(line(x, base, x, base + 4, "axis"))
        parts.append(text(min(max(x, half + 2), width - half - 2), base + 16, label, "small soft middle"))
    return group(*parts, class_="overview"), base + 26


def _way_to_storage(records: Sequence[CheckpointRecord], scale: Scale, y: float) -> Markup:
    ways = []
    for record in records:
        if record.k1_s is not None and record.committed_s is not None:
            x = scale(record.committed_s - record.k1_s)
            ways.append(f"M{x:.2f},{y}H{max(scale(record.committed_s), x + 1):.2f}v12H{x:.2f}Z")
    return path("".join(ways), "storage-block") if ways else Markup()


def _marks(records: Sequence[CheckpointRecord], scale: Scale, y: float) -> Iterator[Markup]:
    for record in records:
        told = hint(
            f"checkpoint of step {record.step}: {_MARKS[record.fate]}",
            record.reason,
            f"k₀ {words.exact(record.k0_s)}" + (f", k₁ {words.exact(record.k1_s)}" if record.k1_s is not None else ""),
            f"every {record.every} steps",
        )
        yield group(told, _mark(record.fate, scale(record.time_s), y), data_step=str(record.step))


def _mark(fate: Fate, x: float, y: float) -> Markup:
    """Each fate has a shape of its own."""
    if fate is Fate.COMMITTED:
        return path(f"M{x - 4:.2f},{y}l4,-5l4,5l-4,5Z", "memory")
    if fate is Fate.SEALED:
        return path(f"M{x - 4:.2f},{y}l4,-5l4,5l-4,5Z", "hollow")
    if fate is Fate.INCOMPLETE:
        return path(f"M{x - 4:.2f},{y - 4:.2f}l8,8m0,-8l-8,8", "lost")
    return path(f"M{x - 4:.2f},{y}h8", "lost")
