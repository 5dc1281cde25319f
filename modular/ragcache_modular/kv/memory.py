"""Reusable buffers for keys and values.

Concatenating tensors with ``torch.cat`` allocates new memory each time, in each layer and for each
token, and the system must first map its pages. Here a prompt borrows a buffer for all layers.
Modules are copied to their places in it, and computed tokens are written to theirs (Prompt Cache
§4.2, "buffered concatenation").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from ragcache_integrations.core.forks import make_reentrant_lock

__all__ = ["BufferPool", "KeysAndValues", "Memory", "Thrower"]

STEP = 512
"""Buffers hold a multiple of this many tokens, so that prompts of similar length can share one."""

Where = slice | Tensor


@dataclass(eq=False)
class BufferPool:
    """Free buffers, kept for the next prompts. Thread-safe.

    Attributes:
        layers: Number of the model's layers.
        heads: Number of key heads of a layer.
        head_dim: Size of a head.
        dtype: Numeric type of keys and values.
        device: Device of the buffers.
        keep: How many free buffers are kept; the largest stay.
    """

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    keep: int = 2

    def __post_init__(self) -> None:
        self.shape = (self.layers, 2, self.heads, self.head_dim)
        # Reentrant: a garbage collection in the midst of this gives back what nobody has any more.
        self._lock = make_reentrant_lock()
        self._free: list[Tensor] = []

    def empty(self, tokens: int, batch: int = 1) -> Tensor:
        """New, uninitialised memory: ``[layers, 2, batch, heads, tokens, head_dim]``."""
        shape = (self.layers, 2, batch, self.heads, tokens, self.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def borrow(self, tokens: int) -> Tensor:
        """The smallest free buffer with room for ``tokens`` tokens, or a new one."""
        with self._lock:
            fitting = [free for free in self._free if free.shape[4] >= tokens]
            if fitting:
                buffer = min(fitting, key=_tokens_of)
                self._free = [free for free in self._free if free is not buffer]
                return buffer
        return self.empty(-(-tokens // STEP) * STEP)

    def give_back(self, buffer: Tensor) -> None:
        """Take back a borrowed buffer; the smallest of too many free ones is dropped."""
        with self._lock:
            self._free = sorted([buffer, *self._free], key=_tokens_of, reverse=True)[: self.keep]

    @property
    def free_bytes(self) -> int:
        """Bytes of the free buffers."""
        with self._lock:
            return sum(buffer.nbytes for buffer in self._free)

    def clear(self) -> None:
        """Drop all free buffers."""
        with self._lock:
            self._free = []


def _tokens_of(buffer: Tensor) -> int:
    return buffer.shape[4]


@dataclass(frozen=True, eq=False, slots=True)
class Memory:
    """The keys and values that a step of the layers reads and writes.

    It has the methods that attention layers of transformers call on a cache.

    Attributes:
        buffer: ``[layers, 2, batch, heads, tokens, head_dim]``.
        where: Indices of the tokens that this step computes, in order.
        length: Number of tokens in the buffer, including those that this step computes.
    """

    buffer: Tensor
    where: Where
    length: int

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Write this step's keys and values; return all of the layer's as views."""
        keys, values = self.buffer[layer_idx, 0], self.buffer[layer_idx, 1]
        keys[:, :, self.where] = key_states
        values[:, :, self.where] = value_states
        return keys[:, :, : self.length], values[:, :, : self.length]

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """Number of tokens in the buffer."""
        return self.length

    def row(self, number: int) -> Memory:
        """A row of the batch, viewed as a batch of size 1."""
        return Memory(self.buffer[:, :, number : number + 1], self.where, self.length)


class KeysAndValues(Exception):  # noqa: N818 - it ends a layer and is not an error
    """A layer's keys and values, thrown at the place where the layer would store them.

    So they are computed by the layer's own code, and the rest of the layer is skipped.

    Args:
        keys: ``[batch, heads, tokens, head_dim]``.
        values: As ``keys``.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys = keys
        self.values = values


class Thrower:
    """Takes the place of a layer's cache, and throws the keys and values that it should store."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> NoReturn:
        """End the layer.

        Raises:
            KeysAndValues: Always.
        """
        raise KeysAndValues(key_states, value_states)
