"""Facts about vLLM's KV cache that both the scheduler and the workers need."""

from __future__ import annotations

from typing import Any

__all__ = ["block_bytes", "unsuited", "windows"]

FULL, SLIDING = "FullAttentionSpec", "SlidingWindowSpec"
STATES = "MambaSpec"
"""All of linear attention, too."""


def unsuited(kv_cache_config: Any, cache_config: Any) -> str | None:
    """Why this model, or its settings, can't have a knowledge tree; ``None`` if it can.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``.
        cache_config: vLLM's ``CacheConfig``.
    """
    if not cache_config.enable_prefix_caching:
        return "prefix caching is off, or the model does not support it"
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    if not specs:
        return "the model has no KV cache"
    names = {type(spec).__name__ for spec in specs}
    if STATES in names:
        return (
            "the model has linear or state-space layers, and vLLM keeps their states where a step "
            "of the prefill ends, not where a document does"
        )
    if unknown := names - {FULL, SLIDING}:
        kinds = ", ".join(sorted(unknown))
        return f"it does not know what the model's layers need of a prompt ({kinds})"
    if len({spec.block_size for spec in specs}) > 1:
        return "the model's layers have blocks of different sizes"
    return None


def windows(kv_cache_config: Any, *, drafts: bool = False) -> tuple[int | None, ...]:
    """For each group of layers, how many blocks before a place a prompt needs to continue.

    This is vLLM's own rule, ``SlidingWindowManager._contiguous_blocks_for_hit``.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``, which :func:`unsuited` lets pass.
        drafts: Whether a draft model computes the last block of each hit again.

    Returns:
        ``None`` for a group that needs all of them.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return tuple(
        max(1, -(-(spec.sliding_window - 1) // spec.block_size) + drafts)
        if type(spec).__name__ == SLIDING
        else None
        for spec in specs
    )


def block_bytes(kv_cache_config: Any) -> int:
    """Size of a block of the KV cache, all layers of one worker together.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``. If it has several groups, they share the memory;
            a model without attention has none.
    """
    return max((_group_bytes(group) for group in kv_cache_config.kv_cache_groups), default=1)


def _group_bytes(group: Any) -> int:
    spec = group.kv_cache_spec
    # This kind of spec already counts all of its layers.
    layers = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)
    size: int = spec.page_size_bytes
    return size * layers
