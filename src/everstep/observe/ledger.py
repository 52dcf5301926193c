"""The records of a run, read as they are written: the newest ones, and all of them counted.

It reads the files and not the parts that write them, so a page that is late, or a controller that was started again,
knows the same.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import fields
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from everstep.observe.checkpoints import CheckpointRecord, Fate
from everstep.observe.records import Decision, Outcome, Recovery
from everstep.observe.tally import RECOVERY_BOUNDS_S, Tally

log = logging.getLogger(__name__)

KEPT = 500
"""Records of each kind in memory."""

STAGES = tuple(
    field.name[2:-2] for field in fields(Recovery) if field.name.startswith("t_") and "total" not in field.name
)
"""Of a recovery. All but the script, which runs while the survivors settle, add up to its time."""

T = TypeVar("T")


class Tail(Generic[T]):
    """The lines of a file that only grows, each once."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._at = 0

    def read(self) -> list[T]:
        """Those that have come since the last time. One that is still being written comes later."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        records = []
        for line in whole.splitlines():
            try:
                records.append(self._decoder.decode(line))
            except msgspec.DecodeError as error:
                log.warning("%s has a line near byte %d that is no record: %s", self._path, self._at, error)
        self._at += len(whole)
        return records


class Ledger:
    """Of one run. Counts are over all of it."""

    def __init__(self, recoveries: Path, checkpoints: Path) -> None:
        self.recoveries: deque[Recovery] = deque(maxlen=KEPT)
        """The newest, oldest first."""
        self.checkpoints: deque[CheckpointRecord] = deque(maxlen=KEPT)
        self.last_committed: CheckpointRecord | None = None
        self.outcomes: Counter[tuple[str, Decision | None, Outcome]] = Counter()
        """Recoveries by cause, decision and outcome."""
        self.false_alarms = 0
        self.steps_redone = 0
        self.restored_bytes = 0
        self.recovery_s = Tally(RECOVERY_BOUNDS_S)
        """Of recoveries after which the job went on."""
        self.stages_s = {stage: Tally(RECOVERY_BOUNDS_S) for stage in STAGES}
        self.fates: Counter[Fate] = Counter()
        self.k0_s = Tally(RECOVERY_BOUNDS_S)
        self.k1_s = Tally(RECOVERY_BOUNDS_S)
        self._recoveries = Tail(recoveries, Recovery)
        self._checkpoints = Tail(checkpoints, CheckpointRecord)

    @property
    def counts(self) -> tuple[int, int]:
        """Recoveries and checkpoints so far."""
        return self.outcomes.total(), self.fates.total()

    def refresh(self) -> None:
        """Take in what is new in the files."""
        for recovery in self._recoveries.read():
            self._take_recovery(recovery)
        for checkpoint in self._checkpoints.read():
            self._take_checkpoint(checkpoint)

    def _take_recovery(self, recovery: Recovery) -> None:
        self.recoveries.append(recovery)
        self.outcomes[recovery.cause, recovery.decision, recovery.outcome] += 1
        self.false_alarms += sum(failure.false_alarm for failure in recovery.failures)
        self.steps_redone += recovery.steps_redone
        self.restored_bytes += recovery.bytes
        if recovery.outcome in (Outcome.RECOVERED, Outcome.DONE):
            self.recovery_s.add(recovery.t_total_s)
            for stage, tally in self.stages_s.items():
                tally.add(getattr(recovery, f"t_{stage}_s"))

    def _take_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        self.checkpoints.append(checkpoint)
        self.fates[checkpoint.fate] += 1
        if checkpoint.fate is not Fate.SKIPPED:
            self.k0_s.add(checkpoint.k0_s)
        if checkpoint.k1_s is not None:
            self.k1_s.add(checkpoint.k1_s)
        if checkpoint.fate is Fate.COMMITTED:
            self.last_committed = checkpoint
