"""What an uncaught exception of the script becomes."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

import pytest
from tests.worker.conftest import DEADLINE_S, ENV, StandIn

from everstep.agent.process import ExitStatus
from everstep.agent.spawner import Spawner
from everstep.core.events import Cause
from everstep.wire.messages import Raised
from everstep.worker.trace import place

FAILS = """
    import everstep
    job = everstep.init()
    def train():
        raise ValueError("the loss is \\udcff NaN")
    train()
    """


def test_it_is_shown_and_told_with_its_place(agent: StandIn) -> None:
    worker = agent.run(FAILS)
    code, _, stderr = worker.end()
    raised = worker.hears(Raised)
    assert code == 1
    assert (raised.worker, raised.place) == (worker.id, "train.py:5 ValueError")
    assert raised.traceback == stderr
    assert raised.traceback.startswith("Traceback (most recent call last):\n")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuleError", Cause.RULE),
        ("ConfigError", Cause.RULE),
        ("LostError", Cause.LOST),
        ("ResourceError", Cause.RESOURCE),
        ("StateError", Cause.EXCEPTION),
    ],
)
def test_what_breaks_a_rule_is_told_from_what_may_go_well_next_time(agent: StandIn, error: str, cause: Cause) -> None:
    worker = agent.run(f"""
        import everstep
        everstep.init()
        raise everstep.{error}("no")
        """)
    assert worker.hears(Raised).cause is cause


def test_it_is_told_before_the_process_exits(agent: StandIn) -> None:
    worker = agent.run("""
        import atexit, threading, everstep
        atexit.register(threading.Event().wait)
        everstep.init()
        [][1]
        """)
    assert worker.hears(Raised).place == "train.py:5 IndexError"
    assert worker.process.poll() is None


def test_the_hook_that_the_script_had_is_still_called(agent: StandIn) -> None:
    worker = agent.run("""
        import sys, everstep
        sys.excepthook = lambda kind, error, trace: print("mine", kind.__name__)
        everstep.init()
        {}["key"]
        """)
    assert worker.end() == (1, "mine KeyError\n", "")
    assert worker.hears(Raised).place == "train.py:5 KeyError"


def test_the_place_is_the_users_even_when_a_library_raises(agent: StandIn) -> None:
    worker = agent.run("""
        import json, everstep
        everstep.init()
        json.loads("{")
        """)
    worker.end()
    assert worker.hears(Raised).place == "train.py:4 JSONDecodeError"


def test_the_place_is_the_users_even_when_we_raise(agent: StandIn) -> None:
    worker = agent.run("""
        import everstep
        for step in everstep.init().steps(1):
            step.phase("backward")
        """)
    worker.end()
    assert worker.hears(Raised).place == "train.py:4 RuleError"


@pytest.mark.parametrize("leave", ["sys.exit(3)", "os._exit(3)"])
def test_an_exit_is_no_exception(agent: StandIn, leave: str) -> None:
    worker = agent.run(f"""
        import os, sys, everstep
        everstep.init()
        {leave}
        """)
    assert worker.end()[0] == 3
    assert not [message for message in worker.heard if isinstance(message, Raised)]


def test_a_fork_of_the_script_that_fails_says_nothing_for_it(agent: StandIn) -> None:
    worker = agent.run("""
        import os, everstep
        everstep.init()
        pid = os.fork()
        if pid == 0:
            raise ValueError("in the child")
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """)
    assert worker.end()[:2] == (0, "1\n")
    assert not [message for message in worker.heard if isinstance(message, Raised)]


def test_a_worker_that_was_forked_by_the_zygote_fails_the_same_way(agent: StandIn, tmp_path: Path) -> None:
    """The script runs inside a frame of ours then, which is no part of what the user sees."""
    worker = agent.start("import threading; threading.Event().wait()")  # only its seat is used
    (tmp_path / "forked.py").write_text(textwrap.dedent(FAILS))

    async def run() -> ExitStatus:
        spawner = await Spawner.start(preload=["everstep.worker.job"], env=ENV)
        try:
            with (tmp_path / "err").open("wb") as err:
                out = err.fileno()
                env = agent.environment(worker.reader, worker.ring)
                process = await spawner.spawn(worker.id, ["forked.py"], env=env, cwd=tmp_path, stdout=out, stderr=out)
            await asyncio.get_running_loop().run_in_executor(None, agent.assign, worker)
            async with asyncio.timeout(DEADLINE_S):
                return await process.wait()
        finally:
            await spawner.close()

    assert asyncio.run(run()) == ExitStatus(code=1)
    raised = worker.hears(Raised)
    assert raised.place == "forked.py:5 ValueError"
    assert raised.traceback == (tmp_path / "err").read_text()
    assert raised.traceback.count("  File ") == 2


def test_an_error_without_any_line_is_named() -> None:
    assert place(KeyError()) == "KeyError"
    assert place(SyntaxError("bad", ("/x/train.py", 3, 1, "x"))) == "train.py:3 SyntaxError"
