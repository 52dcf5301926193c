"""HTML and SVG as values: what is not `Markup` already is text of somebody else, and escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable

_VOID = frozenset({"br", "hr", "input", "link", "meta"})
"""Elements of HTML without an end tag."""
_UNSPEAKABLE = re.compile(r"[^\t\n\r\x20-\x7e\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML has no way to write; evidence of a failure may hold the bytes of a terminal."""
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})

Value = str | float | bool | None
Child = str | Iterable["Child"] | None


class Markup(str):
    """Text that is HTML or SVG."""

    __slots__ = ()

    def __add__(self, other: str) -> Markup:
        return Markup(str.__add__(self, escape(other)))


def escape(text: str) -> Markup:
    if isinstance(text, Markup):
        return text
    return Markup(_UNSPEAKABLE.sub("\ufffd", text).translate(_ESCAPES))


def join(children: Iterable[Child]) -> Markup:
    """One after the other; None is nothing."""
    return Markup("".join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """An element. ``class_`` is the attribute class, ``data_start`` is data-start; None leaves an attribute out."""
    head = name + "".join(
        _attribute(key, value) for key, value in attributes.items() if not (value is None or value is False)
    )
    return Markup(f"<{head}>") if name in _VOID else Markup(f"<{head}>{join(children)}</{name}>")


def number(value: float) -> str:
    """As short as a hundredth of a pixel needs."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _attribute(key: str, value: Value) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = value if isinstance(value, str) else number(value or 0.0)
    return f' {name}="{escape(text)}"'


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, str):
            yield escape(child)
        elif child is not None:
            yield from _flat(child)
