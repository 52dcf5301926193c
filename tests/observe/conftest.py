"""A job of the real core with a clock that the test moves: every event is recorded as the controller does it."""

from __future__ import annotations

from typing import Any

from tests.core.test_machine import Job

from everstep.core.effects import Effect
from everstep.core.events import Event, Restored
from everstep.observe.recorder import Recorder
from everstep.observe.records import Recovery

START_S = 1000.0
SIZE_BYTES = 4096


class RecordedJob(Job):
    """Time passes before each event: as much as ``pace`` says for its type, else nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.now = START_S
        self.pace: dict[type[Event], float] = {}
        self.recorder = Recorder()
        self.records: list[Recovery] = []
        self.story: list[tuple[Event, float]] = []
        super().__init__(*args, **options)

    def tell(self, *events: Event) -> list[Effect]:
        effects: list[Effect] = []
        for event in events:
            if isinstance(event, Restored):
                event = Restored(event.worker, event.generation, event.version, SIZE_BYTES)
            self.now += self.pace.get(type(event), 0.0)
            self.story.append((event, self.now))
            effects = super().tell(event)
            record = self.recorder.take(event, self.machine, effects, self.now)
            if record is not None:
                self.records.append(record)
        return effects

    @property
    def record(self) -> Recovery:
        """The only one."""
        [record] = self.records
        return record
