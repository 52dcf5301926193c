"""What a child process must know: that its parent has died. Knows nothing of what either of them is for.

A process that outlived the one it works for would keep memory and devices that a replacement needs.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before the fork, so that nothing is loaded after it


def die_with(parent_pid: int) -> None:
    """End when the parent does. The kernel means the thread that forked, so it must be one that lives as long."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call, so no signal will come
        os._exit(1)
