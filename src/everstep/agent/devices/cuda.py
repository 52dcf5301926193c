"""NVIDIA devices, by NVML where it can be imported. UNTESTED: written from its documentation, never run on a GPU."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

from everstep.errors import ConfigError

EVENT_WAIT_MS = 1000
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that a program causes, by NVIDIA's list; the device is well."""


class CudaDevices:
    """Sick are those with a critical Xid, an uncorrectable ECC error, or none at all: fallen off the bus."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        """The devices of these names (``cuda:2``), or all that CUDA would show."""
        self.poll_s: float | None = 0.0  # poll waits for an event
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            self._nvml, self.poll_s = None, None
            count: int = importlib.import_module("torch").cuda.device_count()
        else:
            self._nvml.nvmlInit()
            visible = self._visible()
            count = len(visible)
        present = tuple(f"cuda:{index}" for index in range(count))
        missing = set(names) - set(present)
        if missing or not present:
            raise ConfigError(f"{', '.join(sorted(missing)) or 'cuda'}: this machine has {count} CUDA devices")
        self._names = names or present
        if self._nvml is not None:
            self._handles = [visible[present.index(name)] for name in self._names]
            self._events = self._register()

    def devices(self) -> tuple[str, ...]:
        return self._names

    def poll(self) -> Iterator[tuple[str, str]]:
        yield from self._critical_event()
        for name, handle in zip(self._names, self._handles, strict=True):
            try:
                errors = self._uncorrectable(handle)
            except self._nvml.NVMLError_GpuIsLost as error:
                yield name, f"fallen off the bus: {error}"
            else:
                if errors:
                    yield name, f"{errors} uncorrectable ECC errors"

    def _critical_event(self) -> Iterator[tuple[str, str]]:
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._events, EVENT_WAIT_MS)
        except self._nvml.NVMLError_Timeout:
            return
        if event.eventData not in APPLICATION_XIDS:
            bus = self._nvml.nvmlDeviceGetPciInfo(event.device).busId
            for name, handle in zip(self._names, self._handles, strict=True):
                if self._nvml.nvmlDeviceGetPciInfo(handle).busId == bus:
                    yield name, f"Xid {event.eventData}"

    def _visible(self) -> list[Any]:
        """CUDA counts only the devices that CUDA_VISIBLE_DEVICES names; NVML counts all of them."""
        nvml, visible = self._nvml, os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = [name.strip() for name in visible.split(",") if name.strip()]
        return [
            nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
            for name in names
        ]

    def _register(self) -> Any:
        events = self._nvml.nvmlEventSetCreate()
        for handle in self._handles:
            self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _uncorrectable(self, handle: Any) -> int:
        """Since the driver was loaded; 0 on a device without ECC."""
        nvml = self._nvml
        try:
            return int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        except nvml.NVMLError_NotSupported:
            return 0
