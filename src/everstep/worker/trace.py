"""Where the code is: the line that an exception came from, and what every thread is at."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback
from types import FrameType

_NOT_THE_USERS = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in (
        os.path.dirname(os.path.dirname(__file__)),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


def place(error: BaseException) -> str:
    """The innermost line of the user's code, ``train.py:12 ValueError``; of any code if none of it is the user's."""
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:  # a file that could not be compiled has no frame
        lines.append((error.filename, error.lineno or 0))
    theirs = [line for line in lines if _is_users(line[0])] or lines
    if not theirs:
        return type(error).__name__
    file, number = theirs[-1]
    return f"{os.path.basename(file)}:{number} {type(error).__name__}"


def stacks() -> str:
    """Of all threads, by name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    return "\n".join(_stack(str(names.get(ident, ident)), frame) for ident, frame in frames.items())


def _stack(name: str, frame: FrameType) -> str:
    return f"Thread {name}:\n{''.join(traceback.format_stack(frame))}"


def _is_users(file: str) -> bool:
    return not file.startswith("<") and not os.path.realpath(file).startswith(_NOT_THE_USERS)
