"""Where tables and notes are printed: as wide as the terminal, and uncut in a pipe."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_COLUMNS = 10_000
"""A pipe has no width. rich takes 80, and cuts a table that another program reads."""


def stdout() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
