"""Paged memory in groups of layers, each of which has blocks of its own.

Of a document, layers with a window keep what a prompt needs that continues after it: the tokens of
the window's blocks, or all if there are fewer. What such a prompt sees before the document is in
the files of the documents before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .encoded import Encoded, Form
from .paged import LayoutError, PagedMemory
from .plan import Load

__all__ = ["NOBODY", "GroupedMemory", "Tables", "table"]

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


class GroupedMemory:
    """One worker's KV cache.

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
