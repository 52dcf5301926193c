"""Process groups that live as long as the job: what a script does with them works in every generation."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from tests.e2e.conftest import SCRIPTS, Run

from everstep.worker.groups.local import OPERATIONS
from everstep.worker.groups.stable import StableGroup

INHERITED = {
    *("BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL"),  # constants
    *("_backend_id", "_get_backend_name", "_id", "_pybind11_conduit_v1_", "boxed", "name", "unbox"),
    *("rank", "size", "bound_device_id"),
    *("_register_backend", "_set_default_backend", "get_group_store", "use_pg_for_symm_mem_rendezvous"),
}
"""What torch's own class does right for a group without a backend: it says what it is, and starts nothing."""


def test_every_collective_works_again_after_a_recovery(start: Callable[..., Run]) -> None:
    """Rank 0 dies too: what it told the others before protect() is told to its replacement."""
    faults = ("kill rank=1 step=2 phase=backward", "kill rank=0 step=4 phase=forward when=mid")
    options = [word for fault in faults for word in ("--chaos", fault)]
    run = start("--nproc", "3", "--standby", "1", *options, str(SCRIPTS / "collectives.py"))
    assert run.wait() == 0, run.text()
    for rank in range(3):
        assert f"rank {rank}: all as it should be" in run.text()
    assert run.text().count("killed by SIGKILL") >= len(faults)
    assert "this replacement gives something else than the job began with" in run.text(), "the process number"


def test_no_method_of_a_process_group_is_forgotten() -> None:
    """Each is ours, an operation, or known to be harmless: a new one of a newer torch has to be looked at."""
    methods = {name for name in dir(dist.ProcessGroup) if not name.startswith("__")}
    assert methods - set(vars(StableGroup)) - set(OPERATIONS) <= INHERITED
