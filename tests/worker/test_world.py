"""The groups of a process from its first to its last: real Gloo groups, of one rank."""

import subprocess
import sys

from everstep.worker.groups.gloo import GlooSeam

ENDS_AFTER_RECOVERIES = """
import atexit, torch, torch.distributed as dist
from everstep.types import Generation
from everstep.worker.groups.gloo import GlooSeam
from everstep.worker.groups.world import World

world = World(GlooSeam(), lambda *_: None)
atexit.register(world.close)
world.begin(0, 1, Generation(1))
for _ in range(8):
    dist.new_group([0])
for number in range(2, 10):
    world.cut(Generation(number))
    world.connect(Generation(number))
    dist.all_reduce(torch.ones(1000))
print("done")
"""


def test_a_script_that_ends_right_after_a_recovery_is_not_aborted() -> None:
    """Its old groups are still being destroyed, by threads that come back to Python."""
    script = subprocess.run(
        [sys.executable, "-c", ENDS_AFTER_RECOVERIES],
        env={"GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (script.returncode, script.stdout) == (0, "done\n"), script.stderr


GROUP_OF_ONE = ENDS_AFTER_RECOVERIES.partition("for _")[0]


def test_the_groups_are_on_the_interface_that_the_environment_names() -> None:
    script = subprocess.run(
        [sys.executable, "-c", GROUP_OF_ONE],
        env={"GLOO_SOCKET_IFNAME": "nope0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert script.returncode == 1
    assert "ConfigError: interface nope0 (GLOO_SOCKET_IFNAME) does not exist, is down or has" in script.stderr
    assert "this machine has lo" in script.stderr


def test_of_an_error_of_gloo_it_keeps_what_happened() -> None:
    error = (
        "0: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:58055. This is typically caused by a remote worker crashing. Check the logs of the remote worker "
        "before reporting an error. GLHF! 🏖️"
    )
    assert GlooSeam().brief(error) == "0: Connection closed by peer [127.0.0.1]:58055"
    assert GlooSeam().brief("0: Timed out waiting 5ms") == "0: Timed out waiting 5ms"
