"""Workers are started, killed and accounted for, each end exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everstep.agent.process import ExitStatus
from everstep.agent.spawner import Spawner
from everstep.errors import SpawnError
from everstep.types import WorkerId

if TYPE_CHECKING:
    from tests.agent.conftest import Run, Stage, Until

# Has a child in its own group, says so, and then does what a test wants.
FAMILY = """
import os, signal
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
# then
"""


def first_line(path: Path, until: Until) -> str:
    """What a worker writes there first, as soon as it is a whole line."""
    until(lambda: path.read_text().endswith("\n"))
    return path.read_text()


@pytest.fixture
def torch_spawner(run: Run) -> Iterator[Spawner]:
    spawner = run(Spawner.start())
    yield spawner
    run(spawner.close())


@pytest.fixture
def light(run: Run) -> Iterator[Spawner]:
    spawner = run(Spawner.start(preload=()))
    yield spawner
    run(spawner.close())


@pytest.fixture
def null() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_WRONLY)
    yield fd
    os.close(fd)


def test_a_fork_with_torch_is_usable_at_once(
    torch_spawner: Spawner, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(
        "import time; start_ns = time.monotonic_ns()\n"
        "import torch, torch.distributed as dist\n"
        "x = torch.randn(300, 300, requires_grad=True); (x @ x).sum().backward()\n"
        "store = dist.HashStore(); dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "dist.all_reduce(x.grad); dist.destroy_process_group(); print(start_ns)\n"
    )

    async def start_one() -> int:
        with (tmp_path / "out").open("w") as out:
            process = await torch_spawner.spawn(
                WorkerId(0), ["train.py"], env={}, cwd=tmp_path, stdout=out.fileno(), stderr=out.fileno()
            )
        assert await process.wait() == ExitStatus(code=0), (tmp_path / "out").read_text()
        return int((tmp_path / "out").read_text())

    assert len(torch_spawner.threads) == 1
    asked_ns = time.monotonic_ns()
    user_code_ns = run(start_one())
    with capsys.disabled():
        print(f"  fork to user code: {(user_code_ns - asked_ns) / 1e6:.1f} ms")  # noqa: T201


def test_each_of_fifty_quick_exits_is_told_once(stage: Stage, run: Run, tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text("import os, sys; os._exit(int(sys.argv[1]))")
    told: list[tuple[int, ExitStatus]] = []

    async def fifty() -> None:
        processes = await asyncio.gather(*(stage.spawn(tmp_path, "quick.py", str(code)) for code in range(50)))
        for code, (process, _, _) in enumerate(processes):
            process.on_exit(lambda status, code=code: told.append((code, status)))  # type: ignore[misc]
        await asyncio.gather(*(process.wait() for process, _, _ in processes))

    run(fifty())
    assert sorted(told, key=lambda entry: entry[0]) == [(code, ExitStatus(code=code)) for code in range(50)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_reported_as_the_end(
    stage: Stage, run: Run, tmp_path: Path, until: Until, number: signal.Signals
) -> None:
    (tmp_path / "wait.py").write_text(
        "import resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); print('up', flush=True)\n"
        "while True: signal.pause()"
    )
    process, stdout, _ = run(stage.spawn(tmp_path, "wait.py"))
    first_line(stdout, until)
    assert process.send_signal(number)
    status = run(process.wait())
    assert status == ExitStatus(signal=number)
    assert str(status) == f"killed by {number.name}"
    assert not process.send_signal(number)  # its pid may be another's by now


@pytest.mark.parametrize("how", ["kill", "stop and kill", "exit"])
def test_the_children_in_its_group_end_with_a_worker(
    stage: Stage, run: Run, tmp_path: Path, until: Until, running: Callable[[int], bool], how: str
) -> None:
    (tmp_path / "family.py").write_text(FAMILY.replace("# then", "" if how == "exit" else "signal.pause()"))
    process, stdout, _ = run(stage.spawn(tmp_path, "family.py"))
    child = int(first_line(stdout, until))
    if how == "stop and kill":
        process.send_signal(signal.SIGSTOP)
    if how != "exit":
        process.kill()
    assert run(process.wait()) == (ExitStatus(code=0) if how == "exit" else ExitStatus(signal=signal.SIGKILL))
    until(lambda: not running(child))


def test_closing_the_spawner_kills_and_reports_its_workers(run: Run, tmp_path: Path, null: int) -> None:
    (tmp_path / "wait.py").write_text("import signal; signal.pause()")

    async def close() -> list[ExitStatus | None]:
        spawner = await Spawner.start(preload=())
        processes = [
            await spawner.spawn(WorkerId(n), ["wait.py"], env={}, cwd=tmp_path, stdout=null, stderr=null)
            for n in range(3)
        ]
        await spawner.close()
        await spawner.close()
        assert not spawner.lost.done()
        with pytest.raises(SpawnError, match="has ended"):
            await spawner.spawn(WorkerId(3), ["wait.py"], env={}, cwd=tmp_path, stdout=null, stderr=null)
        return [process.status for process in processes]

    assert run(close()) == [ExitStatus(signal=signal.SIGKILL)] * 3


@pytest.mark.parametrize("fresh", [False, True])
def test_a_killed_zygote_is_reported_and_its_workers_and_their_children_end(
    run: Run, tmp_path: Path, until: Until, running: Callable[[int], bool], fresh: bool
) -> None:
    (tmp_path / "family.py").write_text(FAMILY.replace("# then", "signal.pause()"))
    spawner = run(Spawner.start(preload=(), fresh=fresh))
    processes, children = [], []
    for n in range(3):
        with (tmp_path / f"{n}.out").open("w") as out:
            fd = out.fileno()
            spawning = spawner.spawn(WorkerId(n), ["family.py"], env={}, cwd=tmp_path, stdout=fd, stderr=fd)
            processes.append(run(spawning))
        children.append(int(first_line(tmp_path / f"{n}.out", until)))

    os.kill(spawner.zygote_pid, signal.SIGKILL)

    assert str(run(spawner.lost)) == "the zygote has ended (killed by SIGKILL); the workers that it started die with it"
    assert [str(run(process.wait())) for process in processes] == ["ended, nobody saw how"] * 3
    until(lambda: not any(map(running, [*children, *(process.pid for process in processes)])))
    run(spawner.close())


def test_a_preload_that_fails_is_an_error_with_its_traceback(run: Run) -> None:
    with pytest.raises(SpawnError, match=r"(?s)could not import.*No module named 'no_such_module'"):
        run(Spawner.start(preload=("no_such_module",)))


def test_a_preload_that_starts_a_thread_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )

    async def threads() -> tuple[str, ...]:
        spawner = await Spawner.start(preload=("threaded",), env=os.environ | {"PYTHONPATH": str(tmp_path)})
        await spawner.close()
        return spawner.threads

    assert len(run(threads())) == 2


def test_what_a_preload_prints_is_not_printed_by_each_worker(run: Run, tmp_path: Path) -> None:
    (tmp_path / "banner.py").write_text("print('welcome')")
    env = {"PYTHONPATH": str(tmp_path)}  # and no PYTHONUNBUFFERED

    async def output() -> str:
        spawner = await Spawner.start(preload=("banner",), env=env)
        with (tmp_path / "out").open("w") as out:
            process = await spawner.spawn(
                WorkerId(0), ["banner.py"], env=env, cwd=tmp_path, stdout=out.fileno(), stderr=out.fileno()
            )
        await process.wait()
        await spawner.close()
        return (tmp_path / "out").read_text()

    assert run(output()) == "welcome\n"


def test_a_preload_does_not_come_from_the_working_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plistlib.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    run(run(Spawner.start(preload=("plistlib",))).close())


def test_a_spawn_that_is_given_up_leaves_no_process(
    light: Spawner, run: Run, tmp_path: Path, null: int, until: Until
) -> None:
    (tmp_path / "wait.py").write_text("import signal; signal.pause()")

    async def give_up() -> None:
        spawning = asyncio.ensure_future(
            light.spawn(WorkerId(0), ["wait.py"], env={}, cwd=tmp_path, stdout=null, stderr=null)
        )
        await asyncio.sleep(0)  # the request is sent
        spawning.cancel()
        await asyncio.gather(spawning, return_exceptions=True)
        # The next one's answer comes after the first one's.
        process = await light.spawn(WorkerId(1), ["wait.py"], env={}, cwd=tmp_path, stdout=null, stderr=null)
        process.kill()
        await process.wait()

    run(give_up())
    children = Path(f"/proc/{light.zygote_pid}/task/{light.zygote_pid}/children")
    until(lambda: not children.read_text().split())
