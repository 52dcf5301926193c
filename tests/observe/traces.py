"""What a trace has to be for Perfetto to show it as it is meant. `tests.perfetto` asks Perfetto where it is."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import msgspec

Event = dict[str, Any]
Track = tuple[int, int]


def check(document: Event) -> list[Event]:
    """The events of a trace that is sound."""
    events: list[Event] = msgspec.json.decode(msgspec.json.encode(document))["traceEvents"]
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    assert all(time >= 0 for time in times)
    slices = _slices(events)
    _all_tracks_have_names(events)
    for track, found in slices.items():
        _nest(track, found)
    _flows_are_whole(events, slices)
    return events


def _slices(events: list[Event]) -> dict[Track, list[Event]]:
    slices: defaultdict[Track, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0, event
            slices[event["pid"], event["tid"]].append(event)
    return slices


def _all_tracks_have_names(events: list[Event]) -> None:
    names = {(event["pid"], event.get("tid")) for event in events if event["ph"] == "M"}
    assert all(pid > 0 and tid != 0 for pid, tid in names), "0 is a name for another thread of the process"
    for event in events:
        assert (event["pid"], event.get("tid")) in names or event["ph"] == "C", event


def _nest(track: Track, slices: list[Event]) -> None:
    """Each begins where the one around it has begun, and ends before that ends. Times are told to a nanosecond."""
    open_ends: list[float] = []
    for event in slices:
        begin, end = event["ts"], event["ts"] + event["dur"]
        while open_ends and open_ends[-1] <= begin + 2e-3:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + 2e-3, (track, event)
        open_ends.append(end)


def _flows_are_whole(events: list[Event], slices: dict[Track, list[Event]]) -> None:
    flows: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    for flow in flows.values():
        assert [event["ph"] for event in flow] == ["s", "t", "f"]
        assert all(first["ts"] <= second["ts"] for first, second in itertools.pairwise(flow))
        for event in flow:
            around = slices[event["pid"], event["tid"]]
            assert any(each["ts"] <= event["ts"] <= each["ts"] + each["dur"] for each in around), event
