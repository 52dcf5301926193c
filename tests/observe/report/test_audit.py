"""What the audit says of digests: equal, different, or that nobody was there to compare with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.observe.report.invented import invented

from everstep.observe.digests import DigestRecord
from everstep.observe.report.audit import audit_table, comparisons, verdict
from everstep.observe.report.page import page
from everstep.types import Moment


def said(rank: int, digest: str, shard: int = 0, *, moment: Moment = Moment.LOAD, generation: int = 1) -> DigestRecord:
    return DigestRecord(1_700_000_000.0, moment, generation, 7, rank, 10 * generation + rank, shard, digest)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([said(0, "a"), said(1, "a"), said(2, "a")], "equal"),
        ([said(0, "a"), said(1, "a"), said(2, "b")], "DIFFERENT"),
        ([said(0, "a")], "not compared: one rank alone"),
        ([said(0, "a", 0), said(1, "b", 1)], "not compared: one rank alone of each shard"),
        ([said(0, "a", 0), said(1, "b", 1), said(2, "a", 0), said(3, "b", 1)], "equal"),
        ([said(0, "a", 0), said(1, "b", 1), said(2, "a", 0), said(3, "c", 1)], "DIFFERENT on shard 1"),
        ([said(0, "a", 0), said(1, "b", 1), said(2, "a", 0)], "equal on 1 of 2 shards, one rank alone of the others"),
    ],
)
def test_replicas_of_a_shard_are_compared_with_each_other_only(records: list[DigestRecord], words: str) -> None:
    [made] = comparisons(records)
    assert made.verdict == words


def test_a_version_that_is_restored_again_is_compared_again() -> None:
    again = [said(0, "b", generation=2), said(1, "b", generation=2)]
    assert [made.verdict for made in comparisons([said(0, "a"), said(1, "a"), *again])] == ["equal", "equal"]


def test_those_that_left_the_loop_are_compared_with_a_replacement_that_came_later() -> None:
    first = [said(rank, "a", moment=Moment.END) for rank in (0, 1)]
    [made] = comparisons([*first, said(1, "b", moment=Moment.END, generation=2)])
    assert [record.digest for record in made.records] == ["a", "b"]
    assert made.verdict == "DIFFERENT"


def test_the_report_names_what_was_compared_and_what_was_not() -> None:
    run = replace(invented(), digests=(said(0, "a" * 32), said(1, "a" * 32), said(3, "a" * 32)))
    table = audit_table(run)
    assert table is not None
    assert table.rows == [["7", "equal", "after a checkpoint was loaded", "0–1, 3", "a" * 16]]
    assert verdict(run) == ("equal", "1 comparison of replicas, the last at step 7")
    text = page(run)
    assert "Between these moments nothing is compared" in text
    assert verdict(invented()) == ("–", "no digest of the state was compared")
