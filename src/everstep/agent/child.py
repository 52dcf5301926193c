"""What a forked process does to become a worker: the state and the behaviour of `python script.py args…`.

What an interpreter or a library reads only once, at its start (PYTHON*, LD_*, OMP_NUM_THREADS, hash seed), a
fork has from the zygote. Give such variables to the zygote, or start the worker fresh.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import os
import pkgutil
import runpy
import signal
import sys
import time
import types
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from io import open_code
from typing import Any

from everstep.agent.messages import Task
from everstep.fork import die_with

Handler = Callable[[int, types.FrameType | None], Any] | int | None


def enter(task: Task, stdout: int, stderr: int, parent_pid: int, signals: Mapping[int, Handler]) -> None:
    """Leave everything that is the zygote's, right after the fork."""
    die_with(parent_pid)
    os.setsid()
    for number, handler in signals.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environb.clear()
    os.environb.update(task.env)
    try:
        os.chdir(task.cwd)
    except OSError as error:
        sys.exit(f"everstep: the working directory of the worker: {error}")


def run(task: Task) -> None:
    """Be the interpreter that the task asks for. Leaving all frames from here ends as it would."""
    argv = [os.fsdecode(argument) for argument in task.argv]
    if task.fresh:
        os.execve(sys.executable, [sys.executable, *argv], os.environb)
    _renew_process_state()
    sys.orig_argv = [sys.executable, *argv]
    sys.argv = argv
    try:
        main, path = _new_main(), os.path.join(os.getcwd(), argv[0])
        if argv[0] == "-m":
            sys.argv = ["-m", *argv[2:]]
            _look_first_in(os.getcwd())
            runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]  # what `python -m` calls
        elif pkgutil.get_importer(path) is not None:  # a folder or an archive with a __main__ in it
            sys.path.insert(0, path)
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        else:
            _look_first_in(os.path.dirname(os.path.realpath(path)))
            main.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
            exec(compile(_source(path), path, "exec", dont_inherit=True), main)
    except SystemExit:
        raise
    except BaseException as error:
        _show_without_our_frames(error)
        raise


def _renew_process_state() -> None:
    """What a new interpreter makes for itself and siblings must not share. `random` sees to itself."""
    gc.enable()
    time.tzset()
    importlib.invalidate_caches()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if processes := sys.modules.get("multiprocessing.process"):
        processes.current_process().authkey = os.urandom(32)


def _new_main() -> dict[str, Any]:
    """A `__main__` as the interpreter makes it, instead of the zygote's."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    return main.__dict__


def _look_first_in(directory: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, directory)


def _source(path: str) -> bytes:
    try:
        with open_code(path) as file:
            return file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {reason}\n")
        sys.exit(2)


def _show_without_our_frames(error: BaseException) -> None:
    """The interpreter shows an exception when it has left all frames. Cut ours from it then."""
    assert error.__traceback__ is not None  # it was raised
    theirs = error.__traceback__.tb_next
    show = sys.excepthook

    def show_theirs(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        show(kind, error.with_traceback(theirs), theirs)

    sys.excepthook = show_theirs
