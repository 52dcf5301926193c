"""Devices that a directory describes: ``NAME.json`` with ``{"healthy": false, "evidence": "Xid 79"}`` for each.

For tests, and for vendors whose health monitor can write a file. A file that cannot be understood says nothing
about its device: who writes it in place, not by a rename, is read in the middle now and then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from everstep.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Health:
    healthy: bool
    evidence: str = ""


_DECODER = msgspec.json.Decoder(_Health)


class FileDevices:
    poll_s: float | None = 0.25

    def __init__(self, directory: str) -> None:
        self._paths = {path.stem: path for path in sorted(Path(directory).glob("*.json"))}
        if not self._paths:
            raise ConfigError(f"devices file:{directory}: there is no NAME.json in that directory")
        self._trouble: dict[str, str] = {}

    def devices(self) -> tuple[str, ...]:
        return tuple(self._paths)

    def poll(self) -> Iterator[tuple[str, str]]:
        for device, path in self._paths.items():
            health = self._read(device, path)
            if health is not None and not health.healthy:
                yield device, health.evidence or f"{path} says that it is not healthy"

    def _read(self, device: str, path: Path) -> _Health | None:
        try:
            health = _DECODER.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            if self._trouble.get(device) != str(error):  # said once, not at every poll
                log.warning("nothing is known about device %s: %s: %s", device, path, error)
            self._trouble[device] = str(error)
            return None
        self._trouble.pop(device, None)
        return health
