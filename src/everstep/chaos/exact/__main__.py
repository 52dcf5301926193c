"""The script: `everstep run --nproc 2 -m everstep.chaos.exact --model gpt --out DIR`, as a user would write it.

With ``--plain`` the same training under torch's own process group, as torchrun starts it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch.distributed as dist

import everstep
from everstep.chaos.exact.recipe import Recipe
from everstep.chaos.exact.record import Recorder
from everstep.chaos.exact.training import Training


def main() -> None:
    recipe, rest = Recipe.parse_known(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args(rest)
    (plain if options.plain else protected)(recipe, options.out)


def protected(recipe: Recipe, out: Path) -> None:
    job = everstep.init()
    training, recorder = Training(recipe, job.rank), Recorder(out, job.rank)
    job.protect(
        model=training.model,
        optimizer=training.optimizers if recipe.second else training.optimizers[0],
        scheduler=training.scheduler,
        scaler=training.scaler,
        extra=training.extra,
        rng=recipe.rng,
    )
    for step in job.steps(recipe.steps):
        with step:
            loss = training.step(step.index)
        if training.swallowed:
            recorder.note("swallowed")
        if step.done:
            recorder.loss(step.index, loss)
    recorder.result(training.parts())


def plain(recipe: Recipe, out: Path) -> None:
    dist.init_process_group("gloo")
    # In a function of its own, so that DDP lets go of the group before we do. Its reducer would destroy it with the GIL
    # held, and so wait forever for a thread of Gloo that needs the GIL to forget its last work.
    _train(recipe, out)
    dist.destroy_process_group()


def _train(recipe: Recipe, out: Path) -> None:
    training, recorder = Training(recipe, dist.get_rank()), Recorder(out, dist.get_rank())
    for index in range(recipe.steps):
        recorder.loss(index, training.step(index))
    recorder.result(training.parts())


if __name__ == "__main__":
    main()
