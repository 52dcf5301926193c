"""Some steps of fake work: everstep.init() and the loop, no torch. Arguments: steps, seconds per step."""

import os
import sys
import time

import everstep

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
job = everstep.init()
print(f"rank {job.rank} of {job.world_size} RANK={os.environ['RANK']} starts", flush=True)
for step in job.steps(steps):
    with step:
        time.sleep(pause_s / 2)
        step.phase("backward")
        time.sleep(pause_s / 2)
        step.phase("optimizer")
print(f"rank {job.rank} is done", flush=True)
