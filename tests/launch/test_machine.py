"""Machines that a job does not fit on, and interfaces on which its ranks cannot meet."""

from __future__ import annotations

import re
import resource

import pytest

from everstep.errors import ConfigError, ResourceError
from everstep.launch import machine
from everstep.launch.machine import Interface, check_interface, check_room

PRESENT = {"lo": Interface(True, ("127.0.0.1",)), "eth0": Interface(False, ("10.0.0.7",)), "tap0": Interface(True, ())}


@pytest.mark.parametrize(
    ("name", "trouble"), [("eth0", "is down"), ("tap0", "has no address"), ("eth1", "does not exist")]
)
def test_an_interface_that_cannot_be_used_is_told_with_those_that_can(name: str, trouble: str) -> None:
    check_interface("lo", PRESENT)
    with pytest.raises(ConfigError, match=f"^--interface {name} {trouble}: this machine has lo$"):
        check_interface(name, PRESENT)


def test_this_machine_has_room_for_some_workers() -> None:
    check_room(2)


@pytest.mark.parametrize(
    ("what", "ask", "there"),
    [
        ("bytes of memory", "available_bytes", 100 * machine.WORKER_BYTES),
        ("open files (ulimit -n)", "files_allowed", 100 * machine.WORKER_FILES),
        ("threads (ulimit -u)", "threads_allowed", 100 * machine.WORKER_THREADS),
    ],
)
def test_more_workers_than_a_machine_allows_are_refused_with_how_many_it_does(
    monkeypatch: pytest.MonkeyPatch, what: str, ask: str, there: int
) -> None:
    for other in ("available_bytes", "files_allowed", "threads_allowed"):
        monkeypatch.setattr(machine, other, lambda: 2**63)
    monkeypatch.setattr(machine, ask, lambda: there)
    check_room(100)
    with pytest.raises(ResourceError, match=rf"^101 workers need \d+ {re.escape(what)} .*: give .* 100 at most"):
        check_room(101)


def test_the_limits_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (7 + kind, 9 + kind))
    assert machine.files_allowed() == 7 + resource.RLIMIT_NOFILE
    assert machine.threads_allowed() == 7 + resource.RLIMIT_NPROC
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert machine.files_allowed() > 2**60
    assert 0 < machine.threads_allowed() < 2**40
