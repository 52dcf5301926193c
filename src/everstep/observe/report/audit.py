"""The hash audit: at which versions of the state which ranks took a digest, and whether replicas had the same one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from everstep.observe.digests import DigestRecord
from everstep.observe.report import words
from everstep.observe.report.run import Run
from everstep.observe.report.tables import Table
from everstep.types import Moment

SHOWN = 16
"""Digits of a digest."""

_NAMES = {
    Moment.PROTECT: "at protect()",
    Moment.FIRST_STEP: "after the first step, also of a recovery",
    Moment.RESTORATION: "Restoration: donors and newcomers",
    Moment.LOAD: "after a checkpoint was loaded",
    Moment.END: "at the end of the loop",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The digests of one version that belong together: the newest of each rank."""

    moment: Moment
    version: int
    records: tuple[DigestRecord, ...]
    """By rank."""

    @property
    def shards(self) -> dict[int, list[str]]:
        """What the replicas of each shard have said."""
        said: defaultdict[int, list[str]] = defaultdict(list)
        for record in self.records:
            said[record.shard].append(record.digest)
        return said

    @property
    def different(self) -> list[int]:
        return [shard for shard, said in self.shards.items() if len(set(said)) > 1]

    @property
    def alone(self) -> list[int]:
        """One rank has said something, and nobody else the same or another thing."""
        return [shard for shard, said in self.shards.items() if len(said) == 1]

    @property
    def verdict(self) -> str:
        shards = self.shards
        compared = len(shards) - len(self.alone)
        if self.different:
            return "DIFFERENT" + (f" on shard {_ranges(self.different)}" if len(shards) > 1 else "")
        if not compared:
            return "not compared: one rank alone" + (" of each shard" if len(shards) > 1 else "")
        rest = f" on {compared} of {len(shards)} shards, one rank alone of the others"
        return "equal" + (rest if self.alone else "")


def comparisons(records: Iterable[DigestRecord]) -> list[Comparison]:
    """In the order in which they began. Who has left the loop stays as it is, whatever generation others end in."""
    found: dict[tuple[Moment, int, int], dict[int, DigestRecord]] = {}
    for record in records:
        generation = 0 if record.moment is Moment.END else record.generation
        found.setdefault((record.moment, generation, record.version), {})[record.rank] = record
    return [
        Comparison(moment, version, tuple(said for _, said in sorted(ranks.items())))
        for (moment, _, version), ranks in found.items()
    ]


def verdict(run: Run) -> tuple[str, str]:
    """In a word, and in a line."""
    made = comparisons(run.digests)
    different = [each for each in made if each.different]
    compared = [each for each in made if len(each.shards) > len(each.alone)]
    if different:
        steps = ", ".join(str(each.version) for each in different[:4])
        return "DIFFERENT", f"replicas had different digests at step {steps}; see the table"
    if not compared:
        return "–", "no digest of the state was compared"
    return "equal", f"{words.plural(len(compared), 'comparison')} of replicas, the last at step {compared[-1].version}"


def audit_table(run: Run) -> Table | None:
    rows = list(_rows(comparisons(run.digests)))
    head = ["step", "result", "when", "ranks", "digest of the state"]
    return Table("Hash audit: digests of the state", head, rows) if rows else None


def _rows(made: Iterable[Comparison]) -> Iterator[list[str]]:
    for each in made:
        digests = list(dict.fromkeys(record.digest for record in each.records))
        several = f"{len(digests)} of {words.plural(len(each.shards), 'shard')}"
        yield [
            str(each.version),
            each.verdict,
            _NAMES[each.moment],
            _ranges([record.rank for record in each.records]),
            digests[0][:SHOWN] if len(digests) == 1 else several,
        ]


def _ranges(numbers: Iterable[int]) -> str:
    """``0–3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


UNCOMPARED = (
    "Between these moments nothing is compared, because that would cost time in each step. A checkpoint on storage has "
    "a digest for each tensor: they are compared when it is loaded, or with everstep checkpoint verify."
)
"""What a reader must not take for granted."""
