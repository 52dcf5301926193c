"""An agent with real workers and sockets. Its controller is scripted here, word by word: what the real one makes of
what an agent says is shown by the tests of whole jobs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pytest

from everstep.agent.agent import Agent, AgentConfig
from everstep.agent.shm import ROOT
from everstep.controller.job import Address, RunDir
from everstep.core.effects import Assign, Release, Role
from everstep.core.events import Broken, Cause, Ended, Exited, FenceFailed, Position, Registered, Verdict
from everstep.errors import AuthError, ConfigError
from everstep.types import Generation, NodeId, Rank, Step, WorkerId, WorkerPhase
from everstep.wire.auth import TOKEN_VARIABLE, Token
from everstep.wire.channel import Channel
from everstep.wire.codec import Codec
from everstep.wire.messages import (
    AgentHello,
    AskStacks,
    Beat,
    Bye,
    Deliver,
    Fence,
    FromController,
    Inject,
    Notice,
    Report,
    Sick,
    Stack,
    Start,
    ToController,
    Welcome,
)
from everstep.wire.server import Server, serve
from everstep.wire.terms import Terms

if TYPE_CHECKING:
    from tests.agent.conftest import Run

T = TypeVar("T")
TOKEN = Token("a token for the tests")
NODE = NodeId("n")
W0, W1, W2 = WorkerId(0), WorkerId(1), WorkerId(2)
G = Generation(1)

# What workers import to speak to their agent: their end of the wire, without anything that decides.
PEER = """
import os, signal, sys
from pathlib import Path
from everstep.agent.board import BoardWriter
from everstep.core.effects import *
from everstep.core.events import *
from everstep.types import *
from everstep.wire.auth import find_token
from everstep.wire.blocking import BlockingChannel
from everstep.wire.codec import Codec
from everstep.wire.messages import *
from everstep.wire.terms import Terms

