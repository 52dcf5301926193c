"""Ranks that take steps, without torch: what everstep sees of a training loop.

everstep run --nproc 4 --standby 1 --chaos "kill rank=2 step=7 phase=optimizer" examples/steps.py
"""

import time

import everstep

job = everstep.init()  # a standby waits in here until it is needed
print(f"rank {job.rank} of {job.world_size} starts in generation {job.generation}")
for step in job.steps(10):
    with step:
        time.sleep(0.02)  # forward
        step.phase("backward")
        time.sleep(0.02)
        step.phase("optimizer")
        time.sleep(0.01)
print(f"rank {job.rank} has done {step.index + 1} steps")
