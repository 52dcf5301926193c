"""The last words of a script that fails: shown as always, then told to the agent before the process exits.

It hangs in `sys.excepthook`, which the interpreter calls when the exception has left all frames, also in a worker
that was forked; what only ends a thread, or is a SystemExit, does not come here.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType

from everstep.core.events import Cause
from everstep.errors import ConfigError, LostError, ResourceError, RuleError
from everstep.worker.trace import place

MAX_CHARS = 100_000
"""The end of a longer traceback is kept: what failed is there."""


def report_uncaught(report: Callable[[str, str, Cause], None]) -> None:
    """Give the traceback and the place of the exception that ends this process to ``report``, and what it means."""
    show = sys.excepthook
    pid = os.getpid()

    def show_and_report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            show(kind, error, trace)  # first: once it is told, the agent may kill this process
        finally:
            if os.getpid() == pid:  # in a process that the script forked, its end is not ours
                text = "".join(traceback.format_exception(kind, error, trace))
                report(_sendable(text), _sendable(place(error)), _cause(error))

    sys.excepthook = show_and_report


def _cause(error: BaseException) -> Cause:
    """Whether it is worth another try."""
    if isinstance(error, RuleError | ConfigError):
        return Cause.RULE
    if isinstance(error, ResourceError):
        return Cause.RESOURCE
    return Cause.LOST if isinstance(error, LostError) else Cause.EXCEPTION


def _sendable(text: str) -> str:
    """Without the lone surrogates that a file name or a message may have, and that UTF-8 cannot."""
    return text[-MAX_CHARS:].encode(errors="backslashreplace").decode()
