"""What a person wants to know of a worker that ended: how, where, and its last words."""

from __future__ import annotations

import re
import signal
import sysconfig
from collections.abc import Sequence

from everstep.agent.process import ExitStatus

LAST_LINES = 10
"""Shown of the output when there is no traceback in it."""

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<path>.+)", line (?P<line>\d+)')
_ERROR = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(:|$)")
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


def code(status: ExitStatus) -> int:
    """As `subprocess` has it: a signal is negative. What nobody saw counts as killed."""
    if status.code is not None:
        return status.code
    return -(status.signal or signal.SIGKILL)


def by_itself(status: ExitStatus) -> bool:
    """Whether its own doing ended it, not a kill from outside."""
    return bool(status.code) or status.signal in _CRASHES


def last_words(tail: Sequence[str]) -> str:
    """The last traceback to the end, else the last lines."""
    starts = [index for index, line in enumerate(tail) if line == _TRACEBACK]
    return "\n".join(tail[starts[-1] :] if starts else tail[-LAST_LINES:])


def place(status: ExitStatus, tail: Sequence[str]) -> str:
    """Where the script failed, if it is the script that failed: a second time there stops the job."""
    if status.code == 1 and (found := _raised_at(last_words(tail).splitlines())):
        return found
    return str(status) if by_itself(status) else ""


def _raised_at(trace: Sequence[str]) -> str:
    """``train.py:12 ValueError``: the innermost frame that is not a library's, and the exception."""
    frames = [(index, match) for index, line in enumerate(trace) if (match := _FRAME.match(line))]
    if not frames:
        return ""
    errors = [match["name"] for line in trace[frames[-1][0] :] if (match := _ERROR.match(line))]
    theirs = [match for _, match in frames if not match["path"].startswith((*_LIBRARIES, "<"))]
    if not errors:
        return ""
    frame = theirs[-1] if theirs else frames[-1][1]
    return f"{frame['path'].rpartition('/')[2]}:{frame['line']} {errors[0].rpartition('.')[2]}"
