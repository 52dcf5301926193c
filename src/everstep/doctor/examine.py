"""All checks, in the order in which a person would want to repair what they find."""

from __future__ import annotations

from everstep.doctor import limits, memory, network, software
from everstep.doctor.finding import Finding, Settings
from everstep.launch.machine import available_bytes


def examine(settings: Settings) -> list[Finding]:
    return [
        software.torch(),
        software.pidfd(),
        *network.network(settings),
        memory.shared_memory(settings),
        memory.stale(),
        memory.memory(settings, available_bytes(), memory.slots_taken(settings)),
        memory.run_directory(settings),
        *limits.limits(settings),
        limits.processors(settings),
        *limits.clocks(settings),
    ]
