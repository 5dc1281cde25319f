"""Encodes tokens of vLLM's paged KV cache, and writes them back, keys turned to other positions.

How a block is laid out differs between attention backends. Nothing here knows it:
known numbers are written into a block of their own with the backend's own operation, and where they
are then shows where keys and values are. Writing is that same operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm._custom_ops import rotary_embedding

from .codecs import Codec, Encoded, Form
from .plan import Load

__all__ = [
    "NO_BLOCK",
    "ORIGIN",
    "GroupedMemory",
    "LayoutError",
    "PagedMemory",
    "Tables",
    "angles_between",
    "table",
    "turn",
]

ORIGIN = slice(0, 1)
"""The position at which RoPE turns no key, of all keys."""

DIGIT = 128
"""Numbers below it are exact in every type that a KV cache has."""

NO_BLOCK = -1
"""In the place of a block that has left its window, or that is not needed."""

Tables = tuple[tuple[int, ...], ...]
"""Numbers of a request's blocks in each group, in order."""


def table(blocks: Any) -> Tables:
    """A request's blocks.

    Args:
        blocks: vLLM's ``KVCacheBlocks``.
    """
    return tuple(
        tuple(NO_BLOCK if block.is_null else block.block_id for block in group)
        for group in blocks.blocks
    )


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

    def read(self, codec: Codec, blocks: Sequence[int], begin: int, end: int) -> Encoded:
        """Encode a span of a request's tokens.

        Args:
            codec: How it is kept.
            blocks: Numbers of all of the request's blocks.
            begin: The first token.
            end: The token after the last.

        Raises:
            LayoutError: Keys would have to be turned, and this does not turn any.
            ValueError: The codec can't encode its numbers.
        """
        first, last = begin // self._size, -(-end // self._size)
        numbers = torch.tensor(blocks[first:last], device=self._caches[0].device)
        cut = slice(begin - first * self._size, end - first * self._size)
        sides: list[list[Tensor]] = [[], []]
        for cache in self._caches:
            flat = cache[numbers].flatten(1)
            for side, where in zip(sides, self._where, strict=True):
                side.append(flat[:, where.flatten()].view(-1, *where.shape[1:])[cut])
        keys, values = map(torch.stack, sides)
        if not codec.turned:
            keys = turn(keys.float(), self._angles(slice(begin, end), ORIGIN))
        parts = codec.encode(keys, values)
        return Encoded(codec, {name: part.cpu() for name, part in parts.items()}, begin)

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
        codec, device = document.codec, self._caches[0].device
        cut, angles = slice(first - begin, end - begin), None
        if not codec.turned:
            angles = self._angles(ORIGIN, slice(first, end))
        elif document.position != begin:
            held = slice(document.position + cut.start, document.position + cut.stop)
            angles = self._angles(held, slice(first, end))
        places = torch.arange(first, end)
        slots = torch.tensor(blocks)[places // self._size] * self._size + places % self._size
        slots = slots.to(device)
        by_token = {name for name, part in codec.parts(self.form).items() if part.by_token}
        parts = {
            name: (part[:, cut] if name in by_token else part).to(device)
            for name, part in document.parts.items()
        }
        # Layer by layer, so that decoded numbers are still in the processor's cache when written.
        shape = (end - first, self._heads, self._head_size)
        numbers = torch.empty((2, *shape), dtype=torch.float32, device=device)
        for number, (layer, cache) in enumerate(zip(self._layers, self._caches, strict=True)):
            part = {name: tensor[number] for name, tensor in parts.items()}
            key = part["keys"]
            if angles is not None:
                key = turn(codec.decode_keys(part, numbers[0]), angles).to(cache.dtype)
            value = codec.decode_values(part, numbers[1]).to(cache.dtype)
            layer.impl.do_kv_cache_update(layer, key, value, cache, slots)

    def _angles(self, before: slice, after: slice) -> Tensor:
        if self._table is None:
            raise LayoutError("documents are read where they were computed, and nowhere else")
        return angles_between(self._table, before, after).to(self._caches[0].device)

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

    def read(self, codec: Codec, blocks: Tables, begin: int, end: int) -> Encoded:
        """Encode what is kept of a span of a request's tokens.

        Args:
            codec: How it is kept.
            blocks: All of the request's blocks.
            begin: The first token.
            end: The token after the last.

        Raises:
            ValueError: The codec can't encode its numbers.
        """
        groups = [
            memory.read(codec, numbers, self._first(kept, begin, end), end)
            for memory, kept, numbers in zip(self._memories, self._kept, blocks, strict=True)
        ]
        return Encoded.join(self.form, groups, begin)

    def write(self, document: Encoded, load: Load, blocks: Tables) -> None:
        """Write tokens of a document where a request has it, skipping :data:`NO_BLOCK`.

        Args:
            document: The document.
            load: What is written of it.
            blocks: All of the request's blocks.
        """
        groups = document.split(self.form, load.tokens)
        for memory, kept, numbers, group in zip(
            self._memories, self._kept, blocks, groups, strict=True
        ):
            held = self._first(kept, load.begin, load.begin + load.tokens)
            start = max(load.first, held)
            while start < load.end and numbers[start // self._size] == NO_BLOCK:
                start = (start // self._size + 1) * self._size
            if start < load.end:
                memory.write(group, held, start, load.end, numbers)

    @staticmethod
    def _first(kept: int | None, begin: int, end: int) -> int:
        return begin if kept is None else max(begin, end - kept)


def angles_between(table: Tensor, before: slice, after: slice) -> Tensor:
    """Cosines and sines by which keys turn on their way to other positions.

    Args:
        table: Cosines and sines of positions, of shape ``(positions, size)``.
        before: Positions of the keys; :data:`ORIGIN` if they are as before RoPE.
        after: Positions at which they are to be.

    Returns:
        Those of each key, of shape ``(keys, size)``.
    """
    cosine, sine = table[before].chunk(2, -1)
    next_cosine, next_sine = table[after].chunk(2, -1)
    # Not 1 if the table holds a factor of attention, too (YaRN).
    norm = cosine * cosine + sine * sine
    by_cosine = (next_cosine * cosine + next_sine * sine) / norm
    by_sine = (next_sine * cosine - next_cosine * sine) / norm
    return torch.cat([by_cosine, by_sine], -1)


def turn(keys: Tensor, angles: Tensor) -> Tensor:
    """Turn keys in place, with vLLM's own kernel.

    Args:
        keys: Of shape ``(tokens, heads, size)``, or ``(layers, tokens, heads, size)``, in float32.
        angles: Of shape ``(tokens, size)``, from :func:`angles_between`.
    """
    flat = keys.view(-1, keys.shape[-2] * keys.shape[-1])
    rows = torch.arange(len(angles), device=keys.device).repeat(len(flat) // len(angles))
    rotary_embedding(rows, flat, None, keys.shape[-1], angles, is_neox=True)
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
