"""What `run` prints while the job runs."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from everstep.cli.screen import LiveScreen, PlainScreen
from everstep.launch.client import FailureRow, Snapshot, parse


@pytest.fixture
def snapshot(status: dict[str, Any]) -> Snapshot:
    return replace(parse(json.dumps(status)), failures=())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(Terminal):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_without_a_terminal_each_change_is_a_line(snapshot: Snapshot) -> None:
    out, err = io.StringIO(), io.StringIO()
    with PlainScreen(out, err) as screen:
        screen.status(None)
        screen.status(snapshot)
        screen.status(replace(snapshot, workers=()))
        screen.status(replace(snapshot, state="STOPPING", failures=(FailureRow(5.0, "rank 2 exited\nin a trace"),)))
        screen.status(replace(snapshot, state="STOPPING", failures=(FailureRow(5.0, "rank 2 exited\nin a trace"),)))
    assert err.getvalue().splitlines() == [
        "everstep: generation 3 RUNNING step 41",
        "everstep: failure: rank 2 exited … in a trace",
        "everstep: generation 3 STOPPING step 41",
    ]
    assert out.getvalue() == ""


def test_what_the_job_writes_to_stdout_stays_apart(snapshot: Snapshot) -> None:
    out, err = io.StringIO(), io.StringIO()
    with PlainScreen(out, err) as screen:
        screen.lines(["[rank 0] loss 0.1", "[rank 1] loss 0.2"], error=False)
        screen.lines(["[rank 0] a warning"], error=True)
        screen.say("starting it again")
    assert out.getvalue() == "[rank 0] loss 0.1\n[rank 1] loss 0.2\n"
    assert err.getvalue() == "[rank 0] a warning\neverstep: starting it again\n"


def test_on_a_terminal_lines_go_above_one_block(snapshot: Snapshot) -> None:
    terminal = Terminal()
    with LiveScreen(terminal) as screen:
        screen.status(None)
        screen.status(snapshot)
        screen.lines(["[rank 0] [bold]loss[/bold] " + "x" * 200], error=False)
        screen.status(replace(snapshot, generation=4))
    text = terminal.getvalue()
    assert "[rank 0] [bold]loss[/bold] " + "x" * 200 in text, "as it was written, and not broken into lines"
    assert text.rindex("loss") < text.rindex("generation")
    assert "generation 4" in text


@pytest.mark.parametrize("stream", [Gone, io.StringIO])
def test_a_terminal_that_is_gone_is_no_reason_to_end(snapshot: Snapshot, stream: type[Terminal]) -> None:
    with LiveScreen(stream()) as live:
        live.status(snapshot)
        live.lines(["a line"], error=False)
        live.say("a word")
    with PlainScreen(stream(), stream()) as plain:
        plain.lines(["a line"], error=False)
        plain.status(snapshot)
