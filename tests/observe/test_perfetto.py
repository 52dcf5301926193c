"""Perfetto shows what a trace was written for: its trace processor is asked, where there is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from tests import perfetto
from tests.observe.test_trace import BEGIN_S, CAME, DIED, LIVED, PHASES, recovery

from everstep.observe.records import Recovery
from everstep.observe.timeline import Lane
from everstep.observe.trace import render
from everstep.types import Rank, WorkerId


def asked(
    folder: Path, lanes: tuple[Lane, ...], recoveries: tuple[Recovery, ...], *queries: str
) -> list[perfetto.Rows]:
    path = folder / "trace.json"
    path.write_bytes(msgspec.json.encode(render(lanes, PHASES, recoveries)))
    errors, *answers = perfetto.ask(path, perfetto.ERRORS, *queries)
    assert errors == []
    return answers


def test_perfetto_finds_each_track_and_the_arrows_of_a_recovery(tmp_path: Path) -> None:
    tracks, arrows = asked(tmp_path, (LIVED, DIED, CAME), (recovery(),), perfetto.TRACKS, perfetto.ARROWS)
    assert tracks == [
        ["Controller", "job", "4"],
        ["Controller", "recoveries", "1"],
        ["rank 0", "worker 0 on a", "11"],
        ["rank 1", "worker 1 on a", "9"],
        ["rank 1", "worker 2 on b", "3"],  # the last one begins where the trace ends
    ]
    assert arrows == [
        ["BACKWARD", "worker 1 on a", "STOPPING", "job"],
        ["STOPPING", "job", "BUILDING", "worker 2 on b"],
    ]


def test_perfetto_keeps_the_first_two_workers_of_one_rank_apart(tmp_path: Path) -> None:
    first = replace(LIVED, end_s=BEGIN_S + 2, worker=WorkerId(0), rank=Rank(0))
    [tracks] = asked(tmp_path, (first, replace(CAME, worker=WorkerId(1), rank=Rank(0))), (), perfetto.TRACKS)
    assert tracks[1:] == [["rank 0", "worker 0 on a", "11"], ["rank 0", "worker 1 on b", "4"]]
