"""`everstep.core` is pure: its modules import no clock, no I/O, no threads and no torch.

The same core runs behind real sockets, under the explorer and in the simulator. That holds only as long as
nothing in it can look at the world by itself. `everstep.errors` and `everstep.types` are held to the same
rule, or the core would reach through them what it may not import.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
CORE = SRC / "everstep" / "core"
LEAVES = (SRC / "everstep" / "errors.py", SRC / "everstep" / "types.py")

# Deterministic, and without clock, I/O, threads or global state. `random` has a hidden global state.
PURE_STDLIB = frozenset(
    {
        "__future__",
        "abc",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "decimal",
        "enum",
        "fractions",
        "functools",
        "heapq",
        "itertools",
        "math",
        "numbers",
        "operator",
        "re",
        "statistics",
        "string",
        "types",
        "typing",
    }
)
PURE_OURS = ("everstep.core", "everstep.errors", "everstep.types")

# Names that import by value: what they load cannot be read from the source.
DYNAMIC = frozenset({"__import__", "import_module", "importlib", "eval", "exec"})


@dataclass(frozen=True, slots=True)
class Impurity:
    """One import that the core may not have."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: imports {self.module}"


def is_pure(module: str) -> bool:
    """Whether the core may import the module of this absolute name."""
    if module.split(".")[0] in PURE_STDLIB:
        return True
    return any(module == ours or module.startswith(f"{ours}.") for ours in PURE_OURS)


def imported_modules(node: ast.AST, package: str) -> Iterator[str]:
    """Absolute names of what one node imports, when its module lies in `package`."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            # Level 1 is the package itself; each further dot is one parent up.
            parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            base = ".".join([*parents, *([module] if module else [])])
            # `from everstep import wire` names its module in the second half.
            yield from (f"{base}.{alias.name}" if base == "everstep" else base for alias in names)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in DYNAMIC:
            yield f"{name} (a dynamic import)"


def impurities(source: str, file: str, package: str) -> list[Impurity]:
    """Every forbidden import of one module, at any depth, also under `if TYPE_CHECKING`."""
    return [
        Impurity(file, getattr(node, "lineno", 0), module)
        for node in ast.walk(ast.parse(source, filename=file))
        for module in imported_modules(node, package)
        if not is_pure(module)
    ]


def package_of(path: Path) -> str:
    """The package that relative imports in this file start from; an __init__.py is in its own."""
    return ".".join(path.relative_to(SRC).parent.parts)


def test_the_core_and_its_leaves_import_nothing_impure() -> None:
    modules = sorted(CORE.rglob("*.py"))
    assert modules, f"no modules under {CORE}: this test would pass without looking at anything"
    found = [
        impurity
        for path in (*modules, *LEAVES)
        for impurity in impurities(path.read_text(), str(path.relative_to(SRC.parent)), package_of(path))
    ]
    assert not found, "the core must stay pure:\n" + "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import torch", "torch"),
        ("import math, socket", "socket"),
        ("import torch.distributed as dist", "torch.distributed"),
        ("from time import monotonic", "time"),
        ("import asyncio", "asyncio"),
        ("import everstep", "everstep"),
        ("import everstep.core_helpers", "everstep.core_helpers"),
        ("from everstep import wire", "everstep.wire"),
        ("from ..wire import x", "everstep.wire"),
        ("from .. import wire", "everstep.wire"),
        ("def f():\n    import threading", "threading"),
        ("if TYPE_CHECKING:\n    from random import Random", "random"),
        ('__import__("socket")', "__import__ (a dynamic import)"),
        ("load = __import__", "__import__ (a dynamic import)"),
        ('exec("import socket")', "exec (a dynamic import)"),
        ('importlib.import_module("socket")', "importlib (a dynamic import)"),
        ('import_module("socket")', "import_module (a dynamic import)"),
    ],
)
def test_the_checker_catches(source: str, module: str) -> None:
    assert module in [found.module for found in impurities(source, "core/x.py", "everstep.core")]


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations",
        "import collections.abc",
        "from collections import abc, deque",
        "from everstep import errors, types",
        "from everstep.core.events import Event",
        "from everstep.types import Rank",
        "from . import events",
        "from .events import Event",
        "from ..errors import EverstepError",
        "retrieval = 'import torch'  # text is not code",
    ],
)
def test_the_checker_allows(source: str) -> None:
    assert impurities(source, "core/x.py", "everstep.core") == []


def test_relative_imports_are_resolved_from_a_subpackage() -> None:
    assert impurities("from ..machine import Machine", "core/sub/x.py", "everstep.core.sub") == []
    assert impurities("from ...wire import x", "core/sub/x.py", "everstep.core.sub") != []


def test_the_message_names_file_line_and_module() -> None:
    [found] = impurities("import math\n\nimport socket\n", "src/everstep/core/x.py", "everstep.core")
    assert str(found) == "src/everstep/core/x.py:3: imports socket"
