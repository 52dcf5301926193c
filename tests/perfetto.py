"""Perfetto's own trace processor for tests: Debian's chromium-shell has it as a library for the tests of Chromium.

`python -m tests.perfetto TRACE SQL …` prints the rows as JSON. A process of its own, because what the library is given
is laid out by hand as libc++ lays out strings and vectors, and a mistake in that is no exception.
"""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = Path("/usr/lib/chromium/libtest_trace_processor.so")
BEGIN = "_ZN4base4test22TestTraceProcessorImplC1Ev"
PARSE = "_ZN4base4test22TestTraceProcessorImpl10ParseTraceERKNSt3__16vectorIcNS2_9allocatorIcEEEE"
QUERY = (
    "_ZNK4base4test22TestTraceProcessorImpl12ExecuteQuery"
    "ERKNSt3__112basic_stringIcNS2_11char_traitsIcEENS2_9allocatorIcEEEE"
)
Rows = list[list[str]]

_THREE = struct.Struct("<QQQ")
"""A vector is its begin, its end and the end of its room; a long string its room + 1, its size and its address."""

ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
TRACKS = (
    "select process.name, thread.name, count(slice.id) from thread join process using (upid) "
    "join thread_track using (utid) join slice on slice.track_id = thread_track.id where slice.dur > 0 "
    "group by utid order by pid, tid"
)
ARROWS = (
    "select source.name, from_.name, target.name, to_.name from flow "
    "join slice source on slice_out = source.id join thread_track a on source.track_id = a.id "
    "join thread from_ on from_.utid = a.utid "
    "join slice target on slice_in = target.id join thread_track b on target.track_id = b.id "
    "join thread to_ on to_.utid = b.utid order by flow.id"
)


def ask(trace: Path, *queries: str) -> list[Rows]:
    """The rows of each query. Skips the test where the library is missing: `make browser` installs it on Debian."""
    if not LIBRARY.exists():
        pytest.skip(f"no {LIBRARY} on this machine: install it, on Debian with `make browser`")
    command = [sys.executable, "-m", "tests.perfetto", str(trace), *queries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[Rows] = json.loads(done.stdout)
    return answers


class _Processor:
    """One trace. Objects are returned into room that the caller gives as the first argument."""

    def __init__(self, trace: bytes) -> None:
        self._library = ctypes.CDLL(str(LIBRARY))
        self._this = ctypes.create_string_buffer(64)
        self._library[BEGIN](self._this)
        begin = ctypes.addressof(data := ctypes.create_string_buffer(trace, len(trace)))
        vector = ctypes.create_string_buffer(_THREE.pack(begin, begin + len(data), begin + len(data)), _THREE.size)
        status = ctypes.create_string_buffer(256)
        self._library[PARSE](status, self._this, vector)
        if not status.raw[0] & 1:
            sys.exit(_string(status.raw[8:]))

    def query(self, sql: str) -> Rows:
        text = ctypes.create_string_buffer(sql.encode())
        string = ctypes.create_string_buffer(
            _THREE.pack(len(text) | 1, len(text) - 1, ctypes.addressof(text)), _THREE.size
        )
        result = ctypes.create_string_buffer(256)
        self._library[QUERY](result, self._this, string)
        if error := _string(result.raw[_THREE.size :]):
            sys.exit(error)
        _, *rows = ([_string(cell) for cell in _vector(row)] for row in _vector(result.raw))
        return rows


def _vector(raw: bytes) -> list[bytes]:
    """Its elements, each of them a vector or a string."""
    begin, end, _ = _THREE.unpack_from(raw)
    return [ctypes.string_at(at, _THREE.size) for at in range(begin, end, _THREE.size)]


def _string(raw: bytes) -> str:
    if raw[0] & 1:
        _, size, at = _THREE.unpack_from(raw)
        return ctypes.string_at(at, size).decode()
    return raw[1 : 1 + (raw[0] >> 1)].decode()


if __name__ == "__main__":
    processor = _Processor(Path(sys.argv[1]).read_bytes())
    sys.stdout.write(json.dumps([processor.query(sql) for sql in sys.argv[2:]]))
