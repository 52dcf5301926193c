"""Which checkpoints are kept, and the removal of the others: they are renamed at once and removed later.

At least two good ones stay, whatever is asked for. Nothing goes but after a newer COMMIT is durable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from everstep.checkpoint import names
from everstep.checkpoint.catalog import Condition, Found, find, good
from everstep.checkpoint.store import Store
from everstep.core.events import Checkpoint

LEAST = 2


def retire(
    store: Store, newest: Checkpoint, keep: int = 3, every: int = 0, needed: Collection[Checkpoint] = ()
) -> list[str]:
    """Hide what need not be kept; their names. `purge` removes them. ``newest`` has just been committed.

    Kept are the last ``keep`` good ones and, with ``every``, the first one of each so many steps; also what is
    ``needed``: a job that went on from an older one may not fall back to those between. What is not good and older than
    the ones that are kept goes too.
    """
    kept = list(islice(good(store), max(keep, LEAST)))
    if len(kept) < LEAST or newest not in [each.checkpoint for each in kept]:
        return []  # what was to take the place of older ones is not there, or not good
    oldest = kept[-1]
    found = find(store)
    committed = [each for each in found if each.condition is Condition.COMMITTED]
    wanted = {each.directory for each in [*kept, *_milestones(committed, every)]}
    hidden = []
    for each in reversed(found):
        replaced_by = newest if each.condition is Condition.INCOMPLETE else oldest.checkpoint
        if each.directory not in wanted and each.checkpoint not in needed and each.checkpoint.age < replaced_by.age:
            hidden.append(store.hide(each.directory))
    return hidden


def purge(store: Store) -> None:
    """Remove what is hidden, also by those who came before and did not finish. May take long."""
    for name in store.names():
        if name.startswith(names.TRASH):
            store.purge(name)


def _milestones(candidates: Sequence[Found], every: int) -> list[Found]:
    """The first of each ``every`` steps; of two at one step the newer."""
    if not every:
        return []
    firsts: dict[int, Found] = {}
    for each in candidates:  # the newest first
        part = each.checkpoint.step // every
        if part not in firsts or each.checkpoint.step < firsts[part].checkpoint.step:
            firsts[part] = each
    return list(firsts.values())
