"""How the files of a checkpoint directory are called.

    DIR/step-0000000500-g3-a1/rank-00000.safetensors    one share of one checkpoint
    DIR/step-0000000500-g3-a1/COMMIT.json               all shares are there, and this is what they are
    DIR/step-0000000500-g3-a1/BAD                       it was found damaged, and how
    DIR/latest                                          name of the last committed one; a hint, never the truth
    DIR/.attempts/000001                                a job has used this directory
    DIR/.trash-…                                        on its way out

A directory is never used for a second attempt: step, generation and the number of the job make its name.
"""

from __future__ import annotations

import re

from everstep.core.events import Checkpoint
from everstep.types import Generation, Rank, Step

DEFAULT = "checkpoints"
"""Of a run directory, where nothing else is said."""

COMMIT = "COMMIT.json"
BAD = "BAD"
LATEST = "latest"
ATTEMPTS = ".attempts"
TRASH = ".trash-"
PART = ".part"
"""Ends the name of a file that is being written."""

_DIRECTORY = re.compile(r"step-(\d{10,})-g(\d+)-a(\d+)")
_FILE = re.compile(r"rank-(\d{5,})\.safetensors")


def directory_of(checkpoint: Checkpoint) -> str:
    return f"step-{checkpoint.step:010d}-g{checkpoint.generation}-a{checkpoint.attempt}"


def checkpoint_in(directory: str) -> Checkpoint | None:
    """Which one this directory is for; None if the name is not ours."""
    found = _DIRECTORY.fullmatch(directory)
    if found is None:
        return None
    step, generation, attempt = map(int, found.groups())
    checkpoint = Checkpoint(Step(step), Generation(generation), attempt)
    return checkpoint if directory_of(checkpoint) == directory else None


def file_of(rank: Rank) -> str:
    return f"rank-{rank:05d}.safetensors"


def rank_of(file: str) -> Rank | None:
    """Whose share this file is; None if the name is not ours."""
    found = _FILE.fullmatch(file)
    return None if found is None else Rank(int(found.group(1)))


def attempt_file(attempt: int) -> str:
    return f"{ATTEMPTS}/{attempt:06d}"
