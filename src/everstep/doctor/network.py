"""The network between the ranks: the interface that Gloo would take, and how fast names are looked up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from everstep.doctor.finding import Finding, Settings, failure, ok, warning
from everstep.launch.machine import Interface, interfaces, trouble_with

SLOW_S = 0.2
"""A look-up that takes longer shows in every start."""
PATIENCE_S = 6.0
"""A resolver that does not answer takes 5 s to say so."""

_LOOPBACK = "lo"


def interface(settings: Settings, present: Mapping[str, Interface], host: str | None) -> Finding:
    """As `everstep run` and `everstep controller` choose it. ``host`` is the address of this host's name."""
    name = "interface"
    several = settings.nodes > 1
    others = [other for other, state in present.items() if other != _LOOPBACK and not state.trouble]
    give = f"give --interface one of {', '.join(others)}" if others else "bring up an interface between the machines"
    wanted = settings.interface or (None if several else _LOOPBACK)
    if wanted is None:
        found = f"none is named, so Gloo takes the address of the host's name, {host or 'which has none'}"
        if host is None or ip_address(host.partition("%")[0]).is_loopback:
            return failure(name, found, breaks="other machines cannot reach this one", fix=give)
        return warning(name, found, breaks="nothing, if that is the network between the machines", fix=give)
    if trouble := trouble_with(wanted, present):
        return failure(name, f"{wanted} {trouble}", breaks="Gloo cannot listen, so no group is made", fix=give)
    if several and wanted == _LOOPBACK:
        return failure(
            name, f"{wanted}, for {settings.nodes} nodes", breaks="other machines cannot reach this one", fix=give
        )
    return ok(name, f"{wanted}, {present[wanted].addresses[0]}")


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Lookup:
    """What came of one."""

    asked: str
    answer: str | None
    seconds: float
    error: str = ""


def look_up(asked: str, ask: Callable[[str], str], patience_s: float = PATIENCE_S) -> Lookup:
    """In a thread of its own: a resolver can be waited for, but not interrupted."""
    said: list[tuple[str | None, str]] = []

    def work() -> None:
        try:
            said.append((ask(asked), ""))
        except OSError as error:
            said.append((None, error.strerror or str(error)))

    begin = time.monotonic()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(patience_s)
    answer, error = said[0] if said else (None, f"no answer within {patience_s:g} s")
    return Lookup(asked, answer, time.monotonic() - begin, error)


def address_of(host: str) -> str:
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def name_of(address: str) -> str:
    return socket.gethostbyaddr(address)[0]


def network(settings: Settings) -> list[Finding]:
    forward = look_up(socket.gethostname(), address_of)
    findings = [interface(settings, interfaces(), forward.answer), judge("host name", forward)]
    if forward.answer is not None:
        findings.append(judge("reverse name", look_up(forward.answer, name_of)))
    return findings


def judge(name: str, lookup: Lookup) -> Finding:
    """everstep itself looks up no names but that of the controller; torch and what scripts use do."""
    breaks = "libraries that look it up (TCPStore at each connection, Gloo without --interface) are slow, or fail"
    took = f"{lookup.seconds * 1000:.0f} ms"
    if lookup.answer is None:
        said = f"{lookup.asked}: {lookup.error}, after {took}"
        return warning(name, said, breaks=breaks, fix="name this machine and its address in /etc/hosts")
    found = f"{lookup.asked} is {lookup.answer}, {took}"
    if lookup.seconds > SLOW_S:
        return warning(name, found, breaks=breaks, fix="name this machine in /etc/hosts, or repair its name server")
    return ok(name, found)
