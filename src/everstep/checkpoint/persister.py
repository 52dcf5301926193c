"""k1: the process that streams sealed slots to storage while the next steps train. One per node, a child of the agent.

It takes orders one by one from a socketpair that keeps the packets apart, and answers each with a receipt. It has the
lowest priority, writes no slot, and ends with its agent.

`python -m everstep.checkpoint.persister --control FD --agent PID`
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from everstep.checkpoint import files, names
from everstep.checkpoint.slot import SlotReader
from everstep.checkpoint.store import Store, open_store
from everstep.core.events import Checkpoint
from everstep.errors import CheckpointError, StateError
from everstep.fork import die_with
from everstep.types import Rank
from everstep.wire.codec import Codec
from everstep.wire.messages import Receipt

PACKET_BYTES = 1 << 16
_LOWEST = 19
# A scheduler's SIGTERM to all must not end what the agent still waits for.
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Write:
    """Make this checkpoint, which is in this slot, durable."""

    rank: Rank
    checkpoint: Checkpoint
    slot: str
    """The file of the slot."""
    directory: str
    """As `open_store` reads it."""


WRITES = Codec[Write](Write)
RECEIPTS = Codec[Receipt](Receipt)


def persist(order: Write, open_: Callable[[str], Store] = open_store) -> Receipt:
    """Carry it out. Whatever is wrong with the slot or the storage is in the receipt."""
    checkpoint = order.checkpoint
    file = names.file_of(order.rank)
    try:
        store = open_(order.directory)
        with SlotReader(Path(order.slot)) as slot:
            content = slot.read(checkpoint)
            if content.manifest.rank != order.rank:
                raise CheckpointError(f"{slot.path} is a slot of rank {content.manifest.rank}")
            name = f"{names.directory_of(checkpoint)}/{file}"
            written = files.write(store, name, content.manifest, content.read_into, check=lambda: slot.read(checkpoint))
    except (CheckpointError, StateError) as error:
        return Receipt(order.rank, checkpoint, error=str(error))
    except OSError as error:
        return Receipt(order.rank, checkpoint, error=f"{error.filename or order.directory}: {error.strerror}")
    return Receipt(order.rank, checkpoint, file, written.size_bytes, written.digest)


def serve(control: socket.socket, open_: Callable[[str], Store] = open_store) -> None:
    """Until the agent closes its end."""
    with suppress(BrokenPipeError, ConnectionResetError):
        while packet := control.recv(PACKET_BYTES):
            control.send(RECEIPTS.encode(persist(WRITES.decode(packet), open_)))


def main(open_: Callable[[str], Store] = open_store) -> None:
    parser = argparse.ArgumentParser(prog="everstep.checkpoint.persister", description=__doc__)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--agent", type=int, required=True)
    options = parser.parse_args()
    die_with(options.agent)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    lower_priority()
    serve(socket.socket(fileno=options.control), open_)


def lower_priority() -> None:
    """Take only what training leaves, of the processors and of the disk."""
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST)
    with suppress(psutil.AccessDenied, OSError):  # a container may forbid it; then it is only less polite
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


if __name__ == "__main__":
    main()
