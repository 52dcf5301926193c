"""Devices: what the words of a user mean, and when one is sick."""

from __future__ import annotations

import json
import logging
import os
import queue
from pathlib import Path

import pytest

from everstep.agent.devices import Devices, DeviceWatch, open_devices
from everstep.agent.devices.file import FileDevices
from everstep.errors import ConfigError

DEADLINE_S = 10.0


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("2", ("cpu:0", "cpu:1")),
        ("cpu:3", ("cpu:3",)),
        ("cpu:0,cpu:2", ("cpu:0", "cpu:2")),
        ("left, right", ("left", "right")),
        ("one", ("one",)),
        ("cpu", tuple(f"cpu:{index}" for index in range(len(os.sched_getaffinity(0))))),
    ],
)
def test_devices_are_named_as_the_user_says(spec: str, names: tuple[str, ...]) -> None:
    assert open_devices(spec).devices() == names


@pytest.mark.parametrize("spec", ["0", "a,,b", "a,a", "file:/nowhere"])
def test_devices_that_cannot_be_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        open_devices(spec)


@pytest.mark.parametrize("spec", ["fiel:/x", "a,fiel:/x", "gpu:0,gpu:1"])
def test_a_plugin_that_is_not_there_is_no_name_of_a_device(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"no plugin has the name .*, there are cpu, cuda, file; names have no colon"):
        open_devices(spec)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with plugins of its own, as pip would leave it; its module."""
    module = f"plugin_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(
        "from everstep.agent.devices.cpu import CpuDevices\n"
        "def vendor(argument): return CpuDevices((argument, f'{argument}2'))\n"
    )
    info = tmp_path / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    entries = f"vendor = {module}:vendor\nabsent = {module}_nix:vendor\nold = {module}:former\n"
    (info / "entry_points.txt").write_text(f"[everstep.devices]\n{entries}")
    monkeypatch.syspath_prepend(tmp_path)
    return module


def test_a_plugin_comes_from_an_installed_package(installed: str) -> None:
    assert open_devices("vendor:x").devices() == ("x", "x2")


@pytest.mark.parametrize("name", ["absent", "old"])
def test_a_plugin_that_cannot_be_loaded_is_named(installed: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"device plugin '{name}' \({installed}.*\) cannot be imported"):
        open_devices(name)


def write(folder: Path, device: str, text: str) -> None:
    (folder / f"{device}.json").write_text(text)


@pytest.fixture
def devices(tmp_path: Path) -> FileDevices:
    for name in ("gpu:0", "gpu:1"):
        write(tmp_path, name, '{"healthy": true, "vendor": "any"}')
    found = open_devices(f"file:{tmp_path}")
    assert isinstance(found, FileDevices)
    return found


def test_a_file_names_a_device_and_says_that_it_is_sick(devices: FileDevices, tmp_path: Path) -> None:
    assert devices.devices() == ("gpu:0", "gpu:1")
    assert list(devices.poll()) == []
    write(tmp_path, "gpu:1", json.dumps({"healthy": False, "evidence": "Xid 79"}))
    assert list(devices.poll()) == [("gpu:1", "Xid 79")]


@pytest.mark.parametrize("text", ["", '{"healthy": fal', "{}", "[]", '{"healthy": 0}', "\x00"])
def test_a_file_that_cannot_be_understood_is_logged_once_and_judges_nobody(
    devices: FileDevices, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    write(tmp_path, "gpu:0", text)
    with caplog.at_level(logging.WARNING):
        assert list(devices.poll()) == list(devices.poll()) == []
    [record] = caplog.records
    assert "gpu:0" in record.getMessage()


def test_a_file_that_is_gone_judges_nobody(devices: FileDevices, tmp_path: Path) -> None:
    (tmp_path / "gpu:0.json").unlink()
    assert list(devices.poll()) == []


class Scripted:
    """A plugin that finds what it is told to, poll by poll, and then fails."""

    poll_s: float | None = 0.0

    def __init__(self, *polls: list[tuple[str, str]]) -> None:
        self._polls = list(polls)

    def devices(self) -> tuple[str, ...]:
        return ("a", "b")

    def poll(self) -> list[tuple[str, str]]:
        if not self._polls:
            raise OSError("the driver is gone")
        return self._polls.pop(0)


def test_a_sick_device_is_told_once_and_a_plugin_that_fails_is_told_too() -> None:
    plugin: Devices = Scripted([("a", "hot")], [("a", "hot"), ("b", "cold")], [])
    told: queue.Queue[object] = queue.Queue()
    watch = DeviceWatch(plugin, lambda device, evidence: told.put((device, evidence)), told.put)
    assert told.get(timeout=DEADLINE_S) == ("a", "hot")
    assert told.get(timeout=DEADLINE_S) == ("b", "cold")
    assert str(told.get(timeout=DEADLINE_S)) == "the driver is gone"
    watch.stop()
