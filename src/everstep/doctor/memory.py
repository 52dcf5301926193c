"""Room: shared memory for boards and checkpoints, memory for the workers, a directory for the run."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from everstep.agent import shm
from everstep.agent.slots import SPARED
from everstep.doctor.finding import Finding, Settings, failure, ok, warning
from everstep.launch.prepare import SHARED_BYTES_PER_WORKER
from everstep.units import write_size

SLOTS = 2
"""Memory checkpoints that are kept at a time."""
TORCH_BYTES = 210 * 10**6
"""Of a process that has imported torch; those that a zygote forks share most of it."""
LOG_BYTES = 100 * 10**6
"""Logs and a journal come to so much in no time."""


def shared_memory(settings: Settings, root: Path = shm.ROOT) -> Finding:
    name, boards = str(root), _boards(settings)
    try:
        usage = shutil.disk_usage(root)
    except OSError as error:
        return failure(name, error.strerror or str(error), breaks="no agent starts", fix="mount a tmpfs there")
    slots, room = _slots(settings), _room(settings)
    found = f"{write_size(usage.free)} of {write_size(usage.total)} free"
    enlarge = f"enlarge it (mount -o remount,size={-(-(boards + room) * 5 // 4)} {root}, docker run --shm-size)"
    if usage.free < boards:
        return failure(
            name, f"{found}, boards need {write_size(boards)}", breaks="no worker starts", fix=f"{enlarge} or free some"
        )
    if usage.free < boards + room:
        need = f"{found}, {SLOTS} slots of {write_size(slots / SLOTS)} need {write_size(slots)}"
        if settings.every.auto:
            return warning(
                name,
                need
                + (", and as much as one rank takes is left to the script" if usage.free >= boards + slots else ""),
                breaks="the job trains without checkpoints: what no replica can heal makes it begin anew",
                fix=f"{enlarge} or free some",
            )
        return failure(
            name, need, breaks="the job does not begin without the checkpoints", fix=f"{enlarge} or free some"
        )
    if settings.every.off:
        return ok(name, f"{found}, the boards need {write_size(boards)}")
    if settings.state_bytes is None:
        return ok(name, f"{found}; with --state-size it is compared with {SLOTS} slots of the state")
    return ok(name, f"{found}, {SLOTS} slots and the boards need {write_size(boards + slots)}")


def _boards(settings: Settings) -> int:
    return settings.workers * SHARED_BYTES_PER_WORKER


def _slots(settings: Settings) -> int:
    """Of all ranks here."""
    return 0 if settings.every.off else SLOTS * (settings.state_bytes or 0)


def _room(settings: Settings) -> int:
    """What has to be free for these. With `auto` the last rank takes at most one part in `SPARED` of what is left."""
    slots = _slots(settings)
    return slots + (SPARED - 1) * slots // settings.nproc if settings.every.auto else slots


def slots_taken(settings: Settings, root: Path = shm.ROOT) -> int:
    """What of shared memory the slots of this job will have."""
    try:
        free = shutil.disk_usage(root).free
    except OSError:
        return 0
    without = settings.every.auto and free < _boards(settings) + _room(settings)
    return 0 if without else _slots(settings)


def memory(settings: Settings, free: int, slots: int) -> Finding:
    """The state of CUDA devices is not in this memory, but its slots are."""
    name, state = "memory", settings.state_bytes or 0
    held = 0 if settings.cuda else state
    least = settings.workers * TORCH_BYTES + slots + held
    most = least - held + settings.nproc * held
    found = f"{write_size(free)} free"
    job = f"--nproc {settings.nproc} --standby {settings.standby}"
    fix = "run fewer ranks here, or give the machine more memory"
    if free < least:
        return failure(
            name,
            f"{found}, {job} takes {write_size(least)}",
            breaks="the kernel kills workers, again and again",
            fix=fix,
        )
    if free < most:
        return warning(
            name,
            f"{found}, {job} takes {write_size(most)} if each holds the whole state",
            breaks="plain data parallel does not fit; sharded training may",
            fix=fix,
        )
    return ok(name, f"{found}, {job} takes {write_size(most)}" + ("" if state else " and their state"))


def stale(root: Path = shm.ROOT) -> Finding:
    return judge_stale(shm.find_stale(root))


def judge_stale(paths: Sequence[Path]) -> Finding:
    name = "left behind"
    if not paths:
        return ok(name, "nothing of ended jobs in shared memory")
    count = "1 directory" if len(paths) == 1 else f"{len(paths)} directories"
    size = sum(file.stat().st_size for path in paths for file in path.rglob("*") if file.is_file())
    return warning(
        name,
        f"{count} of ended jobs, {write_size(size)}, such as {paths[0]}",
        breaks="their memory is missing elsewhere",
        fix="the next job on this machine removes them; or rm -r them",
    )


def run_directory(settings: Settings) -> Finding:
    """Whether files can be made and locked there; some network file systems cannot do the latter."""
    name, fix = "run directory", "give --run-dir a directory that can be written, on a file system with locks and room"
    place = settings.run_dir.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = shutil.disk_usage(place).free
    except OSError as error:
        return failure(name, f"{settings.run_dir}: {error.strerror}", breaks="a run cannot be laid out", fix=fix)
    found = f"{settings.run_dir} can be written, {write_size(free)} free"
    if free < LOG_BYTES:
        return failure(name, found, breaks="a journal that cannot be written ends the job", fix=fix)
    return ok(name, found)
