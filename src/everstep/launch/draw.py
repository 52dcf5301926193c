"""`python -m everstep.launch.draw RUN_DIR PICTURE WIDTH`: one picture of a run on stdout, for its live page.

`lanes-N` is what the picture `recovery-N` shows, as JSON.

A process of its own, and the last in the queue for a core: to read and to draw a long run takes longer than a
controller may be busy with anything else.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from everstep.errors import ConfigError
from everstep.launch.lookback import look_back
from everstep.observe.report.checkpoint import checkpoint_timeline
from everstep.observe.report.consistency import consistency
from everstep.observe.report.data import plain
from everstep.observe.report.failure import failure_timeline
from everstep.observe.report.run import Run
from everstep.observe.report.scene import set_scene
from everstep.observe.report.svg import Svg
from everstep.observe.report.times import recovery_times
from everstep.observe.report.waste import waste_curve

RECOVERY, LANES = "recovery-", "lanes-"
PICTURES: dict[str, Callable[[Run, float], Svg]] = {
    "consistency": consistency,
    "checkpoints": checkpoint_timeline,
    "checkpoint-interval": waste_curve,
    "recovery-times": recovery_times,
}

LAST_IN_THE_QUEUE = 19


def draw(run: Run, name: str, width: float) -> str:
    if name in PICTURES:
        return PICTURES[name](run, width).standalone()
    kind, dash, number = name.rpartition("-")
    for recovery in run.recoveries:
        if str(recovery.number) == number and kind + dash == RECOVERY:
            return failure_timeline(run, recovery, width).standalone()
        if str(recovery.number) == number and kind + dash == LANES:
            return msgspec.json.encode(plain(set_scene(run, recovery))).decode()
    known = ", ".join((*PICTURES, f"{RECOVERY}N", f"{LANES}N"))
    raise ConfigError(f"this run has no picture {name!r}: name one of {known}")


def main() -> None:
    os.nice(LAST_IN_THE_QUEUE)
    if len(sys.argv) != 4:
        sys.exit("usage: python -m everstep.launch.draw RUN_DIR PICTURE WIDTH")
    try:
        picture = draw(look_back(Path(sys.argv[1]), time.time()), sys.argv[2], float(sys.argv[3]))
    except (ConfigError, ValueError) as error:
        sys.exit(f"everstep: {error}")
    sys.stdout.write(picture)


if __name__ == "__main__":
    main()
