"""What protection of a sharded training costs, and how long a loss stops it: `python -m bench.sharded`.

recovery   HSDP of 2×2 ranks, 50 million parameters, AdamW: kill -9 at random moments, beside the floor of the same
           run (`bench.floor`: the groups of the mesh, the bytes of one shard, one step)
steady     a step under everstep beside one under plain FSDP2, 2 ranks, in turns (`bench.steady`)
memory     of a worker after some steps, under everstep and plain, 2 ranks
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import floor, steady
from bench.jobs import job
from bench.recovery import STEPS_BETWEEN, Loss, lose, print_rows
from bench.spread import LAYERS
from bench.table import median

RANKS = 4
STEP_S, TURN_STEPS = 0.050, 10
MEMORY_STEPS = 5
SIZES = (4, LAYERS)
"""Layers of the models whose memory is looked at."""
LIMIT_S = 180.0


def recovery(repeat: int) -> None:
    dice = random.Random(0)
    lost: list[Loss] = []
    with job(RANKS, ("-m", "bench.spread", str(LAYERS), "everstep"), "--standby", "1") as running:
        version = STEPS_BETWEEN
        for _ in range(max(2, repeat // 4)):
            lost.append(lose(running, running.training(True, version), dice))
            version = lost[-1].record.target + STEPS_BETWEEN
    floors = floor.measure(RANKS, lost[0].record.bytes, max(5, len(lost)), "bench.spread:Spread")
    print_rows("HSDP 2×2, 50 million parameters", lost, floors)


def overhead(repeat: int) -> None:
    rounds = steady.measure(2, STEP_S, TURN_STEPS, repeat, "bench.spread:Small")
    print("\nunder everstep and under plain FSDP2")
    steady.print_head()
    steady.print_row(2, rounds, TURN_STEPS)


def memory(_: int) -> None:
    print(f"\nMB of a worker {'plain':>9} {'everstep':>9} {'more':>7} {'ratio':>6}")
    for layers in SIZES:
        plain, ours = (median(of(layers)) / 1e6 for of in (_plain, _everstep))
        print(f"{layers:7} layers {plain:9.1f} {ours:9.1f} {ours - plain:7.1f} {ours / plain:6.3f}", flush=True)


def _plain(layers: int) -> list[int]:
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(floor.free_port()), "WORLD_SIZE": "2"}
    env = {**os.environ, **store, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bench.spread", str(layers), "plain", str(MEMORY_STEPS)]
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    return _resident("".join(rank.communicate(timeout=LIMIT_S)[0] for rank in ranks))


def _everstep(layers: int) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "everstep.cli",
            "run",
            "--nproc",
            "2",
            "--checkpoint-every",
            "off",
            "--run-dir",
            str(Path(folder) / "run"),
        ]
        command += ["-m", "bench.spread", str(layers), "everstep", str(MEMORY_STEPS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return _resident(done.stdout)


def _resident(text: str) -> list[int]:
    found = [int(size) for size in re.findall(r"resident (\d+)", text)]
    if len(found) != 2:
        raise RuntimeError(f"not every rank has said what it uses:\n{text}")
    return found


PARTS: dict[str, Callable[[int], None]] = {"recovery": recovery, "steady": overhead, "memory": memory}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=40, help="rounds of the steady state; kills: a quarter of it")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one")
    options = parser.parse_args(words)
    for part in options.part or PARTS:
        PARTS[part](options.repeat)


if __name__ == "__main__":
    main()
