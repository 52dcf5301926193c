"""The group of all ranks as everstep itself uses it: no gate, nothing recorded, and no wait that outlasts a cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from everstep.worker.groups.work import outlast


class OwnGroup(dist.ProcessGroup):
    """Around the inner group of a generation."""

    def __init__(self, inner: dist.ProcessGroup, lost: Callable[[], bool]) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self._inner = inner
        self._lost = lost

    def issue(self, name: str, arguments: tuple[Any, ...]) -> dist.Work:
        return _OwnWork(getattr(self._inner, name)(*arguments), name, self._lost)


class _OwnWork(dist.Work):
    def __init__(self, inner: dist.Work, operation: str, lost: Callable[[], bool]) -> None:
        super().__init__()
        self._inner, self._operation, self._lost = inner, operation, lost

    def wait(self, timeout: Any = None) -> bool:
        return outlast(self._inner, self._operation, self._lost)


def _operation(name: str) -> Callable[..., dist.Work]:
    def operation(self: OwnGroup, *arguments: Any) -> dist.Work:
        return self.issue(name, arguments)

    operation.__name__ = operation.__qualname__ = name
    return operation


for _name in ("allreduce", "allgather", "broadcast", "send", "recv"):
    setattr(OwnGroup, _name, _operation(_name))
