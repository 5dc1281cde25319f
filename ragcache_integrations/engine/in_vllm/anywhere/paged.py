"""Documents' keys and values, and the paged memory that they come from.

:class:`PagedMemory` reads tokens out of vLLM's paged KV cache, turns keys to other positions, and
writes them back. How a block is laid out differs between attention backends. Nothing here knows it:
known numbers are written into a block of their own with the backend's own operation, and where they
are then shows where keys and values are. Writing is that same operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from vllm._custom_ops import rotary_embedding

from ragcache_integrations.engine.in_vllm.kv_cache import windows

from .plan import Load

__all__ = [
    "NOBODY",
    "Encoded",
    "Form",
    "GroupedMemory",
    "LayoutError",
    "PagedMemory",
    "Sizes",
    "Tables",
    "angles_between",
    "table",
    "turn",
]

DIGIT = 128
"""Numbers below it are exact in every type that a KV cache has."""

NOBODY = -1
"""In the place of a block that is in no window any more, or that nobody needs."""

Tables = tuple[tuple[int, ...], ...]
"""Numbers of a request's blocks in each group, in order."""


def table(blocks: Any) -> Tables:
    """A request's blocks.

    Args:
        blocks: vLLM's ``KVCacheBlocks``.
    """
    return tuple(
        tuple(NOBODY if block.is_null else block.block_id for block in group)
        for group in blocks.blocks
    )


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


class LayoutError(RuntimeError):
    """The KV cache, or the model's position encoding, isn't understood."""


class PagedMemory:
    """One worker's KV cache of one group of layers.

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


class GroupedMemory:
    """One worker's KV cache, in groups of layers, each of which has blocks of its own.

    Of a document, layers with a window keep what a prompt needs that continues after it: the tokens
    of the window's blocks, or all if there are fewer. What such a prompt sees before the document
    is in the files of the documents before it.

    Args:
        layers: vLLM's attention layers by their names.
        caches: Their paged memory.
        groups: The names of each group's layers, in order.
        windows: For each group, how many blocks before a place a prompt needs to continue there;
            ``None`` for all.
        block_size: Tokens of a block.
        turns: Whether keys are ever written at other positions than they had.

    Raises:
        LayoutError: A layer's blocks aren't understood, or layers of several groups differ.
    """

    def __init__(
        self,
        layers: Mapping[str, Any],
        caches: Mapping[str, Tensor],
        groups: Sequence[Sequence[str]],
        windows: Sequence[int | None],
        block_size: int,
        *,
        turns: bool,
    ) -> None:
        self._size = block_size
        self._memories = [
            PagedMemory(layers, {name: caches[name] for name in names}, block_size, turns=turns)
            for names in groups
        ]
        self._kept = [None if blocks is None else blocks * block_size for blocks in windows]
        kinds = {
            (form.heads, form.size, form.dtype) for form in (each.form for each in self._memories)
        }
        if len(kinds) != 1:
            raise LayoutError(f"the model's groups of layers differ in their KV caches: {kinds}")

    @property
    def form(self) -> Form:
        """What documents look like."""
        form = self._memories[0].form
        counts = (memory.form.layers for memory in self._memories)
        groups = tuple(zip(counts, self._kept, strict=True))
        return Form(groups, form.heads, form.size, form.dtype)

    def read(self, blocks: Tables, begin: int, end: int) -> Encoded:
        """Copy what is kept of a span of a request's tokens out.

        Args:
            blocks: All of the request's blocks.
            begin: The first token.
            end: The token after the last.
        """
        parts = [
            memory.read(numbers, self._first(kept, begin, end), end)
            for memory, kept, numbers in zip(self._memories, self._kept, blocks, strict=True)
        ]
        if len(parts) == 1:
            return Encoded(parts[0].keys, parts[0].values, begin)
        keys, values = (
            torch.cat([side.flatten(0, 1) for side in sides])
            for sides in ([part.keys for part in parts], [part.values for part in parts])
        )
        return Encoded(keys, values, begin)

    def write(self, document: Encoded, load: Load, blocks: Tables) -> None:
        """Write tokens of a document where a request has it, except into blocks of nobody.

        Args:
            document: The document.
            load: What is written of it.
            blocks: All of the request's blocks.
        """
        begin, stop = load.begin, load.begin + load.tokens
        sides = [document.keys.flatten(0, -3), document.values.flatten(0, -3)]
        at = 0
        for memory, kept, numbers in zip(self._memories, self._kept, blocks, strict=True):
            held = self._first(kept, begin, stop)
            rows = memory.form.layers * (stop - held)
            keys, values = (
                side[at : at + rows].view(memory.form.layers, stop - held, *side.shape[1:])
                for side in sides
            )
            at += rows
            part = Encoded(keys, values, document.position + held - begin)
            start = max(load.first, held)
            while start < load.end and numbers[start // self._size] == NOBODY:
                start = (start // self._size + 1) * self._size
            if start < load.end:
                memory.write(part, held, start, load.end, numbers)

    @staticmethod
    def _first(kept: int | None, begin: int, end: int) -> int:
        return begin if kept is None else max(begin, end - kept)


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
