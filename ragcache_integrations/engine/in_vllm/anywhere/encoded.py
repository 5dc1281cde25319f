"""Documents' keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Encoded", "Form"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document's keys and values, as it was encoded.

    Attributes:
        keys: Of shape ``(layers, tokens, heads, size)``.
        values: The same.
        position: Of its first token.
    """

    keys: Tensor
    values: Tensor
    position: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True, slots=True)
class Form:
    """What a model's documents look like, on one worker.

    Attributes:
        layers: Number of layers.
        heads: Number of heads with keys and values of their own.
        size: Numbers of a head.
        dtype: Their type.
    """

    layers: int
    heads: int
    size: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Of the keys and values of one token."""
        return 2 * self.layers * self.heads * self.size * self.dtype.itemsize

    def shape(self, tokens: int) -> tuple[int, int, int, int]:
        """Of the keys of a document, and of its values."""
        return self.layers, tokens, self.heads, self.size
