"""Buffers for keys and values: modules are copied into one that is there already.

Putting tensors behind each other with ``torch.cat`` takes new memory every time, whose pages the
system must first hand out, layer by layer and token by token. Here a prompt borrows one buffer for
all layers, modules are copied to where they stand, and tokens that are computed write to theirs
(Prompt Cache §4.2, "buffered concatenation").
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from ragcache_integrations.core.forks import make_lock

__all__ = ["BufferPool", "KeysAndValues", "Memory", "Thrower"]

STEP = 512
"""Buffers grow by so many tokens, so that one serves prompts of about its length."""

Where = slice | Tensor


class BufferPool:
    """Buffers that are free, to be used again. Thread-safe.

    Args:
        layers: Of the model.
        heads: Heads of keys.
        head_dim: Size of each.
        dtype: Of keys and values.
        device: Where buffers live.
        keep: How many free ones are kept; the largest stay.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        keep: int = 2,
    ) -> None:
        self.shape = (layers, 2, heads, head_dim)
        self.dtype = dtype
        self.device = device
        self._keep = keep
        self._lock = make_lock()
        self._free: list[Tensor] = []

    def empty(self, tokens: int, batch: int = 1) -> Tensor:
        """New memory, ``[layers, 2, batch, heads, tokens, head_dim]``, with anything in it."""
        layers, two, heads, size = self.shape
        shape = (layers, two, batch, heads, tokens, size)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def borrow(self, tokens: int) -> Tensor:
        """A buffer with room for so many tokens, the smallest that is free or a new one."""
        with self._lock:
            fitting = [one for one in self._free if one.shape[4] >= tokens]
            if fitting:
                buffer = min(fitting, key=lambda one: one.shape[4])
                self._free = [one for one in self._free if one is not buffer]
                return buffer
        return self.empty(-(-tokens // STEP) * STEP)

    def give_back(self, buffer: Tensor) -> None:
        """Take back what was borrowed."""
        with self._lock:
            self._free = sorted([buffer, *self._free], key=lambda one: -one.shape[4])[: self._keep]

    @property
    def free_bytes(self) -> int:
        """Memory of the buffers kept."""
        with self._lock:
            return sum(one.numel() * one.element_size() for one in self._free)

    def clear(self) -> None:
        """Let go of the buffers kept."""
        with self._lock:
            self._free = []


class Memory:
    """Where one step of the layers reads and writes keys and values.

    It has what attention layers of transformers ask of a cache.

    Args:
        buffer: ``[layers, 2, batch, heads, tokens, head_dim]``.
        where: Which tokens of it this step computes, in order.
        length: How many there are, those computed in this step among them.
    """

    def __init__(self, buffer: Tensor, where: Where, length: int) -> None:
        self._buffer = buffer
        self._where = where
        self._length = length

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Write this step's keys and values; give back all of the layer's, without copying."""
        keys, values = self._buffer[layer_idx, 0], self._buffer[layer_idx, 1]
        keys[:, :, self._where] = key_states
        values[:, :, self._where] = value_states
        return keys[:, :, : self._length], values[:, :, : self._length]

    def get_seq_length(self, _layer_idx: int = 0) -> int:
        """How many tokens there are."""
        return self._length

    def row(self, number: int) -> Memory:
        """One row of a batch, seen as a batch of one."""
        return Memory(self._buffer[:, :, number : number + 1], self._where, self._length)


class KeysAndValues(Exception):  # noqa: N818 - it ends a layer, it is no error
    """A layer's keys and values, thrown at the place where the layer would store them.

    The layer's own code has made them, whatever its architecture; nothing behind them is computed.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys = keys
        self.values = values


class Thrower:
    """Stands where a layer expects its cache, and throws what it is given to keep."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> NoReturn:
        """End the layer."""
        raise KeysAndValues(key_states, value_states)
