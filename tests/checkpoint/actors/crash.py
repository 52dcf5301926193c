"""`crash.py persist|commit ROOT`: a persister or a committer that is killed at the call whose number comes on stdin.

It forks one for each number and answers with how that ended: 0 if it came to its end before.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.checkpoint.conftest import COORDINATES, TIME_S, Place
from tests.checkpoint.disks import CrashingDisk

from everstep.checkpoint import retention
from everstep.checkpoint.commit import commit
from everstep.checkpoint.persister import Write, persist
from everstep.core.events import Checkpoint


def do_persist(place: Place, at: Checkpoint) -> None:
    order: Write = place.order(at, 1)
    receipt = persist(order, lambda _: place.store)
    (place.root / "receipt").write_text(repr(receipt))
    assert not receipt.error


def do_commit(place: Place, at: Checkpoint) -> None:
    receipts = Place(place.root).persist(at)
    commit(place.store, at, receipts, COORDINATES, TIME_S)
    (place.root / "committed").touch()
    retention.retire(place.store, at, keep=2)
    retention.purge(place.store)


def main(what: str, folder: Path, step: int) -> None:
    from tests.checkpoint.conftest import point

    for line in sys.stdin:
        number = int(line)
        if (pid := os.fork()) == 0:
            place = Place(folder / line.strip(), CrashingDisk(number))
            {"persist": do_persist, "commit": do_commit}[what](place, point(step))
            os._exit(0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
