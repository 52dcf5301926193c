"""The JSON of the live page that is more than the status and the records: docs/api.md describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from everstep.observe.ledger import Ledger
from everstep.observe.records import Recovery, shown

T = TypeVar("T")
Json = dict[str, Any]

_WHO = ("rank", "worker", "pid", "node", "device")
_OF_TIME = ("elapsed_s", "age_s")
"""What changes when nothing happens is no change."""


def change(old: Json, new: Json) -> Json:
    """The fields that are not what they were; if the workers are the same ones, where those are that have moved."""
    changed = {
        key: value for key, value in new.items() if key != "workers" and _lasting(value) != _lasting(old.get(key))
    }
    before, after = old["workers"], new["workers"]
    if [_who(row) for row in before] != [_who(row) for row in after]:
        changed["workers"] = after
    elif moved := [_place(row) for row, former in zip(after, before, strict=True) if _place(row) != _place(former)]:
        changed["moved"] = moved
    return changed


def _lasting(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _lasting(field) for name, field in value.items() if name not in _OF_TIME}


def _who(row: Json) -> list[Any]:
    return [row[name] for name in _WHO]


def _place(row: Json) -> list[Any]:
    return [row["rank"], row["phase"], row["version"]]


def newest(records: Sequence[T], count: int) -> list[T]:
    return list(records)[-count:] if count else []


def recovery(record: Recovery) -> Json:
    """As in its file, and as a sentence."""
    fields = shown(record)
    assert isinstance(fields, dict)
    return {**fields, "sentence": record.sentence}


def recoveries(ledger: Ledger) -> Json:
    ledger.refresh()
    records = [recovery(record) for record in ledger.recoveries]
    return {"total": ledger.counts[0], "recoveries": records}


def checkpoints(ledger: Ledger) -> Json:
    ledger.refresh()
    return {"total": ledger.counts[1], "checkpoints": list(ledger.checkpoints)}
