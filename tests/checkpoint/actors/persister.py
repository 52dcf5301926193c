"""`persister.py FOLDER --control FD --agent PID`: the real persister, on a disk that FOLDER says how to fail.

FOLDER/crashes is how many persisters are still to be killed, each in the middle of its first write. FOLDER/gate is a
pipe: who is about to rename opens it, and waits there until it is closed; once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.checkpoint.disks import CrashingDisk

from everstep.checkpoint import persister
from everstep.checkpoint.disk import Disk
from everstep.checkpoint.store import DirectoryStore


class GatedDisk(Disk):
    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def rename(self, old: Path, new: Path) -> None:
        with self._gate.open() as gate:
            gate.read()
        self._gate.unlink()
        super().rename(old, new)


def disk_of(folder: Path) -> Disk:
    if (gate := folder / "gate").exists():
        return GatedDisk(gate)
    crashes = folder / "crashes"
    if crashes.exists() and (left := int(crashes.read_text())):
        crashes.write_text(str(left - 1))
        return CrashingDisk(4)
    return Disk()


if __name__ == "__main__":
    folder = Path(sys.argv.pop(1))
    persister.main(lambda where: DirectoryStore(Path(where), disk_of(folder)))
