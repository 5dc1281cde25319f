"""Answers several prompts together, with the modules that they share in memory once.

Each prompt is prefilled separately. A module that several prompts reuse at the same positions, and
of which no token was computed again, is kept once; everything else is kept for each prompt. Then
tokens are generated for all rows together (Prompt Cache §3.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ragcache_modular.kv.attention import Sight
from ragcache_modular.kv.encoding import Patience, run_layers
from ragcache_modular.kv.memory import Memory
from ragcache_modular.kv.plan import Plan
from ragcache_modular.kv.prefill import Parts, Prefilled

from .answers import Answer

__all__ = ["Batch"]

Prefill = Callable[[Plan], Prefilled]
Begin = Callable[[Prefilled], Answer]


@dataclass(frozen=True, eq=False, slots=True)
class _Row:
    """The state of a prompt: its own tokens, and the shared modules that it sees."""

    answer: Answer
    logits: Tensor
    data: Tensor  # [layers, 2, heads, own tokens, head_dim]
    positions: Tensor
    seen: Tensor
    sees: frozenset[Hashable]
    next_position: int


class Batch:
    """A batch of prompts.

    Args:
        parts: The model, its buffers and its encoded modules.
        plans: The plan of each prompt.
    """

    def __init__(self, parts: Parts, plans: Sequence[Plan]) -> None:
        self._parts = parts
        self._plans = plans
        uses = Counter(key for plan in plans for key in set(_keys(plan).values()))
        self._common = {key for key, count in uses.items() if count > 1}
        if not parts.decoder.shares:
            self._common = set()
        self._shared: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self._rows: list[_Row] = []

    def prefill(self, make: Prefill, begin: Begin) -> None:
        """Prefill the prompts one after the other, and keep what decoding needs.

        Args:
            make: Prefills a plan.
            begin: Begins the answer to a prefilled prompt.
        """
        for plan in self._plans:
            with make(plan) as prefilled:
                self._rows.append(self._row(plan, prefilled, begin(prefilled)))

    @property
    def shared_tokens(self) -> int:
        """Number of tokens that are held once for several rows."""
        return sum(len(positions) for _, positions in self._shared.values())

    @property
    def own_tokens(self) -> int:
        """Number of prompt tokens that are held for a single row each."""
        return sum(len(row.positions) for row in self._rows)

    def decode(self, patience: Patience, max_tokens: int) -> list[Answer]:
        """Generate until the answers of all rows have ended."""
        with torch.inference_mode():
            return self._decode(patience, max_tokens)

    def _row(self, plan: Plan, prefilled: Prefilled, answer: Answer) -> _Row:
        recomputed = prefilled.about.recomputed
        own = np.ones(len(plan), dtype=np.bool_)
        sees = set()
        for number, key in _keys(plan).items():
            of_module = plan.parts == number
            if key not in self._common or recomputed[of_module].any():
                continue
            own[of_module] = False
            sees.add(key)
            if key not in self._shared:
                self._shared[key] = _copy(prefilled, np.flatnonzero(of_module))
        data, positions = _copy(prefilled, np.flatnonzero(own))
        seen = ~torch.from_numpy(plan.masked[own]).to(data.device)
        logits = prefilled.logits()
        return _Row(answer, logits, data, positions, seen, frozenset(sees), prefilled.next_position)

    def _decode(self, patience: Patience, max_tokens: int) -> list[Answer]:
        rows, decoder, pool = self._rows, self._parts.decoder, self._parts.pool
        device = pool.device
        longest = max(len(row.positions) for row in rows)
        buffer = pool.empty(longest + max_tokens, len(rows)).zero_()
        positions = torch.zeros(len(rows), longest + max_tokens, dtype=torch.long, device=device)
        seen = torch.zeros_like(positions, dtype=torch.bool)
        for number, row in enumerate(rows):
            own = len(row.positions)
            buffer[:, :, number, :, :own] = row.data
            positions[number, :own], seen[number, :own] = row.positions, row.seen
        shared, shared_positions, shared_seen = self._shared_part(device)
        following = torch.tensor([row.next_position for row in rows], device=device)
        tokens = [row.answer.take(row.logits)[0] for row in rows]
        for step in range(longest, longest + max_tokens):
            if all(row.answer.finish_reason for row in rows):
                break
            positions[:, step], seen[:, step] = following, True
            sight = Sight(
                following[:, None],
                torch.cat([shared_positions, positions[:, : step + 1]], dim=1),
                torch.cat([shared_seen, seen[:, : step + 1]], dim=1),
                shared=shared,
            )
            hidden = decoder.embed(torch.tensor(tokens, device=device)[:, None], following[:, None])
            memory = Memory(buffer, slice(step, step + 1), step + 1)
            hidden = run_layers(decoder, hidden, following[:, None], memory, sight, patience)
            logits = decoder.logits(hidden)[:, 0]
            for number, row in enumerate(rows):
                if row.answer.finish_reason is None:
                    tokens[number] = row.answer.take(logits[number])[0]
            # A row that has ended is still computed; its position must stay within the limit.
            following = (following + 1).clamp(max=decoder.limit - 1)
        return [row.answer for row in rows]

    def _shared_part(self, device: torch.device) -> tuple[Tensor | None, Tensor, Tensor]:
        rows = len(self._rows)
        if not self._shared:
            nothing = torch.zeros(rows, 0, dtype=torch.long, device=device)
            return None, nothing, nothing.bool()
        keys = list(self._shared)
        data = torch.cat([self._shared[key][0] for key in keys], dim=3)
        positions = torch.cat([self._shared[key][1] for key in keys])
        seen = torch.stack(
            [
                torch.cat(
                    [
                        torch.full((len(self._shared[key][1]),), key in row.sees, device=device)
                        for key in keys
                    ]
                )
                for row in self._rows
            ]
        )
        return data, positions.expand(rows, -1), seen


def _keys(plan: Plan) -> dict[int, Hashable]:
    """Keys that identify the visible modules of a prompt, by number of the part."""
    visible = {int(number) for number in np.unique(plan.parts[plan.reusable])}
    return {
        number: (placed.module.token_ids, placed.module.positions, placed.shift)
        for number, placed in enumerate(plan.placed)
        if placed is not None and number in visible
    }


def _copy(prefilled: Prefilled, at: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    index = torch.from_numpy(at).to(prefilled.positions.device)
    with torch.inference_mode():
        return prefilled.data.index_select(3, index), prefilled.positions[index]
