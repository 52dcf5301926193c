"""Slots on the processor: devices that never get sick by themselves."""

from __future__ import annotations

from everstep.errors import ConfigError


class CpuDevices:
    poll_s: float | None = None

    def __init__(self, names: tuple[str, ...]) -> None:
        if not all(names) or len(set(names)) < len(names):
            raise ConfigError(f"devices {','.join(names)!r}: every device needs a name of its own")
        if not names:
            raise ConfigError("a node needs at least one device: give --devices 1 or more")
        self._names = names

    def devices(self) -> tuple[str, ...]:
        return self._names

    def poll(self) -> tuple[tuple[str, str], ...]:
        return ()
