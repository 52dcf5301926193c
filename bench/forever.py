"""Ranks that meet in every step, for ever: what the benchmark of the detection does harm to."""

import pathlib
import sys
import time

import everstep

folder = pathlib.Path(sys.argv[1])
pause_s = float(sys.argv[2])
job = everstep.init()
(folder / f"init-{job.generation}-{job.rank}").write_text(str(time.time()))
mine = folder / f"{job.generation}-{job.rank}"
peers = [folder / f"{job.generation}-{rank}" for rank in range(job.world_size)]


def reached(path: pathlib.Path) -> int:
    try:
        return int(path.read_text() or -1)
    except (FileNotFoundError, ValueError):
        return -1


for step in job.steps(1_000_000):
    with step:
        time.sleep(pause_s)
        step.phase("backward")
        part = mine.with_suffix(".part")
        part.write_text(str(step.index))
        part.replace(mine)
        with job.waiting():
            while any(reached(peer) < step.index for peer in peers):
                time.sleep(0.001)
        step.phase("optimizer")
