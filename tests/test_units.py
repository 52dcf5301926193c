"""Durations and sizes: what can be written, what is shown, and that the one reads the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.errors import ConfigError
from everstep.units import read_duration, read_size, write_duration, write_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0.5", 0.5), ("90s", 90), ("2m30s", 150), ("3h", 10_800), ("7d", 604_800), ("20ms", 0.02)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "-3h", "nan", "inf", "3x", "h", "2m 30s", "1h30", "five"])
def test_what_is_no_duration_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{text!r} is no duration: give seconds, or units as in 2m30s"):
        read_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0012, "1.2ms"),
        (0.35, "350ms"),
        (1, "1s"),
        (34.21, "34.2s"),
        (59.96, "1m"),
        (150, "2m30s"),
        (3599.6, "1h"),
        (3660, "1h01m"),
        (86_399, "1d"),
        (90_000, "1d01h"),
        (604_800, "7d"),
    ],
)
def test_a_duration_is_shown(seconds: float, text: str) -> None:
    assert write_duration(seconds) == text


@given(seconds=st.floats(1e-3, 1e9))
def test_a_duration_that_is_shown_can_be_written(seconds: float) -> None:
    assert read_duration(write_duration(seconds)) == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 2**20),
        ("1B", 1),
        ("3k", 3000),
        ("7Ki", 7 * 1024),
        ("512 MB", 512 * 10**6),
        ("2G", 2 * 10**9),
        ("2gb", 2 * 10**9),
        ("2GB", 2 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("1TiB", 2**40),
    ],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0GB", "-1GB", "GB", "2PB", "2 G B", "nan", "0.1B"])
def test_what_is_no_size_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{text!r} is no size: give bytes, or units as in 512MB"):
        read_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (2048, "2.05 KB"), (999_900, "1 MB"), (2 * 10**9, "2 GB"), (2e15, "2000 TB")],
)
def test_a_size_is_shown(size: float, text: str) -> None:
    assert write_size(size) == text


@given(size=st.integers(1, 10**18))
def test_a_size_that_is_shown_can_be_written(size: int) -> None:
    assert read_size(write_size(size)) == pytest.approx(size, rel=0.006)
