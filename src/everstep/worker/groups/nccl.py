"""NCCL for tensors on devices, with Gloo beside it for those in the memory of the processor.

UNTESTED: it was written without a device, and has never run on one. An abort of NCCL ends what is in flight, so that is
its cut; what torch's own watchdog would do about a failure is switched off, because it would end the process.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from everstep.errors import RuleError
from everstep.worker.groups.gloo import GlooSeam
from everstep.worker.groups.rendezvous import MeetingStore
from everstep.worker.groups.seam import Plan, Seam

_OFF = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


class NcclSeam(GlooSeam):
    """For the tensors of one device, and of the processor."""

    device_types = (*GlooSeam.device_types, torch.device("cuda"))

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._live: weakref.WeakSet[Any] = weakref.WeakSet()
        for name, value in _OFF.items():
            os.environ.setdefault(name, value)

    def make(self, plan: Plan, store: MeetingStore) -> dist.ProcessGroup:
        group = super().make(plan, store)
        nccl: Any = dist.ProcessGroupNCCL  # not in a build without CUDA
        options = nccl.Options()
        options._timeout = timedelta(seconds=plan.timeout_s)
        torch.cuda.set_device(self._device)
        backend = nccl(UniqueId(store.beside("nccl"), plan.rank), plan.rank, plan.size, options)
        self._live.add(backend)
        backend.eager_connect_single_device(self._device)
        group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, backend)
        return group

    def cut(self, rows: Sequence[bytes]) -> int:
        count = super().cut(rows)
        torch.cuda.set_device(self._device)  # of this thread, which is not the one that trains
        for backend in list(self._live):
            backend.abort()
        return count

    def drain(self) -> None:
        torch.cuda.synchronize(self._device)


class UniqueId(Store):
    """How NCCL finds its peers: the first member of a group makes an id, and all others get it."""

    def __init__(self, meeting: MeetingStore, rank: int) -> None:
        super().__init__()
        self._meeting = meeting
        self._rank = rank
        self._key = ""

    def set(self, key: str, value: str | bytes) -> None:
        self._only(key)
        self._meeting.set(str(self._rank), value)

    def get(self, key: str) -> bytes:
        self._only(key)
        self._meeting.set(str(self._rank), b"")
        return self._meeting.get("0")

    def _only(self, key: str) -> None:
        """A second communicator would meet under a second key, and nothing would cut that."""
        self._key = self._key or key
        if key != self._key:
            raise RuleError(f"NCCL asks for one more communicator ({key!r}) in a group: everstep makes one for each")


def seam_of(device: str) -> Seam:
    """For ``cuda:0``, or ``cpu``."""
    return NcclSeam(torch.device(device)) if device.startswith("cuda") else GlooSeam()
