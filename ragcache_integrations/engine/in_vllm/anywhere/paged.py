"""Reads tokens out of vLLM's paged KV cache, turns keys to other positions, and writes them back.

How a block is laid out differs between attention backends. Nothing here knows it: known numbers are
written into a block of their own with the backend's own operation, and where they are then shows
where keys and values are. Writing is that same operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm._custom_ops import rotary_embedding

from .encoded import Encoded, Form

__all__ = ["LayoutError", "PagedMemory", "angles_between", "turn"]

DIGIT = 128
"""Numbers below it are exact in every type that a KV cache has."""


class LayoutError(RuntimeError):
    """The KV cache, or the model's position encoding, isn't understood."""


class PagedMemory:
    """One worker's KV cache.

    Args:
        layers: vLLM's attention layers by their names, in the order of the model.
        caches: Their paged memory, of shape ``(blocks, ...)``.
        block_size: Tokens of a block.
        turns: Whether keys are ever written at other positions than they had.

    Raises:
        LayoutError: A layer's blocks, or the model's rotary embedding, aren't understood.
    """

    def __init__(
        self,
        layers: Mapping[str, Any],
        caches: Mapping[str, Tensor],
        block_size: int,
        *,
        turns: bool = True,
    ) -> None:
        self._layers = [layers[name] for name in caches]
        self._caches = list(caches.values())
        self._size = block_size
        shapes = {(layer.num_kv_heads, layer.head_size) for layer in self._layers}
        kinds = {(cache.shape[1:], cache.dtype, cache.device) for cache in self._caches}
        if len(shapes) != 1 or len(kinds) != 1:
            raise LayoutError(f"the model's layers differ in their KV caches: {shapes}, {kinds}")
        ((self._heads, self._head_size),) = shapes
        self._table = _rotary_table(self._head_size) if turns else None
        self._where = self._find_layout()

    @property
    def form(self) -> Form:
        """What documents look like."""
        groups = ((len(self._layers), None),)
        return Form(groups, self._heads, self._head_size, self._caches[0].dtype)

    def read(self, blocks: Sequence[int], begin: int, end: int) -> Encoded:
        """Copy a span of a request's tokens out.

        Args:
            blocks: Numbers of all of the request's blocks.
            begin: The first token.
            end: The token after the last.
        """
        first, last = begin // self._size, -(-end // self._size)
        numbers = torch.tensor(blocks[first:last], device=self._caches[0].device)
        cut = slice(begin - first * self._size, end - first * self._size)
        parts: list[list[Tensor]] = [[], []]
        for cache in self._caches:
            flat = cache[numbers].flatten(1)
            for kept, where in zip(parts, self._where, strict=True):
                kept.append(flat[:, where.flatten()].view(-1, *where.shape[1:])[cut].cpu())
        return Encoded(torch.stack(parts[0]), torch.stack(parts[1]), begin)

    def write(
        self, document: Encoded, begin: int, first: int, end: int, blocks: Sequence[int]
    ) -> None:
        """Write tokens of a document where a request has it.

        Args:
            document: The document.
            begin: Where it begins in the request.
            first: The first token that is written.
            end: The token after the last.
            blocks: Numbers of all of the request's blocks.

        Raises:
            LayoutError: Keys would have to be turned, and this does not turn any.
        """
        cut, device = slice(first - begin, end - begin), self._caches[0].device
        position, angles = document.position + cut.start, None
        if position != first:
            if self._table is None:
                raise LayoutError(f"keys of position {position} are of no use at {first}")
            angles = angles_between(self._table, position, first, end - first)
        angles = angles if angles is None else angles.to(device)
        places = torch.arange(first, end)
        slots = torch.tensor(blocks)[places // self._size] * self._size + places % self._size
        slots = slots.to(device)
        keys, values = document.keys[:, cut].to(device), document.values[:, cut].to(device)
        # Layer by layer, so that what is turned is still in the processor's cache when written.
        turned = torch.empty(keys.shape[1:], dtype=torch.float32, device=device)
        for number, (layer, cache) in enumerate(zip(self._layers, self._caches, strict=True)):
            key = keys[number]
            if angles is not None:
                key = turn(turned.copy_(key), angles).to(key.dtype)
            layer.impl.do_kv_cache_update(layer, key, values[number], cache, slots)

    def _find_layout(self) -> tuple[Tensor, Tensor]:
        layer, cache = self._layers[0], self._caches[0]
        count = self._size * self._heads * self._head_size
        block = cache[0]
        if block.numel() != 2 * count:
            raise LayoutError(f"a block has {block.numel()} numbers, not {2 * count}")
        tags = torch.arange(1, 2 * count + 1, device=cache.device)
        slots = torch.arange(self._size, device=cache.device)
        found = torch.zeros(2 * count, dtype=torch.long, device=cache.device)
        digits, power = 1 + (2 * count >= DIGIT) + (2 * count >= DIGIT**2), 1
        for _ in range(digits):
            numbers = (tags // power % DIGIT).to(cache.dtype)
            scratch = torch.zeros_like(block)[None]
            shape = (-1, self._heads, self._head_size)
            layer.impl.do_kv_cache_update(
                layer, numbers[:count].view(shape), numbers[count:].view(shape), scratch, slots
            )
            found += scratch.flatten().long() * power
            power *= DIGIT
        if not torch.equal(found.sort().values, tags):
            msg = "a block of the KV cache holds something else than its keys and values"
            raise LayoutError(msg)
        where = torch.empty_like(found)
        where[found - 1] = torch.arange(2 * count, device=cache.device)
        shape = (self._size, self._heads, self._head_size)
        return where[:count].view(shape), where[count:].view(shape)


def angles_between(table: Tensor, before: int, after: int, count: int) -> Tensor | None:
    """Cosines and sines by which keys turn on their way to other positions.

    Args:
        table: Cosines and sines of positions, of shape ``(positions, size)``.
        before: Position of the first key.
        after: Position at which it is to be.
        count: How many keys there are, each one position after the one before it.

    Returns:
        Those of each key, of shape ``(count, size)``; ``None`` if they stay where they are.
    """
    if before == after:
        return None
    cosine, sine = table[before : before + count].chunk(2, -1)
    next_cosine, next_sine = table[after : after + count].chunk(2, -1)
    # Not 1 where the table holds a factor of attention, too (YaRN).
    norm = cosine * cosine + sine * sine
    by_cosine = (next_cosine * cosine + next_sine * sine) / norm
    by_sine = (next_sine * cosine - next_cosine * sine) / norm
    return torch.cat([by_cosine, by_sine], -1)


def turn(keys: Tensor, angles: Tensor) -> Tensor:
    """Turn keys of one layer in place, with vLLM's own kernel.

    Args:
        keys: Of shape ``(tokens, heads, size)``, in float32.
        angles: Of shape ``(tokens, size)``, from :func:`angles_between`.
    """
    rows = torch.arange(len(keys), device=keys.device)
    rotary_embedding(rows, keys.flatten(1), None, keys.shape[-1], angles, is_neox=True)
    return keys


def _rotary_table(head_size: int) -> Tensor:
    """Cosines and sines of the model's one rotary embedding, in float32 on the CPU."""
    from vllm.model_executor.layers import rotary_embedding  # noqa: PLC0415 - with the model

    kinds = list(getattr(rotary_embedding, "_ROPE_DICT", {}).values())
    if len(kinds) != 1:
        raise LayoutError(f"the model has {len(kinds)} kinds of rotary embedding; 1 is understood")
    (rotary,) = kinds
    if not rotary.is_neox_style or rotary.rotary_dim != head_size or rotary.head_size != head_size:
        msg = "the model rotates a part of each head, or other pairs of numbers than halves"
        raise LayoutError(msg)
    table: Tensor = rotary.cos_sin_cache.detach().float().cpu()
    return table
