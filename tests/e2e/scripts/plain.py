"""A script that never heard of everstep. The first time, rank 1 fails."""

import os
import pathlib
import sys

mark = pathlib.Path(sys.argv[1]) / "failed-once"
rank = os.environ["RANK"]
if rank == "1" and not mark.exists():
    mark.touch()
    raise RuntimeError("first time")
print(f"rank {rank} ran", flush=True)