me = WorkerId(int(os.environ["EVERSTEP_WORKER"]))
board = BoardWriter(Path(os.environ["EVERSTEP_BOARD"]))
terms = Terms(Codec(FromWorkerSide), Codec(ToWorkerSide), find_token())
agent = BlockingChannel.connect(Path(os.environ["EVERSTEP_SOCKET"]), terms)
agent.send(WorkerHello(me, os.getpid()))
"""
PRELOAD = ("everstep.agent.board", "everstep.wire.blocking", "everstep.wire.messages")
REGISTER = "from peer import *; agent.send(Report(Registered(me)))\n"


class Controller:
    """Listens, welcomes, and keeps what it hears."""

    def __init__(self, welcome: Welcome) -> None:
        self.welcome = welcome
        self.link: Channel[FromController, ToController] | None = None
        self.visits = 0
        self._heard: asyncio.Queue[ToController] = asyncio.Queue()
        self._server: Server[FromController, ToController] | None = None

    async def open(self, address: tuple[str, int] | None = None) -> tuple[str, int]:
        terms: Terms[FromController, ToController] = Terms(Codec(FromController), Codec(ToController), TOKEN)
        self._server = await serve(address or ("127.0.0.1", 0), terms, self._serve)
        assert not isinstance(self._server.address, Path)
        return self._server.address

    async def close(self) -> None:
        assert self._server is not None
        await self._server.close()

    async def _serve(self, link: Channel[FromController, ToController]) -> None:
        self.link = link
        self.visits += 1
        link.send(self.welcome)
        async for message in link:
            self._heard.put_nowait(message)

    def say(self, *messages: FromController) -> None:
        assert self.link is not None
        for message in messages:
            self.link.send(message)

    def cut(self) -> None:
        assert self.link is not None
        self.link.close("cut")

    def heard_of(self, kind: type[object]) -> bool:
        """Without waiting."""
        return any(isinstance(self._heard.get_nowait(), kind) for _ in range(self._heard.qsize()))

    async def hear(self, kind: type[T], when: Callable[[T], bool] = lambda _: True) -> T:
        """The next one of this kind; what comes before is not of interest."""
        while not (isinstance(message := await self._heard.get(), kind) and when(message)):
            pass
        return message

    async def exit_of(self, worker: WorkerId) -> Exited:
        notice = await self.hear(Notice, lambda notice: getattr(notice.event, "worker", None) == worker)
        assert isinstance(notice.event, Exited), notice
        return notice.event

    async def registered(self, worker: WorkerId) -> None:
        await self.hear(Report, lambda report: report.event == Registered(worker))

    async def until_stamped(self, worker: WorkerId, phase: WorkerPhase) -> int:
        """The moves of its board, once it is there."""
        while True:
            beat = await self.hear(Beat)
            for seen in beat.sightings:
                if seen.worker == worker and seen.phase is phase:
                    return seen.moves


@dataclass
class Scene:
    """A node and its controller."""

    controller: Controller
    config: AgentConfig
    hello: AgentHello
    folder: Path
    lines: list[str] = field(default_factory=list)

    def script(self, text: str) -> None:
        """What workers that are started from now on run."""
        (self.folder / "train.py").write_text(text)

    def start(self, *workers: WorkerId, rank: int | None = None, device: str = "") -> None:
        for worker in workers:
            self.controller.say(Start(worker, None if rank is None else Rank(rank), device))

    async def output(self, line: str) -> None:
        await soon(lambda: line in self.lines)


@pytest.fixture
def welcome(tmp_path: Path) -> Welcome:
    (tmp_path / "peer.py").write_text(PEER)
    return Welcome(
        job=f"test-{os.getpid()}-{tmp_path.name}",
        argv=("train.py", "--lr", "3"),
        cwd=str(tmp_path),
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "USER_SETTING": "1"},
        run_dir=str(tmp_path / "run"),
        preload=PRELOAD,
        zygote=True,
        ranks=4,
        local_world_size=2,
        lease_s=10.0,
        fence_s=10.0,
        master_port=4711,
    )


@asynccontextmanager
async def node(welcome: Welcome, **settings: Any) -> AsyncIterator[Scene]:
    """An agent of its own, in this process; it leaves nothing behind when its controller says good-bye."""
    controller = Controller(welcome)
    config = AgentConfig(NODE, await controller.open(), devices="a,b", token=TOKEN)
    lines: list[str] = []
    task = asyncio.create_task(Agent(replace(config, **settings), lines.append).run())
    try:
        hello = await first_of(task, controller.hear(AgentHello))
        yield Scene(controller, config, hello, Path(welcome.cwd), lines)
        controller.say(Bye(7, "the test is over"))
        assert await task == 7
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await controller.close()
    assert psutil.Process().children(recursive=True) == []
    assert not shared(welcome).exists()


async def first_of(agent: asyncio.Task[int], work: Coroutine[Any, Any, T]) -> T:
    """What it comes to, or why the agent ended before."""
    task = asyncio.create_task(work)
    await asyncio.wait({agent, task}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        raise AssertionError(f"the agent ended with {agent.result()}")
    return task.result()


async def soon(condition: Callable[[], object]) -> None:
    """What the agent does is not told to this test. The deadline is that of `run`."""
    while True:
        if condition():
            return
        await asyncio.sleep(0.005)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def shared(welcome: Welcome) -> Path:
    return ROOT / f"everstep-{welcome.job}-{NODE}"


def scene_of(play: Callable[[Scene], Coroutine[Any, Any, None]], welcome: Welcome, **settings: Any) -> Any:
    async def act() -> None:
        async with node(welcome, **settings) as scene:
            await play(scene)

    return act()


# ── starting ─────────────────────────────────────────────────────────────────────────────────────────────


def test_it_says_who_it_is_and_what_it_has(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        assert (scene.hello.node, scene.hello.pid, scene.hello.devices) == (NODE, os.getpid(), ("a", "b"))
        assert scene.hello.workers == ()

    run(scene_of(play, welcome))


def test_a_worker_finds_its_place_in_its_environment(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("import json, os, sys; json.dump([sys.argv, dict(os.environ)], open('seen', 'w'))")
        scene.start(W0, rank=3, device="b")
        assert (await scene.controller.exit_of(W0)).code == 0
        argv, env = json.loads((scene.folder / "seen").read_text())
        assert argv == list(welcome.argv)
        assert env.items() >= welcome.env.items()
        assert env.items() >= {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "4711",
            "OMP_NUM_THREADS": "1",
            "EVERSTEP_WORKER": "0",
            "EVERSTEP_NODE": "n",
            "EVERSTEP_RUN_DIR": welcome.run_dir,
            "EVERSTEP_TOKEN": TOKEN.text,
        }.items()  # fmt: skip

    run(scene_of(play, welcome))


def test_threads_of_the_user_stay_as_many_as_he_said(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("import os; print(os.environ['OMP_NUM_THREADS'], 'RANK' in os.environ)")
        scene.start(W0)
        await scene.controller.exit_of(W0)
        assert scene.lines == ["[standby 0] 8 False"]

    run(scene_of(play, replace(welcome, env=welcome.env | {"OMP_NUM_THREADS": "8"})))


def test_an_order_to_start_that_comes_again_changes_nothing(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("print('once')")
        scene.start(W0, W0)
        await scene.controller.exit_of(W0)
        scene.start(W0, W1)
        assert (await scene.controller.exit_of(W0)).evidence == "ended while the controller was away"
        await scene.controller.exit_of(W1)
        assert scene.lines == ["[standby 0] once", "[standby 1] once"]

    run(scene_of(play, welcome))


def test_a_worker_that_cannot_be_started_has_exited_with_the_reason(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.start(W0)
        end = await scene.controller.exit_of(W0)
        assert (end.code, end.place) == (1, "its start")
        assert "ModuleNotFoundError: No module named 'nowhere'" in end.evidence

    run(scene_of(play, replace(welcome, preload=("nowhere",))))


def test_a_device_has_one_user_at_a_time(run: Run, welcome: Welcome) -> None:
    """Whatever order the controller gives in between: the next user starts when the former is dead."""

    async def play(scene: Scene) -> None:
        scene.script(
            "import os, signal\n"
            "if os.path.exists('user'): print(os.path.exists('/proc/' + open('user').read()))\n"
            "else: open('user', 'w').write(str(os.getpid())); print('first', flush=True); signal.pause()"
        )
        scene.start(W0, rank=0, device="a")
        await scene.output("[rank 0] first")
        scene.controller.say(Fence(W0))
        scene.start(W1, rank=0, device="a")
        await scene.output("[rank 0] False")

    run(scene_of(play, welcome))


# ── how a worker ends ────────────────────────────────────────────────────────────────────────────────────


def test_an_exception_is_told_with_its_traceback_and_its_place(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("import json\ndef f():\n    json.loads('{')\nf()\n")
        scene.start(W0, rank=0, device="a")
        end = await scene.controller.exit_of(W0)
        assert (end.code, end.place) == (1, "train.py:3 JSONDecodeError")
        assert end.evidence.startswith("exited with code 1 in SPAWNED:\nTraceback (most recent call last):")
        assert "JSONDecodeError: Expecting property name" in end.evidence

    run(scene_of(play, welcome))


EXITS = (
    ("raise SystemExit(3)", 3, "exited with code 3"),
    ("import os; os.abort()", -signal.SIGABRT, "killed by SIGABRT"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ("if", 1, "train.py:2 SyntaxError"),
    ("pass", 0, ""),
)


def test_an_exit_is_told_as_it_was(run: Run, welcome: Welcome) -> None:
    """A place is where the script is to blame: there it would fail again. A kill comes from outside."""

    async def play(scene: Scene) -> None:
        for worker, (script, code, place) in enumerate(EXITS):
            scene.script(f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n{script}")
            scene.start(WorkerId(worker))
            end = await scene.controller.exit_of(WorkerId(worker))
            assert (end.code, end.place, end.moved) == (code, place, False)

    run(scene_of(play, welcome))


def test_an_exit_says_where_the_worker_was(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("from peer import *; board.stamp(WorkerPhase.BACKWARD, step=5, version=5); os._exit(9)")
        scene.start(W0, rank=0, device="a")
        end = await scene.controller.exit_of(W0)
        assert end.where == Position(WorkerPhase.BACKWARD, Step(5))
        assert end.evidence.startswith("exited with code 9 in BACKWARD of step 5")

    run(scene_of(play, welcome))


def test_what_a_worker_raised_is_a_verdict_before_it_is_an_exit(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("from peer import *; agent.send(Raised(me, 'the whole story', 'train.py:12 ValueError')); exit(1)")
        scene.start(W0, rank=0, device="a")
        verdict = (await scene.controller.hear(Notice)).event
        assert isinstance(verdict, Verdict)
        assert (verdict.cause, verdict.evidence) == (Cause.EXCEPTION, "the whole story")
        end = await scene.controller.exit_of(W0)
        assert (end.code, end.place) == (1, "train.py:12 ValueError")
        assert end.evidence.endswith("the whole story")

    run(scene_of(play, welcome))


def test_the_last_words_of_a_worker_come_before_its_exit(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(
            "from peer import *\n"
            "for step in range(2000): agent.send(Report(Ended(me, Generation(0), Step(step))))\n"
            "os._exit(0)"
        )
        scene.start(W0, rank=0, device="a")
        for step in range(2000):
            message = await scene.controller.hear(Report | Notice)  # type: ignore[arg-type]  # isinstance knows unions
            assert message == Report(Ended(W0, Generation(0), Step(step)))
        await scene.controller.exit_of(W0)

    run(scene_of(play, welcome))


def test_a_dead_zygote_takes_its_workers_along_and_another_one_starts_the_next(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("print('up', flush=True); import signal; signal.pause()")
        scene.start(W0)
        await scene.output("[standby 0] up")
        zygote_of_agent().kill()
        assert (await scene.controller.exit_of(W0)).code < 0
        scene.start(W1)
        await scene.output("[standby 1] up")

    run(scene_of(play, welcome))


def zygote_of_agent() -> psutil.Process:
    [zygote] = psutil.Process().children()
    return zygote


# ── fences ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fence_kills_and_says_whether_the_worker_had_moved_on(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(REGISTER + "board.stamp(WorkerPhase.FORWARD, step=1); signal.pause()")
        for worker, moved in ((W0, False), (W1, True)):
            scene.start(worker, rank=0, device="a")
            moves = await scene.controller.until_stamped(worker, WorkerPhase.FORWARD)
            scene.controller.say(Fence(worker, moves - moved))
            end = await scene.controller.exit_of(worker)
            assert (end.code, end.moved, end.place) == (-signal.SIGKILL, moved, "")

    run(scene_of(play, welcome))


def test_a_worker_is_fenced_with_its_children_also_while_it_is_stopped(
    run: Run, welcome: Welcome, running: Callable[[int], bool]
) -> None:
    async def play(scene: Scene) -> None:
        scene.script(
            "import os, signal\n"
            "if os.fork() == 0: print(os.getpid(), flush=True); signal.pause()\n"
            "os.kill(os.getpid(), signal.SIGSTOP)"
        )
        scene.start(W0)
        await soon(lambda: scene.lines)
        scene.controller.say(Fence(W0))
        assert (await scene.controller.exit_of(W0)).code == -signal.SIGKILL
        await soon(lambda: not running(int(scene.lines[0].split()[-1])))

    run(scene_of(play, welcome))


def test_who_waits_for_the_zygote_is_fenced_at_once(run: Run, welcome: Welcome) -> None:
    """It may import for minutes: no reason to take the device for lost, nor to hold up the end."""
    (Path(welcome.cwd) / "endless.py").write_text("import signal; signal.pause()")

    async def play(scene: Scene) -> None:
        scene.start(W0, rank=0, device="a")
        scene.controller.say(Fence(W0))
        end = await scene.controller.exit_of(W0)
        assert (end.code, end.evidence) == (-signal.SIGKILL, "was fenced before it was started")

    env = welcome.env | {"PYTHONPATH": welcome.cwd}
    run(scene_of(play, replace(welcome, env=env, preload=("endless",))))


def test_who_does_not_run_is_fenced_already(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.controller.say(Fence(W2))
        end = await scene.controller.exit_of(W2)
        assert (end.code, end.evidence) == (-signal.SIGKILL, "was not running")

    run(scene_of(play, welcome))


def test_a_fence_that_takes_too_long_has_failed(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("print('up', flush=True); import signal; signal.pause()")
        scene.start(W0)
        await scene.output("[standby 0] up")
        zygote = zygote_of_agent()
        zygote.suspend()  # so nobody says that the process is gone
        try:
            scene.controller.say(Fence(W0))
            assert (await scene.controller.hear(Notice)).event == FenceFailed(W0)
        finally:
            zygote.resume()
        await scene.controller.exit_of(W0)

    run(scene_of(play, replace(welcome, fence_s=0.01)))


# ── commands and looks ───────────────────────────────────────────────────────────────────────────────────


def test_a_standby_that_gets_a_rank_gets_its_environment_and_its_name(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(
            REGISTER + "order = agent.recv(10)\n"
            "print(order.command.rank, order.env['LOCAL_RANK'], order.env['WORLD_SIZE'], flush=True)\n"
            "print(type(agent.recv(10).command).__name__)"
        )
        scene.start(W0)
        await scene.controller.registered(W0)
        scene.controller.say(Deliver((W0,), Assign(Rank(2), 4, G, Role.JOINER, "b")))
        scene.controller.say(Deliver((W0, W1), Release(G)))
        await scene.controller.exit_of(W0)
        assert scene.lines == ["[rank 2] 2 1 4", "[rank 2] Release"]
        assert names(Path(welcome.run_dir, "logs")) == ["w0-r2.log"]

    run(scene_of(play, welcome))


def test_stacks_are_asked_for_and_handed_on(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(REGISTER + "agent.recv(10); agent.send(Stack(me, 'all of them'))")
        scene.start(W0)
        await scene.controller.registered(W0)
        scene.controller.say(AskStacks((W0, W1)))
        assert await scene.controller.hear(Stack) == Stack(W0, "all of them")

    run(scene_of(play, welcome))


def test_heartbeats_come_without_workers_and_name_all_that_there_are(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        assert (await scene.controller.hear(Beat)).sightings == ()
        scene.script("print('up', flush=True)\nwhile True: pass")
        scene.start(W0, rank=1, device="a")
        scene.start(W1)
        beat = await scene.controller.hear(Beat, lambda beat: len(beat.sightings) == 2)
        beat = await scene.controller.hear(Beat, lambda beat: all(seen.cpu_s > 0 for seen in beat.sightings))
        assert {(seen.worker, seen.rank, seen.pulse) for seen in beat.sightings} == {(W0, 1, 0), (W1, None, 0)}

    run(scene_of(play, welcome))


def test_a_worker_that_stands_still_is_seen_to_do_so(run: Run, welcome: Welcome) -> None:
    """The board is read without asking the process, so also while it is stopped."""

    async def play(scene: Scene) -> None:
        scene.script(REGISTER + "board.beat(); board.stamp(WorkerPhase.FORWARD, version=3); os.kill(os.getpid(), 19)")
        scene.start(W0, rank=0, device="a")
        await scene.controller.until_stamped(W0, WorkerPhase.FORWARD)
        looks = [(await scene.controller.hear(Beat)).sightings[0] for _ in range(4)]
        assert {(seen.pulse, seen.moves, seen.version, seen.rank) for seen in looks} == {(1, 1, 3, 0)}
        assert [seen.moved_ago_s for seen in looks] == sorted({seen.moved_ago_s for seen in looks})

    run(scene_of(play, welcome))


# ── the way to the controller ────────────────────────────────────────────────────────────────────────────

WAIT = REGISTER + "agent.send(Report(Broken(me, Generation(1)))); signal.pause()"


def test_it_comes_back_with_its_workers_and_their_newest_reports(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        controller = scene.controller
        scene.script(WAIT)
        scene.start(W0, W1)
        for _ in (W0, W1):
            await controller.hear(Report, lambda report: isinstance(report.event, Broken))
        controller.cut()
        assert sorted((await controller.hear(AgentHello)).workers) == [W0, W1]
        again = [(await controller.hear(Report)).event for _ in (W0, W1)]
        assert sorted(again, key=lambda event: event.worker) == [Broken(W0, G), Broken(W1, G)]
        controller.say(Fence(W0), Fence(W1))
        await controller.exit_of(W0)

    run(scene_of(play, welcome))


def test_who_ended_while_the_controller_was_away_is_not_in_the_hello(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("import os, signal; print(os.getpid(), flush=True); signal.pause()")
        scene.start(W0, W1)
        await soon(lambda: len(scene.lines) == 2)
        [pid] = [int(line.split()[-1]) for line in scene.lines if "standby 0" in line]
        await scene.controller.close()
        os.kill(pid, signal.SIGKILL)
        await soon(lambda: not shared(welcome).joinpath("board-0").exists())
        await scene.controller.open(scene.config.controller)
        assert (await scene.controller.hear(AgentHello)).workers == (W1,)

    run(scene_of(play, welcome))


def test_a_controller_that_comes_back_elsewhere_is_found_in_the_run_directory(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        await scene.controller.close()
        host, port = await scene.controller.open()
        RunDir(scene.folder).publish(Address(host, port, os.getpid()))
        await scene.controller.hear(AgentHello)

    run(scene_of(play, welcome, run_dir=Path(welcome.cwd)))


def test_away_for_longer_than_its_lease_it_ends_its_workers(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("print('up', flush=True); import signal; signal.pause()")
        scene.start(W0)
        await scene.output("[standby 0] up")
        await scene.controller.close()
        await soon(lambda: not shared(welcome).joinpath("board-0").exists())
        await scene.controller.open(scene.config.controller)
        assert (await scene.controller.hear(AgentHello)).workers == ()
        scene.start(W1)
        await scene.output("[standby 1] up")

    run(scene_of(play, replace(welcome, lease_s=0.05)))


def test_a_stranger_is_not_obeyed(run: Run, welcome: Welcome) -> None:
    with pytest.raises(AuthError, match="wrong token"):
        run(scene_of(nothing, welcome, token=Token("not the token of the job")))


def test_without_a_controller_it_gives_up_in_the_end(run: Run, tmp_path: Path) -> None:
    config = AgentConfig(NODE, ("127.0.0.1", 1), devices="1", patience_s=0.05)
    with pytest.raises(ConfigError, match=r"no controller at 127\.0\.0\.1:1 .* Connect call failed"):
        run(agent_alone(config))


async def agent_alone(config: AgentConfig) -> int:
    return await Agent(config, lambda line: None).run()


async def nothing(scene: Scene) -> None:
    pass


# ── devices and chaos ────────────────────────────────────────────────────────────────────────────────────


def test_a_sick_device_is_told_once_and_is_not_offered_again(run: Run, welcome: Welcome, tmp_path: Path) -> None:
    for name in ("x:0", "x:1"):
        (tmp_path / f"{name}.json").write_text('{"healthy": true}')

    async def play(scene: Scene) -> None:
        assert scene.hello.devices == ("x:0", "x:1")
        (tmp_path / "x:1.json").write_text('{"healthy": false, "evidence": "Xid 79"}')
        assert await scene.controller.hear(Sick) == Sick("x:1", "Xid 79")
        scene.controller.cut()
        assert (await scene.controller.hear(AgentHello)).devices == ("x:0",)
        assert await scene.controller.hear(Sick) == Sick("x:1", "Xid 79")

    run(scene_of(play, welcome, devices=f"file:{tmp_path}"))


def test_chaos_signals_a_worker_that_has_no_code_of_ours(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("print('up', flush=True); import signal; signal.pause()")
        scene.start(W0, rank=0, device="a")
        await scene.output("[rank 0] up")
        scene.controller.say(Inject("nonsense"), Inject("kill rank=1"), Inject("kill rank=0"))
        end = await scene.controller.exit_of(W0)
        assert (end.code, end.evidence) == (-signal.SIGKILL, "killed by SIGKILL in SPAWNED")

    run(scene_of(play, welcome))


def test_chaos_that_has_a_place_goes_to_the_worker(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script(REGISTER + "print(agent.recv(10).spec)")
        scene.start(W0, rank=0, device="a")
        await scene.controller.registered(W0)
        scene.controller.say(Inject("kill rank=0 step=7 phase=forward"))
        await scene.output("[rank 0] kill rank=0 step=7 phase=forward")

    run(scene_of(play, welcome))


def test_a_partition_cuts_the_link_for_as_long_as_it_says(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        start = asyncio.get_running_loop().time()
        scene.controller.say(Inject("partition node=other for=9"), Inject("partition node=n for=0.2"))
        await scene.controller.hear(AgentHello)
        assert asyncio.get_running_loop().time() - start >= 0.2

    run(scene_of(play, welcome))


def test_chaos_of_the_job_strikes_once_though_the_agent_starts_anew(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        await scene.controller.hear(AgentHello)
        assert names(Path(welcome.run_dir, "chaos")) == ["1-1"]
        await scene.controller.hear(Beat)

    async def twice() -> None:
        chaos = replace(welcome, chaos=("kill step=3", "partition node=n for=0.05 delay=0.01"))
        await scene_of(play, chaos)
        async with node(chaos) as scene:
            for _ in range(3):
                await scene.controller.hear(Beat)
            assert scene.controller.visits == 1

    run(twice())


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_however_an_agent_ends_nothing_of_it_is_left(
    run: Run, welcome: Welcome, running: Callable[[int], bool], number: signal.Signals
) -> None:
    async def play() -> None:
        controller = Controller(welcome)
        host, port = await controller.open()
        (Path(welcome.cwd) / "train.py").write_text("print('up', flush=True); import signal; signal.pause()")
        agent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "everstep.agent", "--controller", f"{host}:{port}", "--node", NODE),
            *("--devices", "2"),
            env=os.environ | {TOKEN_VARIABLE: TOKEN.text},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            await controller.hear(AgentHello)
            controller.say(Start(W0, Rank(0), "cpu:0"), Start(W1, None, ""))
            assert agent.stdout is not None
            assert {await agent.stdout.readline() for _ in range(2)} == {b"[rank 0] up\n", b"[standby 1] up\n"}
            family = [process.pid for process in psutil.Process(agent.pid).children(recursive=True)]
            assert len(family) == 3
            agent.send_signal(number)
            assert await agent.wait() == (-number if number == signal.SIGKILL else 128 + number)
            await soon(lambda: not any(map(running, family)) and not shared(welcome).exists())
            assert not controller.heard_of(Notice)
        finally:
            if agent.returncode is None:
                agent.kill()
            await controller.close()

    run(play())


def test_a_good_bye_ends_workers_that_hang(run: Run, welcome: Welcome) -> None:
    async def play(scene: Scene) -> None:
        scene.script("import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()")
        scene.start(W0, W1, W2)
        for worker in (W0, W1, W2):
            await scene.output(f"[standby {worker}] up")

    run(scene_of(play, welcome))
