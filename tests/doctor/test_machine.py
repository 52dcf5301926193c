"""Each check, on machines that lack what it looks for; and on this one, which has it."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from everstep.agent.shm import SharedDirectory, find_stale
from everstep.controller.cadence import Every
from everstep.doctor import limits, memory, network, software
from everstep.doctor.examine import examine
from everstep.doctor.finding import Finding, Level, Settings
from everstep.doctor.network import Lookup
from everstep.launch.machine import Interface, available_bytes, interfaces
from everstep.types import NodeId

SETTINGS = Settings(nproc=4, cores=4)
INFINITE = resource.RLIM_INFINITY
GB = 10**9


def is_ok(finding: Finding) -> bool:
    return finding.level is Level.OK


def test_what_is_not_ok_says_what_breaks_and_how_to_fix_it(tmp_path: Path) -> None:
    findings = examine(
        replace(SETTINGS, nodes=2, state_bytes=10**15, every=Every(steps=1), run_dir=tmp_path / "a" / "b")
    )
    assert len({finding.name for finding in findings}) == len(findings) >= 13
    for finding in findings:
        assert finding.found
        assert is_ok(finding) == (not finding.breaks) == (not finding.fix)
    assert {finding.name for finding in findings if finding.level is Level.FAILURE} >= {"/dev/shm", "memory"}
    assert list(tmp_path.iterdir()) == [], "it changes nothing"


# ── software ─────────────────────────────────────────────────────────────────────────────────────────────


def test_this_torch_and_this_kernel_will_do() -> None:
    assert is_ok(software.torch())
    assert is_ok(software.pidfd())


def test_the_range_is_the_one_that_the_package_was_installed_with() -> None:
    assert [rule[0] for rule in software.required()] in (["<", ">"], [">", "<"])


@pytest.mark.parametrize(
    ("version", "gloo", "level", "words"),
    [
        ("2.13.0+cpu", True, Level.OK, "2.13.0+cpu, with Gloo"),
        ("2.14.1", True, Level.WARNING, "2.14.1"),
        ("2.13.0", False, Level.FAILURE, "without Gloo"),
        ("2.12.9", True, Level.FAILURE, "2.12.9, not >=2.13, <2.15"),
        ("2.15.0", True, Level.FAILURE, "2.15.0, not"),
        ("2.9.1", True, Level.FAILURE, "2.9.1, not"),
    ],
)
def test_a_torch_out_of_range_is_a_failure_and_an_untested_one_a_warning(
    version: str, gloo: bool, level: Level, words: str
) -> None:
    finding = software.judge_torch(version, [">=2.13", "<2.15"], gloo=gloo)
    assert finding.level is level
    assert words in finding.found


# ── network ──────────────────────────────────────────────────────────────────────────────────────────────

PRESENT = {
    "lo": Interface(True, ("127.0.0.1",)),
    "eth0": Interface(True, ("10.0.0.7",)),
    "ib0": Interface(False, ("10.1.0.7",)),
    "tap0": Interface(True, ()),
}
FAR = "10.0.0.7"


@pytest.mark.parametrize(
    ("nodes", "wanted", "host", "level", "words"),
    [
        (1, None, None, Level.OK, "lo, 127.0.0.1"),
        (1, "eth0", None, Level.OK, "eth0, 10.0.0.7"),
        (2, "eth0", None, Level.OK, "eth0"),
        (1, "eth9", FAR, Level.FAILURE, "eth9 does not exist"),
        (2, "ib0", FAR, Level.FAILURE, "ib0 is down"),
        (2, "tap0", FAR, Level.FAILURE, "tap0 has no address"),
        (2, "lo", FAR, Level.FAILURE, "lo, for 2 nodes"),
        (2, None, FAR, Level.WARNING, "none is named, so Gloo takes the address of the host's name, 10.0.0.7"),
        (2, None, "127.0.1.1", Level.FAILURE, "the host's name, 127.0.1.1"),
        (2, None, "::1", Level.FAILURE, "the host's name, ::1"),
        (2, None, None, Level.FAILURE, "which has none"),
    ],
)
def test_the_interface_must_reach_the_other_ranks(
    nodes: int, wanted: str | None, host: str | None, level: Level, words: str
) -> None:
    finding = network.interface(replace(SETTINGS, nodes=nodes, interface=wanted), PRESENT, host)
    assert finding.level is level
    assert words in finding.found
    assert is_ok(finding) or finding.fix == "give --interface one of eth0"


def test_this_machine_has_a_loopback() -> None:
    assert interfaces()["lo"].addresses[0] == "127.0.0.1"


def test_a_name_that_is_found_at_once_is_well() -> None:
    lookup = network.look_up("localhost", network.address_of)
    assert lookup.answer in ("127.0.0.1", "::1")
    assert is_ok(network.judge("host name", replace(lookup, seconds=0.001)))


def test_a_name_that_nobody_knows_is_told() -> None:
    def ask(name: str) -> str:
        raise OSError(-2, "Name or service not known")

    finding = network.judge("host name", network.look_up("here.invalid", ask))
    assert finding.level is Level.WARNING
    assert finding.found.startswith("here.invalid: Name or service not known, after ")
    assert "/etc/hosts" in finding.fix


def test_a_resolver_that_does_not_answer_is_not_waited_for() -> None:
    release = Event()

    def ask(name: str) -> str:
        release.wait(60)
        return name

    lookup = network.look_up("here", ask, patience_s=0.01)
    release.set()
    assert (lookup.answer, lookup.error) == (None, "no answer within 0.01 s")


def test_a_slow_name_server_is_told() -> None:
    finding = network.judge("reverse name", Lookup("10.0.0.7", "gpu07", 5.0))
    assert finding.level is Level.WARNING
    assert finding.found == "10.0.0.7 is gpu07, 5000 ms"


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────


def test_two_slots_of_the_state_must_fit_into_shared_memory(tmp_path: Path) -> None:
    assert is_ok(memory.shared_memory(SETTINGS, tmp_path))
    assert is_ok(memory.shared_memory(replace(SETTINGS, state_bytes=1000), tmp_path))
    large = replace(SETTINGS, state_bytes=10**15)
    finding = memory.shared_memory(replace(large, every=Every(steps=50)), tmp_path)
    assert finding.level is Level.FAILURE
    assert "2 slots of 1000 TB need 2000 TB" in finding.found
    assert "remount,size=" in finding.fix
    assert is_ok(memory.shared_memory(replace(large, every=Every()), tmp_path))


def test_a_job_that_was_not_told_to_take_checkpoints_trains_without_if_the_script_would_be_left_no_room(
    tmp_path: Path,
) -> None:
    free = shutil.disk_usage(tmp_path).free
    for ranks, share, level in (
        (1, 0.2, Level.OK),
        (1, 0.4, Level.WARNING),
        (4, 0.37, Level.OK),
        (4, 0.45, Level.WARNING),
    ):
        settings = replace(SETTINGS, nproc=ranks, state_bytes=int(share * free))
        assert memory.shared_memory(settings, tmp_path).level is level, (ranks, share)
        assert is_ok(memory.shared_memory(replace(settings, every=Every(steps=50)), tmp_path))
        taken = memory.slots_taken(settings, tmp_path)
        assert taken == (0 if level is Level.WARNING else 2 * int(share * free))


def test_boards_must_fit_too(tmp_path: Path) -> None:
    finding = memory.shared_memory(replace(SETTINGS, nproc=10**12), tmp_path)
    assert (finding.level, finding.breaks) == (Level.FAILURE, "no worker starts")


def test_a_machine_without_shared_memory(tmp_path: Path) -> None:
    finding = memory.shared_memory(SETTINGS, tmp_path / "nix")
    assert (finding.level, finding.found) == (Level.FAILURE, "No such file or directory")


@pytest.mark.parametrize(
    ("settings", "free", "level"),
    [
        (SETTINGS, 2 * GB, Level.OK),
        (SETTINGS, 1 * GB, Level.FAILURE),
        (replace(SETTINGS, state_bytes=GB), 8 * GB, Level.OK),
        (replace(SETTINGS, state_bytes=GB), 5 * GB, Level.WARNING),
        (replace(SETTINGS, state_bytes=GB), 4 * GB, Level.FAILURE),
        (replace(SETTINGS, state_bytes=GB, cuda=4), 4 * GB, Level.OK),
    ],
)
def test_workers_their_state_and_two_slots_need_memory(settings: Settings, free: int, level: Level) -> None:
    assert memory.memory(settings, free, 2 * (settings.state_bytes or 0)).level is level


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("300\n")
    for limit, free in (("1300\n", 1000), ("200\n", 0)):
        (tmp_path / "memory.max").write_text(limit)
        assert available_bytes(tmp_path) == free
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) > 1300


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Path]:
    with SharedDirectory("job-1", NodeId("a"), tmp_path) as directory:
        yield directory.path


def test_what_an_ended_job_left_is_found_and_stays(tmp_path: Path, living: Path) -> None:
    assert is_ok(memory.stale(tmp_path))
    left = tmp_path / "everstep-job-2-a"
    left.mkdir()
    (left / "board").write_bytes(bytes(5000))
    assert find_stale(tmp_path) == [left]
    finding = memory.stale(tmp_path)
    assert finding.level is Level.WARNING
    assert finding.found == f"1 directory of ended jobs, 5 KB, such as {left}"
    assert left.exists()
    assert living.exists()


def test_a_run_directory_that_is_not_there_yet_needs_a_parent_to_be_made_in(tmp_path: Path) -> None:
    assert is_ok(memory.run_directory(replace(SETTINGS, run_dir=tmp_path / "runs" / "x")))
    assert is_ok(memory.run_directory(replace(SETTINGS, run_dir=tmp_path)))


@pytest.mark.parametrize("place", ["/proc/nix", "/dev/null/x"])
def test_a_run_directory_that_cannot_be_made(place: str) -> None:
    finding = memory.run_directory(replace(SETTINGS, run_dir=Path(place)))
    assert finding.level is Level.FAILURE
    assert finding.found.startswith(f"{place}: ")


# ── limits and clocks ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("nodes", "soft", "hard", "level", "fix"),
    [
        (1, 1024, 1024, Level.OK, ""),
        (1, INFINITE, INFINITE, Level.OK, ""),
        (256, 1024, 10**6, Level.FAILURE, "ulimit -n 8320"),
        (256, 1024, INFINITE, Level.FAILURE, "ulimit -n 8320"),
        (256, 1024, 4096, Level.FAILURE, "raise nofile to 8320"),
    ],
)
def test_each_rank_needs_open_files(nodes: int, soft: int, hard: int, level: Level, fix: str) -> None:
    finding = limits.open_files(replace(SETTINGS, nodes=nodes), soft, hard)
    assert finding.level is level
    assert finding.fix.startswith(fix)


def test_locked_memory_matters_to_cuda_only() -> None:
    assert is_ok(limits.locked_memory(SETTINGS, 65_536))
    assert is_ok(limits.locked_memory(replace(SETTINGS, cuda=4), INFINITE))
    assert limits.locked_memory(replace(SETTINGS, cuda=4), 65_536).level is Level.WARNING


@pytest.mark.parametrize(
    ("soft", "pattern", "level"),
    [
        (0, "core", Level.OK),
        (0, "", Level.OK),
        (INFINITE, "core", Level.WARNING),
        (0, "|/usr/lib/systemd/systemd-coredump %P", Level.WARNING),
        (0, "|", Level.WARNING),
    ],
)
def test_a_core_file_delays_the_news_of_a_death(soft: int, pattern: str, level: Level) -> None:
    assert limits.core_files(soft, pattern).level is level


def test_more_ranks_than_cores_are_slow_without_cuda() -> None:
    assert is_ok(limits.processors(SETTINGS))
    assert limits.processors(replace(SETTINGS, nproc=5)).level is Level.WARNING
    assert is_ok(limits.processors(replace(SETTINGS, nproc=5, cuda=5)))


@pytest.mark.parametrize(
    ("source", "resolution_s", "level"),
    [("tsc", 1e-9, Level.OK), ("", 1e-9, Level.OK), ("hpet", 1e-9, Level.WARNING), ("tsc", 0.004, Level.WARNING)],
)
def test_a_slow_or_coarse_clock_is_told(source: str, resolution_s: float, level: Level) -> None:
    assert limits.steady_clock(source, resolution_s).level is level


@pytest.mark.parametrize(("held", "level"), [(True, Level.OK), (False, Level.WARNING), (None, Level.WARNING)])
def test_clocks_of_several_nodes_have_to_agree(held: bool | None, level: Level) -> None:
    assert limits.wall_clock(replace(SETTINGS, nodes=2), held).level is level
    assert is_ok(limits.wall_clock(SETTINGS, held))
