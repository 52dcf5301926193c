"""A worker is what `python argv…` would have been: same output, same traceback, same exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everstep.agent.process import ExitStatus

if TYPE_CHECKING:
    from tests.agent.conftest import Stage

FACTS = """
import gc, os, signal, sys, threading
print(__name__, __file__, __spec__ and (__spec__.name, __spec__.origin), __doc__)
print(type(__loader__), __builtins__, sorted(globals()), sys.modules["__main__"].__dict__ is globals())
print(sys.argv, sys.path, sys.orig_argv[1:], sys.flags, sys.warnoptions, repr(sys.stdin.read()))
print(os.getcwd(), sorted(os.environb.items()), os.getsid(0) == os.getpid() == os.getpgid(0))
print([signal.getsignal(n) for n in sorted(signal.valid_signals())])
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()), len(threading.enumerate()))
print(gc.isenabled(), gc.get_threshold())
print(sorted(os.listdir("/proc/self/fd")), os.umask(0))
print(sys.stdout.line_buffering, sys.stdout.encoding, sys.stderr.line_buffering, sys.excepthook)
"""
RAISES = """
def inner(): raise ValueError("first")
def outer():
    try: inner()
    except ValueError as error: raise RuntimeError("second") from error
outer()
"""
HOOK = """
import sys, traceback
def hook(kind, error, trace):
    print(kind, traceback.format_tb(trace), trace is error.__traceback__)
sys.excepthook = hook
def f(): raise LookupError("x")
f()
"""
ENDING = """
import atexit, sys, threading, time
atexit.register(print, "atexit")
started = threading.Event()
def work(): started.wait(); print("thread")
threading.Thread(target=work).start()
class Last:
    def __del__(self): sys.__stdout__.write("deleted\\n")
last = Last()
sys.stdout.write("unflushed ")
started.set()
"""
PICKLES = """
import pickle
class Thing: pass
def function(): return 42
if __name__ == "__main__":
    print(pickle.dumps([Thing, function]), pickle.loads(pickle.dumps(function))())
"""
POOL = """
import multiprocessing as mp, sys
def square(x): return x * x
if __name__ == "__main__":
    for way in sys.argv[1:]:
        with mp.get_context(way).Pool(1) as pool: print(way, pool.map(square, range(5)))
    print(mp.current_process(), mp.parent_process())
"""
FILES = {
    "facts.py": FACTS,
    "sub/facts.py": FACTS,
    "raises.py": RAISES,
    "hook.py": HOOK,
    "ending.py": ENDING,
    "pickles.py": PICKLES,
    "pool.py": POOL,
    "broken.py": "x = 1\ndef f(:\n",
    "latin.py": "# -*- coding: latin-1 -*-\nprint('\xe9')\n",
    "quit.py": "import sys\nprint('out')\nsys.exit({'text': 'why', 'none': None, 'three': 3}[sys.argv[1]])",
    "context.py": "try: 1/0\nfinally: raise SystemExit(4)",
    "interrupt.py": "import atexit\natexit.register(print, 'bye')\nraise KeyboardInterrupt",
    "abort.py": "import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.abort()",
    "hard.py": "import os\nprint('lost')\nos._exit(7)",
    "imports.py": "import neighbour\nprint(neighbour.__file__)",
    "neighbour.py": "",
    "pkg/__init__.py": "print('package')",
    "pkg/__main__.py": FACTS,
    "pkg/bad.py": "import sys\nprint(sys.argv)\n1 / 0",
}
COMMANDS = [
    *(
        "facts.py",
        "facts.py --lr 3e-4 -m x",
        "./facts.py",
        "sub/../facts.py",
        "sub/facts.py",
        "{folder}/facts.py",
    ),
    *("link.py", "raises.py", "hook.py", "ending.py", "pickles.py", "pool.py spawn fork", "broken.py"),
    *(
        "latin.py",
        "imports.py",
        "quit.py text",
        "quit.py none",
        "quit.py three",
        "context.py",
        "interrupt.py",
    ),
    *(
        "abort.py",
        "hard.py",
        "missing.py",
        "sub",
        "-m pkg a b",
        "-m pkg.bad c",
        "-m facts",
        "-m interrupt",
        "-m nope",
    ),
    *("-m pool spawn",),
]
ENV = {"ODD": "\udcff é", "EMPTY": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts").resolve()
    for name, source in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source, encoding="latin-1" if name == "latin.py" else "utf-8")
    (folder / "link.py").symlink_to("sub/facts.py")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_worker_does_what_plain_python_does(stage: Stage, folder: Path, command: str) -> None:
    argv = command.format(folder=folder).split()
    plain = subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        env=stage.env | ENV,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        timeout=20,
        check=False,
    )
    worker = stage.run(folder, *argv, env=ENV)
    assert worker.stderr == plain.stderr.decode(errors="backslashreplace")
    assert worker.stdout == plain.stdout.decode(errors="backslashreplace")
    assert worker.status == ExitStatus.from_returncode(plain.returncode)


def test_siblings_share_no_random_state(stage: Stage, folder: Path) -> None:
    (folder / "chance.py").write_text(
        "import multiprocessing, numpy, random, uuid\n"
        "key = multiprocessing.current_process().authkey.hex()\n"
        "print(random.random(), numpy.random.random(), uuid.uuid4(), key)\n"
    )
    first, second = (stage.run(folder, "chance.py").stdout.split() for _ in range(2))
    assert len(first) == 4
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_an_environment_larger_than_a_packet_arrives(stage: Stage, folder: Path) -> None:
    (folder / "environ.py").write_text("import os\nprint(sum(map(len, filter(str.isalpha, os.environ.values()))))")
    env = {f"SERVICE_{number}": "é" * 500 for number in range(1000)}
    assert stage.run(folder, "environ.py", env=env).stdout == "500000\n"


def test_a_missing_working_directory_is_the_workers_error(stage: Stage, folder: Path) -> None:
    worker = stage.next_id()

    async def spawn() -> ExitStatus:
        with (folder / "err").open("wb") as err:
            process = await stage.spawner.spawn(
                worker, ["x.py"], env={}, cwd=folder / "nowhere", stdout=err.fileno(), stderr=err.fileno()
            )
        return await process.wait()

    assert stage.loop.run_until_complete(spawn()) == ExitStatus(code=1)
    assert "No such file or directory" in (folder / "err").read_text()
    assert "Traceback" not in (folder / "err").read_text()
