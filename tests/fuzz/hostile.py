"""Hostile bytes, JSON and folders: what was saved, damaged in every way that comes to mind."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

__all__ = ["JSON", "altered", "altered_text", "damaged", "places", "put_in_place"]

WHOLE = [0, 1, 2, *(sign * 2**bits + by for bits in (7, 31, 32, 53, 63, 64) for sign in (1, -1)
                    for by in (-1, 0, 1)), -1, 10**30]  # fmt: skip
NUMBERS = [*WHOLE, 0.5, -0.0, 5e-324, 1e38, 1e308, -1e308, math.nan, math.inf, -math.inf]
TEXTS = ["", "\0", "\ud800", "é🗼", "../x", "/etc/passwd", "a" * 300, "1", "true", "{", "\u2028"]
LEAVES = (
    st.none()
    | st.booleans()
    | st.sampled_from(NUMBERS)
    | st.integers()
    | st.floats()
    | st.sampled_from(TEXTS)
    | st.text(max_size=8)
)
_FLAT = (
    LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(st.text(max_size=5), LEAVES, max_size=2)
)
JSON = _FLAT | st.lists(_FLAT, max_size=2) | st.dictionaries(st.text(max_size=5), _FLAT, max_size=2)
DEEP = "\ue000 deeply nested \ue000"
DEPTHS = [10, 100, 900, 5000, 100_000]

Place = tuple[Any, ...]


@st.composite
def damaged(draw: st.DrawFn, content: bytes, pieces: tuple[bytes, ...] = ()) -> bytes:
    """Bytes with up to four changes, or quite other ones.

    Args:
        draw: Hypothesis's own.
        content: What was saved.
        pieces: What may be put in, besides random bytes.
    """
    new = st.binary(max_size=12) | (st.sampled_from(pieces) if pieces else st.nothing())
    if draw(st.integers(0, 19)) == 0:
        return b"".join(draw(st.lists(new, max_size=5)))
    kinds = ["flip", "cut", "put in", "repeat", "swap", "overwrite", "number", "end"]
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)):
        at = draw(st.integers(0, len(content)))
        size = draw(st.sampled_from([1, 2, 4, 8, 16]) | st.integers(0, len(content)))
        part, rest = content[at : at + size], content[at + size :]
        match kind:
            case "flip":
                part = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in part[:1]) + part[1:]
            case "cut":
                part = b""
            case "put in":
                part = draw(new) + part
            case "repeat":
                part *= draw(st.sampled_from([2, 3, 50] if size < 100 else [2]))
            case "swap":
                part, rest = rest[:size], part + rest[size:]
            case "overwrite":
                part = draw(new)[: len(part)].ljust(len(part), b"\xff")
            case "number":
                width = draw(st.sampled_from([1, 2, 4, 8]))
                number = draw(st.sampled_from(WHOLE)) % 256**width
                part, rest = number.to_bytes(width, "little"), content[at + width :]
            case _:
                rest = b""
        content = content[:at] + part + rest
    return content


def places(value: object, path: Place = ()) -> Iterator[Place]:
    """Where JSON has values, without the whole."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))  # type: ignore[index]


def held(value: Any, path: Place) -> Any:
    """What is in a place."""
    for key in path:
        value = value[key]
    return value


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """JSON with up to three of its values left out, exchanged, repeated or something else."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        known = list(places(value))
        if not known:
            return draw(JSON)
        path = draw(st.sampled_from(known))
        other = held(value, draw(st.sampled_from(known)))
        _change(draw, held(value, path[:-1]), path[-1], copy.deepcopy(other))
    return value


def _change(draw: st.DrawFn, holder: Any, key: Any, other: Any) -> None:
    """Change one value of a list or an object, perhaps to what is in another place."""
    here = holder[key]
    kinds = ["leave out", "number", "anything", "deep", "another's", "wrap", "repeat", "rename"]
    match draw(st.sampled_from(kinds)):
        case "leave out":
            del holder[key]
        case "number":
            holder[key] = draw(st.sampled_from(NUMBERS))
        case "anything":
            holder[key] = draw(JSON)
        case "deep":
            holder[key] = DEEP
        case "another's":
            holder[key] = other
        case "wrap":
            holder[key] = draw(st.sampled_from([[here], {"": here}, [[here, here]], str(here)]))
        case "repeat" if isinstance(here, list):
            holder[key] = here * draw(st.sampled_from([2, 3, 100]))
        case "rename" if isinstance(holder, dict):
            holder[draw(st.sampled_from(TEXTS))] = holder.pop(key)


@st.composite
def altered_text(draw: st.DrawFn, value: Any) -> str:
    """The text of JSON that was altered, some of it nested very deeply, some of it twice."""
    text = json.dumps(draw(altered(value)))
    if json.dumps(DEEP) in text:
        depth = draw(st.sampled_from(DEPTHS))
        begin, end = draw(st.sampled_from([("[", "]"), ('{"a":', "}"), ("[", ""), ("[[],", "]")]))
        inner = "1" if begin.endswith((":", ",")) else ""
        text = text.replace(json.dumps(DEEP), begin * depth + inner + end * depth)
    return text


REPLACEMENTS = (
    "link",
    "hanging link",
    "link to itself",
    "pipe",
    "folder",
    "second name",
    "nothing",
)
"""What may be in a file's place."""


def put_in_place(kind: str, path: Path, precious: Path) -> None:
    """Put something else in a file's place.

    Args:
        kind: One of :data:`REPLACEMENTS`.
        path: The file.
        precious: A file elsewhere, which nobody may write to.
    """
    path.unlink(missing_ok=True)
    match kind:
        case "link":
            path.symlink_to(precious)
        case "hanging link":
            path.symlink_to(precious.with_name("nowhere"))
        case "link to itself":
            path.symlink_to(path)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "second name":
            path.hardlink_to(precious)
