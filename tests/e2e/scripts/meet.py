"""Steps in which the ranks meet: a barrier of files, waited for as a collective is. Arguments: steps, folder."""

import pathlib
import sys
import time

import everstep

steps, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
job = everstep.init()
start = folder / f"{job.generation}"
start.mkdir(exist_ok=True)
for step in job.steps(steps):
    with step:
        time.sleep(0.01)
        step.phase("backward")
        (start / f"{step.index}-{job.rank}").touch()
        with job.waiting():
            while len(list(start.glob(f"{step.index}-*"))) < job.world_size:
                time.sleep(0.005)
        step.phase("optimizer")
