"""Durations and sizes as people write them, and back: ``2m30s``, ``2GB``. Knows no option and no command."""

from __future__ import annotations

import math
import re

from everstep.errors import ConfigError

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"B": 1} | {
    prefix + unit: base**power
    for unit, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("K", "M", "G", "T"), 1)
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)", re.IGNORECASE)


def read_duration(text: str) -> float:
    """Seconds: ``90``, ``90s``, ``2m30s``, ``3h``, ``7d``, ``20ms``. More than 0, and it ends."""
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        seconds = math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)
    else:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{text!r} is no duration: give seconds, or units as in 2m30s, 3h, 7d; more than 0")
    return seconds


def write_duration(seconds: float) -> str:
    """Two units at most: ``350ms``, ``34.2s``, ``2m30s``, ``3h05m``, ``7d``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g}ms"
    if seconds < 59.95:
        return f"{seconds:.3g}s"
    large, small = ("m", "s") if seconds < 3599.5 else ("h", "m") if seconds < 86_370 else ("d", "h")
    whole, rest = divmod(round(seconds / _SECONDS[small]), round(_SECONDS[large] / _SECONDS[small]))
    return f"{whole}{large}" + (f"{rest:02}{small}" if rest else "")


def read_size(text: str) -> int:
    """Bytes: ``2GB`` (powers of 1000), ``2GiB`` (of 1024), ``1048576``. More than 0."""
    match = _SIZE.fullmatch(text.strip())
    unit = "B" if match is None else _unit(match[2])
    size = 0 if match is None or unit not in _BYTES else int(float(match[1]) * _BYTES[unit])
    if size < 1:
        raise ConfigError(f"{text!r} is no size: give bytes, or units as in 512MB, 2GB, 1.5GiB; more than 0")
    return size


def _unit(text: str) -> str:
    """``g``, ``gb`` and ``GB`` are the same."""
    return text[:1].upper().removesuffix("B") + ("iB" if "i" in text.lower() else "B")


def write_size(size_bytes: float) -> str:
    """Powers of 1000: ``2.1 GB``."""
    for unit in ("TB", "GB", "MB", "KB"):
        if size_bytes >= 0.9995 * _BYTES[unit]:
            number = size_bytes / _BYTES[unit]
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"
    return f"{size_bytes:.0f} B"
