"""Which token sees which, and attention over a buffer that holds modules and fresh tokens.

A token sees the tokens at or before its own position, regardless of the order in which they were
written to the buffer. So text after an argument in the middle of a module sees the argument, and
tokens that are computed again fit in.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["ATTENTION", "Sight", "attend"]

ATTENTION = "ragcache_modular"
"""The name under which this attention is registered with transformers."""

MANY = 256
"""From this many queries on, keys are copied for each query head."""


@dataclass(slots=True, eq=False)
class Sight:
    """What the tokens of a step may see.

    Args:
        queries: Positions of the computed tokens, ``[batch, queries]``.
        keys: Positions of the tokens in the buffer, ``[batch, keys]``; in a batch that shares
            modules the shared tokens come first.
        seen: Whether a token in the buffer may be seen at all, ``[batch, keys]``; ``None`` where
            all may.
        triangle: Whether all tokens of the buffer are computed, in the order of their positions,
            and all may be seen: plain causal attention.
        everything: Whether all computed tokens see the whole buffer, as the last token does.
        shared: Keys and values that the rows of a batch share, held once: ``[layers, 2, heads,
            tokens, head_dim]``; ``None`` for none.
    """

    queries: Tensor
    keys: Tensor
    seen: Tensor | None = None
    _: KW_ONLY
    triangle: bool = False
    everything: bool = False
    shared: Tensor | None = None
    _bias: Tensor | None = field(default=None, init=False)
    _folded: Tensor | None = field(default=None, init=False)

    @property
    def visible(self) -> Tensor:
        """``[batch, 1, queries, keys]``, true where a token is seen."""
        visible = self.keys[:, None, None, :] <= self.queries[:, None, :, None]
        return visible if self.seen is None else visible & self.seen[:, None, None, :]

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Added to scores, ``[batch, 1, queries, keys]``: 0, or the dtype's lowest number."""
        if self._bias is None:
            visible = self.visible
            self._bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
            self._bias.masked_fill_(~visible, torch.finfo(dtype).min)
        return self._bias

    def folded(self, dtype: torch.dtype, groups: int) -> Tensor:
        """The bias of ``groups`` heads side by side, ``[batch, 1, groups * queries, keys]``."""
        if self._folded is None:
            bias = self.bias(dtype).expand(-1, groups, -1, -1)
            self._folded = bias.reshape(bias.shape[0], 1, -1, bias.shape[-1])
        return self._folded


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention with the signature that transformers calls.

    A few queries of heads that share a key head are laid side by side as queries of that head, so
    that no key is copied. With many queries, their mask would be larger than the copies.

    Args:
        module: The attention layer.
        query: ``[batch, query heads, queries, head_dim]``.
        key: ``[batch, key heads, keys, head_dim]``.
        value: As ``key``.
        attention_mask: A :class:`Sight`. Any other mask means that the application itself called
            the model; such calls go to transformers' own attention.
        scaling: Factor of the scores; ``1 / sqrt(head_dim)`` where ``None``.
        dropout: Passed to transformers' own attention.
        **kwargs: Passed to transformers' own attention.

    Returns:
        ``[batch, queries, query heads, head_dim]``, and ``None`` in place of the weights.
    """
    if not isinstance(attention_mask, Sight):
        from transformers.integrations.sdpa_attention import (  # noqa: PLC0415 - loaded with the model
            sdpa_attention_forward,
        )

        output: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output
    sight = attention_mask
    if sight.shared is not None:
        shared = sight.shared[module.layer_idx]
        attended = _with_shared(query, key, value, sight, shared, scaling)
    elif sight.triangle:
        attended = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=_grouped(query, key)
        )
    else:
        attended = _folded(query, key, value, sight, scaling)
    return attended.transpose(1, 2).contiguous(), None


def _grouped(query: Tensor, key: Tensor) -> bool:
    return query.shape[1] != key.shape[1]


def _folded(
    query: Tensor, key: Tensor, value: Tensor, sight: Sight, scaling: float | None
) -> Tensor:
    batch, heads, queries, size = query.shape
    groups = heads // key.shape[1]
    if queries > MANY:
        return scaled_dot_product_attention(
            query,
            key.repeat_interleave(groups, dim=1) if groups > 1 else key,
            value.repeat_interleave(groups, dim=1) if groups > 1 else value,
            attn_mask=sight.bias(query.dtype),
            scale=scaling,
        )
    bias = None if sight.everything else sight.folded(query.dtype, groups)
    folded = query.reshape(batch, key.shape[1], groups * queries, size)
    attended = scaled_dot_product_attention(folded, key, value, attn_mask=bias, scale=scaling)
    return attended.reshape(batch, heads, queries, size)


def _with_shared(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sight: Sight,
    shared: Tensor,
    scaling: float | None,
) -> Tensor:
    """Attend to shared and own keys, with a single softmax over both."""
    batch, heads, queries, size = query.shape
    key_heads = key.shape[1]
    groups = heads // key_heads
    all_keys, all_values = shared
    common = all_keys.shape[1]
    rows = query.reshape(batch, key_heads, groups * queries, size)
    # The queries of all rows side by side, for one product with the keys that are held once.
    together = rows.transpose(0, 1).reshape(key_heads, batch * groups * queries, size)
    to_shared = torch.matmul(together, all_keys.transpose(1, 2))
    to_shared = to_shared.view(key_heads, batch, groups * queries, common).transpose(0, 1)
    scores = torch.cat([to_shared, torch.matmul(rows, key.transpose(2, 3))], dim=-1)
    scores = scores.float() * (size**-0.5 if scaling is None else scaling)
    scores += sight.folded(torch.float32, groups)
    weights = torch.softmax(scores, dim=-1).to(query.dtype)
    to_shared, to_own = weights[..., :common], weights[..., common:]
    seen = to_shared.transpose(0, 1).reshape(key_heads, batch * groups * queries, common)
    attended = torch.matmul(seen, all_values)
    attended = attended.view(key_heads, batch, groups * queries, size).transpose(0, 1)
    return (attended + torch.matmul(to_own, value)).reshape(batch, heads, queries, size)
