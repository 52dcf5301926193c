"""Torch and the kernel: whether they can do what everstep asks of them."""

from __future__ import annotations

import errno
import importlib
import os
import platform
import re
import signal
from collections.abc import Iterable
from importlib import metadata

from everstep.doctor.finding import Finding, failure, ok, warning

TESTED = "2.13"
"""Of torch."""
_TORCH = "torch"


def torch() -> Finding:
    try:
        version = metadata.version(_TORCH)
        distributed = importlib.import_module("torch.distributed")
    except (ImportError, OSError) as error:  # a library of it may be missing or broken
        return failure(
            _TORCH,
            f"cannot be imported: {error}",
            breaks="no worker starts",
            fix=f"install torch {', '.join(required())} in this environment",
        )
    gloo = bool(distributed.is_available() and distributed.is_gloo_available())
    return judge_torch(version, required(), gloo=gloo)


def required() -> list[str]:
    """What everstep was installed with, such as ``>=2.13``."""
    lines = metadata.requires("everstep") or []
    return next((re.findall(r"[<>=!]+[\d.]+", line) for line in lines if re.match(r"torch\b", line)), [])


def judge_torch(version: str, wanted: Iterable[str], *, gloo: bool) -> Finding:
    wanted = list(wanted)
    if not all(_fits(version, rule) for rule in wanted):
        return failure(
            _TORCH,
            f"{version}, not {', '.join(wanted)}",
            breaks="process groups are made through interfaces that other versions do not have",
            fix=f"install torch {', '.join(wanted)}",
        )
    if not gloo:
        return failure(
            _TORCH, f"{version}, without Gloo", breaks="ranks cannot be connected", fix="install a build with Gloo"
        )
    if not version.startswith(f"{TESTED}."):
        return warning(
            _TORCH,
            f"{version}, with Gloo",
            breaks=f"perhaps nothing; only {TESTED} is tested",
            fix=f"install torch {TESTED}, or run `python -m everstep.chaos.matrix`",
        )
    return ok(_TORCH, f"{version}, with Gloo")


def _fits(version: str, rule: str) -> bool:
    match = re.fullmatch(r"([<>=!]+)([\d.]+)", rule)
    assert match is not None, f"{rule!r} comes from `required`"
    theirs = _numbers(match[2])
    ours = _numbers(version)[: len(theirs)]
    return {">=": ours >= theirs, "<": ours < theirs, "==": ours == theirs, "!=": ours != theirs}.get(match[1], True)


def _numbers(version: str) -> list[int]:
    """``2.13.0+cpu`` is [2, 13, 0]."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return [int(part) for part in match[0].split(".")] if match else []


def pidfd() -> Finding:
    """Agents know a process by a pidfd: no other process can come to have it."""
    name, kernel = "pidfd", f"Linux {platform.release()}"
    try:
        descriptor = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(descriptor, 0)  # only asks
            os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
        finally:
            os.close(descriptor)
    except ChildProcessError:  # it was understood: we are no child of ours
        return ok(name, kernel)
    except OSError as error:
        return failure(
            name,
            f"{kernel}: {errno.errorcode.get(error.errno or 0, '?')}, {error.strerror}",
            breaks="agents cannot start workers, or see them die",
            fix="use a kernel of 5.4 or newer, and a container profile that allows pidfd_open and pidfd_send_signal",
        )
    return ok(name, kernel)
