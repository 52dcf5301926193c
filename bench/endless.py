"""The shared workload, protected, for ever: what the benchmark of the recovery does harm to."""

import sys

import everstep
from bench.workload import Workload

job = everstep.init()
work = Workload(width=int(sys.argv[1]), layers=int(sys.argv[2]))
job.protect(model=work.model, optimizer=work.optimizer)
for step in job.steps(1_000_000_000):
    with step:
        work.step()
