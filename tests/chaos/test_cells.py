"""What the matrix plans has to be survivable: else it would blame the job for its own mistake."""

from dataclasses import fields
from itertools import islice

import pytest

from everstep.chaos.cells import Plan
from everstep.chaos.exact.recipe import CHOICES, Recipe
from everstep.chaos.exact.variants import RECIPES
from everstep.chaos.spec import Action, parse
from everstep.worker.phases import PHASES


@pytest.mark.parametrize("seed", range(5))
def test_a_fault_for_a_newcomer_strikes_no_survivor_of_another_recovery(seed: int) -> None:
    """Who is told apart from survivors by nothing but its rank has to be the first whose groups are made anew."""
    unmarked = 0
    for planned in islice(Plan(seed), 300):
        faults = [parse(spec) for spec in planned.trial.faults]
        for index, fault in enumerate(faults):
            if fault.phase is PHASES["reset"] and fault.step is None:
                unmarked += 1
                assert [(earlier.rank, earlier.step) for earlier in faults[:index]] == [(fault.rank, 0)], planned
    assert unmarked


@pytest.mark.parametrize("seed", range(5))
def test_who_hangs_has_done_steps_before(seed: int) -> None:
    """A new process may take two minutes for its first steps, so that long nobody would notice."""
    hangs = 0
    for planned in islice(Plan(seed), 300):
        faults = [parse(spec) for spec in planned.trial.faults]
        for index, fault in enumerate(faults):
            if fault.action is Action.HANG:
                hangs += 1
                assert fault.step == planned.trial.recipe.steps - 1
                assert fault.rank not in [earlier.rank for earlier in faults[:index]], planned
    assert hangs


@pytest.mark.parametrize("name", [field.name for field in fields(Recipe) if field.name not in ("steps", "swallow")])
def test_each_option_is_in_a_variant(name: str) -> None:
    """So that nobody thinks a feature covered which is not. Errors are swallowed in a test of their own."""
    used = {getattr(recipe, name) for recipe in RECIPES.values()}
    assert used >= set(CHOICES.get(name, ())), "each choice"
    assert len(used) > 1
