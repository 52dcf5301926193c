"""Fault-tolerance runtime for synchronous distributed training in PyTorch.

This module is the public API and nothing else. It imports what is used when it is used: the controller and the
agents need nothing of a worker, and torch is imported by the script, never by this module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.errors import (
        AuthError,
        BoardError,
        CheckpointError,
        ConfigError,
        EverstepError,
        Interruption,
        InvalidTransition,
        LostError,
        ModelViolation,
        ProtocolError,
        ResourceError,
        RuleError,
        SlotHeld,
        SpawnError,
        StateError,
        Unreadable,
        WireError,
    )
    from everstep.worker.job import Job, init
    from everstep.worker.step import Step

__version__ = "0.1.0.dev0"

__all__ = [
    "AuthError",
    "BoardError",
    "CheckpointError",
    "ConfigError",
    "EverstepError",
    "Interruption",
    "InvalidTransition",
    "Job",
    "LostError",
    "ModelViolation",
    "ProtocolError",
    "ResourceError",
    "RuleError",
    "SlotHeld",
    "SpawnError",
    "StateError",
    "Step",
    "Unreadable",
    "WireError",
    "__version__",
    "init",
]

_HOMES = {"init": "everstep.worker.job", "Job": "everstep.worker.job", "Step": "everstep.worker.step"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "everstep.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
