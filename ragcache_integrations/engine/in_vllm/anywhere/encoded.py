"""Documents' keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from ragcache_integrations.engine.in_vllm.kv_cache import windows

__all__ = ["Encoded", "Form", "Groups", "Sizes"]

Groups = tuple[tuple[int, int | None], ...]
"""For each group of layers how many these are, and how many of a document's last tokens they keep;
``None`` for all."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document's keys and values, as it was encoded.

    Attributes:
        keys: Of shape ``(layers, tokens, heads, size)``; with several groups of layers
            ``(rows, heads, size)``, the first group's layers and tokens first.
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
        groups: Its groups of layers.
        heads: Number of heads with keys and values of their own.
        size: Numbers of a head.
        dtype: Their type.
    """

    groups: Groups
    heads: int
    size: int
    dtype: torch.dtype

    @property
    def layers(self) -> int:
        """Number of layers."""
        return sum(layers for layers, _ in self.groups)

    @property
    def sizes(self) -> Sizes:
        """How large documents are."""
        return Sizes(self.groups, 2 * self.heads * self.size * self.dtype.itemsize)

    def nbytes(self, tokens: int) -> int:
        """Size of a document's keys and values in bytes."""
        return 2 * prod(self.shape(tokens)) * self.dtype.itemsize

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Of the keys of a document, and of its values."""
        if len(self.groups) > 1:
            return self.sizes.rows(tokens), self.heads, self.size
        ((layers, _),) = self.groups
        return layers, self.sizes.rows(tokens) // layers, self.heads, self.size


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a model's documents are, on one worker.

    Attributes:
        groups: Its groups of layers.
        layer_bytes: Of the keys and values of one token in one layer.
    """

    groups: Groups
    layer_bytes: int

    @classmethod
    def of(cls, kv_cache_config: Any) -> Sizes:
        """Those of the model with this ``KVCacheConfig`` of vLLM."""
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        layers = (len(group.layer_names) for group in kv_cache_config.kv_cache_groups)
        size = specs[0].block_size
        kept = (None if blocks is None else blocks * size for blocks in windows(kv_cache_config))
        return cls(tuple(zip(layers, kept, strict=True)), specs[0].page_size_bytes // size)

    @property
    def token_bytes(self) -> int:
        """Of the keys and values of one token in all layers."""
        return self.layer_bytes * sum(layers for layers, _ in self.groups)

    @property
    def step_bytes(self) -> int:
        """What a document's size is a multiple of."""
        return self.token_bytes if len(self.groups) == 1 else self.layer_bytes

    def rows(self, tokens: int) -> int:
        """Tokens of all layers together that are kept of a document."""
        return sum(
            layers * (tokens if kept is None else min(tokens, kept)) for layers, kept in self.groups
        )

    def nbytes(self, tokens: int) -> int:
        """Size of a document's keys and values in bytes."""
        return self.rows(tokens) * self.layer_bytes

    def units(self, nbytes: int) -> int:
        """A number of bytes as tokens of all layers, rounded up."""
        return -(-nbytes // self.token_bytes)
