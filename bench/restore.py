"""How fast a replacement receives 400 MB of state, beside bare Gloo: `python -m bench.restore`.

A real job of two ranks: one gets kill -9 again and again, and t_restore_s of `recoveries.jsonl` is from the
controller's order to the newcomer's word that it holds the state: loaded, and compared with the donor's by digest. The
peer is one send and one recv of as many bytes by bare Gloo between two processes: into new memory, which the moments of
a newcomer's optimizer need too, and into memory that is in use, where its parameters are.
"""

from __future__ import annotations

import argparse
import random

from bench import floor
from bench.jobs import job
from bench.recovery import STEPS_BETWEEN, Loss, lose
from bench.table import interval, median

RANKS = 2
WIDTH, LAYERS = 2048, 8
"""33.6 million parameters: 403 MB with the moments of AdamW."""


def losses(repeat: int) -> list[Loss]:
    dice, found, version = random.Random(0), [], STEPS_BETWEEN
    with job(RANKS, ("-m", "bench.endless", str(WIDTH), str(LAYERS))) as running:
        for _ in range(repeat):
            found.append(lose(running, running.training(True, version), dice))
            version = found[-1].record.target + STEPS_BETWEEN
    return found


def copies(size: int, repeat: int, *, new_memory: bool) -> list[float]:
    return [each.copy_s for each in floor.measure(RANKS, size, repeat, new_memory=new_memory)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    records = [loss.record for loss in losses(options.repeat)]
    size = records[0].bytes
    raw, used = (copies(size, options.repeat, new_memory=new) for new in (True, False))
    restore = [record.t_restore_s for record in records]
    print(f"{size / 1e6:.0f} MB, {options.repeat} times          ms     GB/s   95 % of the median, ms")
    print_row("bare Gloo, new memory", size, raw)
    print_row("bare Gloo, used memory", size, used)
    print_row("Restoration", size, restore)
    print(f"bandwidth to bare Gloo: {median(raw) / median(restore):.2f} new, {median(used) / median(restore):.2f} used")


def print_row(name: str, size: int, seconds: list[float]) -> None:
    low, high = interval(seconds)
    middle = median(seconds)
    print(f"{name:24} {1000 * middle:8.1f} {size / 1e9 / middle:8.2f}   {1000 * low:.1f} … {1000 * high:.1f}")


if __name__ == "__main__":
    main()
