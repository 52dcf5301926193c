"""What the machine and the scheduler say, as functions of made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.errors import ConfigError
from everstep.launch.environment import (
    DEFAULT_PORT,
    agent_devices,
    controller_host,
    cuda_devices,
    first_host,
    node_count,
    node_devices,
    node_id,
    parse_address,
)


@pytest.mark.parametrize(
    ("files", "visible", "count"),
    [
        ([], None, 0),
        (["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"], None, 3),
        (["nvidia0", "nvidia1"], "", 0),
        (["nvidia0", "nvidia1"], "1", 1),
        (["nvidia0", "nvidia1", "nvidia2"], "2,0", 2),
        (["nvidia0", "nvidia1"], "0,-1,1", 1),
        (["nvidia0"], "0,1,2", 1),
        (["nvidia0", "nvidia1"], "GPU-4f2c,GPU-77aa", 2),
    ],
)
def test_cuda_devices_are_counted_without_torch(
    tmp_path: Path, files: list[str], visible: str | None, count: int
) -> None:
    for name in files:
        (tmp_path / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert cuda_devices(environ, tmp_path) == tuple(f"cuda:{index}" for index in range(count))


def test_each_node_without_cuda_has_room_for_all_ranks() -> None:
    assert node_devices((), 3, 2) == ["cpu:0,cpu:1,cpu:2"] * 2


def test_a_cuda_device_belongs_to_one_node_and_none_is_left_out() -> None:
    cuda = tuple(f"cuda:{index}" for index in range(5))
    nodes = [names.split(",") for names in node_devices(cuda, 4, 2)]
    assert sorted(device for node in nodes for device in node) == sorted(cuda)
    assert [len(node) for node in nodes] == [3, 2]


def test_more_ranks_than_cuda_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--nproc 3 .* 2 CUDA devices.*at most 2.*CUDA_VISIBLE_DEVICES="):
        node_devices(("cuda:0", "cuda:1"), 3, 1)


@pytest.mark.parametrize(
    ("wanted", "cuda", "offer"),
    [
        ("", (), "8"),
        ("3", (), "3"),
        ("", ("cuda:0", "cuda:1"), "cuda:0,cuda:1"),
        ("1", ("cuda:0", "cuda:1"), "cuda:0"),
        ("file:/var/lib/devices", ("cuda:0",), "file:/var/lib/devices"),
    ],
)
def test_an_agent_offers_what_is_there_or_what_it_is_told(wanted: str, cuda: tuple[str, ...], offer: str) -> None:
    assert agent_devices(wanted, cuda, cores=8) == offer


def test_an_agent_cannot_offer_more_than_there_is() -> None:
    with pytest.raises(ConfigError, match="--devices 2 on a machine with 1 CUDA devices"):
        agent_devices("2", ("cuda:0",), cores=8)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "laptop"),
        ({"SLURM_NODEID": "3"}, "node-3"),
        ({"SLURM_NODEID": "3", "SLURMD_NODENAME": "gpu07"}, "gpu07"),
        ({"SLURMD_NODENAME": "gpu07", "SLURM_LOCALID": "0"}, "gpu07"),
        ({"SLURMD_NODENAME": "gpu07", "SLURM_LOCALID": "1"}, "gpu07-1"),
    ],
)
def test_the_node_has_the_name_that_the_scheduler_gave_it(environ: dict[str, str], expected: str) -> None:
    assert node_id(environ, "laptop") == expected


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("", None),
        ("gpu07", "gpu07"),
        ("gpu07,gpu08", "gpu07"),
        ("gpu[07-09,12],login", "gpu07"),
        ("rack[3,5]-gpu", "rack3-gpu"),
        ("a-b.example.org,c", "a-b.example.org"),
    ],
)
def test_the_first_name_of_a_slurm_list(nodelist: str, first: str | None) -> None:
    assert first_host(nodelist) == first


def test_the_controller_is_where_torch_would_have_its_master() -> None:
    assert controller_host({"MASTER_ADDR": "10.0.0.7", "SLURM_JOB_NODELIST": "gpu[1-4]"}) == "10.0.0.7"
    assert controller_host({"SLURM_JOB_NODELIST": "gpu[1-4]"}) == "gpu1"
    assert controller_host({}) is None


def test_the_number_of_nodes_comes_from_the_scheduler() -> None:
    assert node_count({}) == 1
    assert node_count({"SLURM_NNODES": "4"}) == 4
    with pytest.raises(ConfigError, match="'many' nodes: give --nodes"):
        node_count({"SLURM_NNODES": "many"})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.7:80", ("10.0.0.7", 80)),
        ("gpu07.example.org:0", ("gpu07.example.org", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("gpu07", ("gpu07", DEFAULT_PORT)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", DEFAULT_PORT)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, DEFAULT_PORT) == address


@pytest.mark.parametrize("text", ["", ":80", "host:", "host:65536", "host:x", "::1", "a b:80", "host:80:80"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as HOST:PORT, for example"):
        parse_address(text, DEFAULT_PORT)


def test_without_a_default_the_port_must_be_there() -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address("gpu07")
