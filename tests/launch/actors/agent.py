"""`agent.py RUN_DIR MODE NODE`: has a worker that tries to outlive it, and goes when the run is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# In a session of its own, deaf to SIGTERM, and holding the pipe of its agent open.
WORKER = ("setsid", "sh", "-c", "trap '' TERM HUP; echo $$ >> workers; while :; do sleep 100 & wait; done")


def main(path: Path, mode: str, node: str) -> int:
    if mode == "no room":
        sys.stderr.write("no room in /dev/shm\n")
        return 2

    def on_sigterm(*_: object) -> None:
        (path / "told to go").touch()
        sys.exit(143)

    signal.signal(signal.SIGTERM, on_sigterm)
    worker = subprocess.Popen(WORKER, cwd=path)
    sys.stdout.write(f"[rank 0] hello from {node}\n")
    sys.stderr.write("[agent] a warning\n")
    with (path / "agents").open("a") as file:
        file.write(f"{os.getpid()}\n")
    try:
        while mode == "unmet" or not (path / "result.json").exists():
            time.sleep(0.01)
    finally:
        worker.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
