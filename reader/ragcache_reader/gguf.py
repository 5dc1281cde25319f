"""Reads a model from a GGUF file, as far as SmolLM2 needs it: Llama, and three kinds of numbers.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Gguf", "read"]

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_F32, _Q4_1, _Q8_0 = 0, 3, 8
_BLOCK = 32
"""Numbers that share a scale."""
_BYTES = {_F32: 4 * _BLOCK, _Q4_1: 4 + _BLOCK // 2, _Q8_0: 2 + _BLOCK}
"""Of so many numbers, by kind."""


@dataclass(frozen=True, slots=True)
class Gguf:
    """A file's content.

    Attributes:
        facts: What it says of the model, by key.
        tensors: Its tensors by name, in float32, of shape ``(out, in)``.
    """

    facts: dict[str, Any]
    tensors: dict[str, NDArray[np.float32]]


def read(path: Path) -> Gguf:
    """Read a file.

    Raises:
        ValueError: It is no GGUF file of version 2 or 3, is cut short, or has numbers of another
            kind than float32, Q4_1 and Q8_0.
        OSError: It cannot be read.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        try:
            return _Reader(content).gguf()
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read as GGUF: {error!r}") from error


class _Reader:
    """Reads from the beginning on."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._at = content, 0

    def gguf(self) -> Gguf:
        magic, version, tensors, facts = self._struct("<4sIQQ")
        if magic != b"GGUF" or version not in {2, 3}:
            raise ValueError(f"no GGUF file of version 2 or 3: it begins with {magic!r}, {version}")
        known = {self._string(): self._value(self._number("I")) for _ in range(facts)}
        places = [self._place() for _ in range(tensors)]
        alignment = known.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"its tensors are aligned to {alignment!r} bytes")
        begin = -(-self._at // alignment) * alignment
        return Gguf(
            known,
            {name: self._tensor(begin + at, shape, kind) for name, at, shape, kind in places},
        )

    def _place(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string()
        shape = self._struct(f"<{self._number('I')}Q")[::-1]
        kind, at = self._struct("<IQ")
        return name, at, shape, kind

    def _tensor(self, at: int, shape: tuple[int, ...], kind: int) -> NDArray[np.float32]:
        if kind not in _BYTES:
            raise ValueError(f"tensors of kind {kind} are not understood, only of {sorted(_BYTES)}")
        count = math.prod(shape)
        if count % _BLOCK:
            raise ValueError(f"a tensor has {count} numbers, which is no multiple of {_BLOCK}")
        size = count // _BLOCK * _BYTES[kind]
        packed = np.frombuffer(self._content[at : at + size], np.uint8)
        if len(packed) < size:
            raise ValueError("the file is cut short")
        return _numbers(packed.reshape(-1, _BYTES[kind]), kind).reshape(shape)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        inner, count = self._struct("<IQ")
        return [self._value(inner) for _ in range(count)]

    def _string(self) -> str:
        (text,) = self._struct(f"<{self._number('Q')}s")
        return str(text, "utf-8")

    def _number(self, code: str) -> Any:
        return self._struct(f"<{code}")[0]

    def _struct(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._content, self._at)
        self._at += struct.calcsize(layout)
        return values


def _numbers(packed: NDArray[np.uint8], kind: int) -> NDArray[np.float32]:
    """The numbers of rows of bytes, each of which holds :data:`_BLOCK` of them."""
    if kind == _F32:
        return packed.view(np.float32)
    if kind == _Q8_0:
        scale = packed[:, :2].copy().view(np.float16).astype(np.float32)
        return packed[:, 2:].view(np.int8) * scale
    # Q4_1: a scale, the least number, and four bits of each; the low halves of bytes come first.
    scale, least = np.split(packed[:, :4].copy().view(np.float16).astype(np.float32), 2, axis=1)
    halves = np.concatenate([packed[:, 4:] & 0xF, packed[:, 4:] >> 4], axis=1)
    numbers: NDArray[np.float32] = halves * scale + least
    return numbers
