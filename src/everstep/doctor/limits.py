"""What the kernel allows a process of this user, the processors, and the clocks."""

from __future__ import annotations

import ctypes
import resource
import struct
import time
from pathlib import Path

from everstep.doctor.finding import Finding, Settings, failure, ok, warning

FILES_BASE = 128
"""Open files of a process that trains alone: libraries, logs, data."""
FILES_PER_RANK = 8
"""A connection to each other rank in each group, and in the agent pipes, sockets and a pidfd for each worker."""

_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
_CLOCKSOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")


def open_files(settings: Settings, soft: int, hard: int) -> Finding:
    name, need = "open files", FILES_BASE + FILES_PER_RANK * settings.ranks
    found = f"{_number(soft)} allowed, a job of {settings.ranks} needs about {need}"
    if _less(soft, need):
        fix = f"ulimit -n {need}" if not _less(hard, need) else f"raise nofile to {need} in /etc/security/limits.conf"
        return failure(name, found, breaks="groups of so many ranks cannot be connected", fix=fix)
    return ok(name, found)


def locked_memory(settings: Settings, soft: int) -> Finding:
    name = "locked memory"
    if not settings.cuda:
        return ok(name, f"{_number(soft)} bytes allowed; only CUDA needs it")
    if soft == resource.RLIM_INFINITY:
        return ok(name, "unlimited")
    return warning(
        name,
        f"{soft} bytes allowed",
        breaks="pinned buffers and RDMA registrations fail, or are slow",
        fix="ulimit -l unlimited, or memlock in /etc/security/limits.conf",
    )


def core_files(soft: int, pattern: str) -> Finding:
    """The exit of a process is seen when its core is written, not before."""
    name = "core files"
    breaks = "a crashed worker is seen to die only when all of its memory is written"
    if pattern.startswith("|"):  # the kernel asks for no limit then
        program = pattern[1:].split(maxsplit=1)[0] if pattern[1:].split() else pattern
        return warning(name, f"{program} takes them", breaks=breaks, fix="sysctl -w kernel.core_pattern=core")
    if soft != 0:
        return warning(name, f"{_number(soft)} bytes allowed", breaks=breaks, fix="ulimit -c 0")
    return ok(name, "none is written")


def limits(settings: Settings) -> list[Finding]:
    """Of this process; its children inherit them."""
    try:
        pattern = _CORE_PATTERN.read_text().strip()
    except OSError:
        pattern = ""
    return [
        open_files(settings, *resource.getrlimit(resource.RLIMIT_NOFILE)),
        locked_memory(settings, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        core_files(resource.getrlimit(resource.RLIMIT_CORE)[0], pattern),
    ]


def processors(settings: Settings) -> Finding:
    name, found = "processors", f"{settings.cores} for --nproc {settings.nproc}"
    if settings.cuda or settings.nproc <= settings.cores:
        return ok(name, found)
    return warning(
        name,
        found,
        breaks="ranks wait for each other's cores: steps and recoveries are slow",
        fix=f"give --nproc {settings.cores}",
    )


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────────────

STA_UNSYNC = 0x0040
_TIMEX_BYTES = 208
_STATUS_AT = 40
"""Of the field `status` in `struct timex`, where a long has 8 bytes."""


def clocks(settings: Settings) -> list[Finding]:
    try:
        source = _CLOCKSOURCE.read_text().strip()
    except OSError:
        source = ""
    return [steady_clock(source, time.get_clock_info("monotonic").resolution), wall_clock(settings, synchronized())]


def steady_clock(source: str, resolution_s: float) -> Finding:
    name, found = "steady clock", f"{source or 'source unknown'}, resolution {resolution_s:.0e} s"
    if source in SLOW_CLOCKS or resolution_s > 1e-4:
        return warning(
            name,
            found,
            breaks="each step stamps the time several times, which is slow or coarse here",
            fix="boot with clocksource=tsc, or ask your provider for a stable one",
        )
    return ok(name, found)


def synchronized() -> bool | None:
    """Whether the kernel says that NTP, or the host, holds the wall clock; None if it does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex") or struct.calcsize("l") != 8:
        return None
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes 0: only asks
    if libc.adjtimex(timex) < 0:
        return None
    (status,) = struct.unpack_from("i", timex, _STATUS_AT)
    return not status & STA_UNSYNC


def wall_clock(settings: Settings, held: bool | None) -> Finding:
    """No decision of a job depends on it, but its records do."""
    name = "wall clock"
    found = {True: "synchronized", False: "not synchronized", None: "the kernel does not say if it is synchronized"}
    if held or settings.nodes == 1:
        return ok(name, found[held])
    return warning(
        name,
        found[held],
        breaks="times of several nodes do not fit together in logs and records",
        fix="run chrony or systemd-timesyncd on every node",
    )


def _less(limit: int, need: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < need


def _number(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
