"""The devices of a node, and who says that one is sick: a plugin, built in or from the group `everstep.devices`.

A plugin is a function that is called with what the user wrote behind its name and returns `Devices`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from everstep.agent.devices.cpu import CpuDevices
from everstep.agent.devices.file import FileDevices
from everstep.errors import ConfigError

GROUP = "everstep.devices"


class Devices(Protocol):
    """What a plugin gives. A device has one worker at most; its index in `devices` is LOCAL_RANK."""

    poll_s: float | None
    """Pause between two polls; 0 for a plugin that waits for an event in `poll`, None if there is nothing to poll."""

    def devices(self) -> tuple[str, ...]:
        """The names, always in the same order."""

    def poll(self) -> Iterable[tuple[str, str]]:
        """Devices that are sick, with the evidence. Called in a thread of its own, so it may wait."""


def open_devices(spec: str) -> Devices:
    """``4`` slots on the processor, names as ``a,b``, or a plugin as ``NAME[:ARGUMENT]``: ``cuda:0,cuda:2``.

    With nothing: what this machine has.
    """
    if spec.isdecimal():
        return CpuDevices(tuple(f"cpu:{index}" for index in range(int(spec))))
    if not spec:
        spec = "cuda" if Path("/dev/nvidia0").exists() else "cpu"
    name, _, argument = spec.partition(":")
    if (plugin := _find(name)) is not None:
        return plugin(argument)
    if ":" in spec:
        there = ", ".join(sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))
        raise ConfigError(f"devices {spec!r}: no plugin has the name {name!r}, there are {there}; names have no colon")
    return CpuDevices(tuple(part.strip() for part in spec.split(",")))


def _cpu(argument: str) -> Devices:
    """``cpu:0,cpu:1`` are names; ``cpu`` alone has as many slots as there are cores for us."""
    if not argument:
        return open_devices(str(len(os.sched_getaffinity(0))))
    return CpuDevices(tuple(part.strip() for part in f"cpu:{argument}".split(",")))


def _cuda(argument: str) -> Devices:
    from everstep.agent.devices.cuda import CudaDevices

    return CudaDevices(tuple(part.strip() for part in f"cuda:{argument}".split(",")) if argument else ())


_BUILT_IN: dict[str, Callable[[str], Devices]] = {"cpu": _cpu, "cuda": _cuda, "file": FileDevices}


def _find(name: str) -> Callable[[str], Devices] | None:
    if (built_in := _BUILT_IN.get(name)) is not None:
        return built_in
    for point in entry_points(group=GROUP, name=name):
        try:
            found: Callable[[str], Devices] = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"device plugin {name!r} ({point.value}) cannot be imported: {error}") from error
        return found
    return None


class DeviceWatch:
    """Polls a plugin in a daemon thread: a driver that hangs must hold up neither the agent nor its end."""

    def __init__(self, devices: Devices, sick: Callable[[str, str], None], failed: Callable[[Exception], None]) -> None:
        self._devices = devices
        self._sick = sick
        self._failed = failed
        self._stopped = threading.Event()
        if devices.poll_s is not None:
            threading.Thread(target=self._run, args=(devices.poll_s,), name="devices", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self, poll_s: float) -> None:
        told: set[str] = set()
        try:
            while not self._stopped.wait(poll_s):
                for device, evidence in self._devices.poll():
                    if device not in told:
                        told.add(device)
                        self._sick(device, evidence)
        except Exception as error:  # noqa: BLE001  a plugin is not ours: what it raises ends the watch, not the agent
            self._failed(error)
