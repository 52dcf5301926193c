"""Seeds, and the generators that code uses without being given one: of torch, NumPy and Python."""

from __future__ import annotations

import hashlib
import importlib.util
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_numpy: Any = importlib.import_module("numpy.random") if importlib.util.find_spec("numpy") else None
"""torch works without it."""
_cuda: Any = torch.cuda


def mix(*parts: int | str) -> int:
    """A seed of 64 bits from all that it shall depend on. Neighbours have nothing in common, in the low 32 bits too."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def seed_all(seed: int) -> None:
    """With 64 bits. That of a CUDA device only where one is in use."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if _numpy is not None:
        _numpy.seed([seed & 0xFFFFFFFF, seed >> 32, 1])  # without the 1 its numbers would be those of random
    if _cuda.is_initialized():
        _cuda.manual_seed(seed)


@contextmanager
def own_randomness() -> Iterator[None]:
    """What is inside may seed the generators and draw from them: they are left as they were."""
    torch_state, python_state = torch.default_generator.get_state(), random.getstate()
    numpy_state = _numpy.get_state() if _numpy is not None else None
    cuda_state = _cuda.get_rng_state() if _cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        if _numpy is not None:
            _numpy.set_state(numpy_state)
        if cuda_state is not None:
            _cuda.set_rng_state(cuda_state)
