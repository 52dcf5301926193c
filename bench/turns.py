"""One rank of `bench.steady`: trains when it is told to, so many steps, and says how long each of them took."""

import pkgutil
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

import everstep
from bench.steady import BARRIER, KINDS, TURN
from bench.workload import Workload


def turns(line: socket.socket) -> Iterator[tuple[str, int, int]]:
    while len(order := line.recv(TURN.size, socket.MSG_WAITALL)) == TURN.size:
        kind, steps, batch = TURN.unpack(order)
        yield KINDS[kind], steps, batch


def train(line: socket.socket, work: Workload, step: Callable[[str], None]) -> None:
    for kind, steps, batch in turns(line):
        if len(work.batch) != batch:
            work.batch = torch.randn(batch, work.batch.shape[1])
        times = []
        begin = time.perf_counter()
        for _ in range(steps):
            step(kind)
            now = time.perf_counter()
            times.append(now - begin)
            begin = now
        line.sendall(struct.pack(f"<{steps}d", *times))


def main() -> None:
    how, port, make = sys.argv[1], int(sys.argv[2]), pkgutil.resolve_name(sys.argv[3])
    job = everstep.init() if how == "everstep" else None
    if job is None:
        dist.init_process_group("gloo")
    work = make()
    line = socket.create_connection(("127.0.0.1", port))
    line.sendall(bytes([dist.get_rank()]))
    if job is None:
        token = torch.zeros(1)

        def plain(kind: str) -> None:
            work.backward()
            if kind == BARRIER:
                dist.all_reduce(token)
            work.update()

        train(line, work, plain)
        return
    job.protect(model=work.model, optimizer=work.optimizer)
    steps = job.steps(1_000_000_000)

    def protected(_: str) -> None:
        with next(steps):
            work.step()

    train(line, work, protected)


if __name__ == "__main__":
    main()
