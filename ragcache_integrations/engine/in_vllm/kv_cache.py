"""Facts about vLLM's KV cache that both the scheduler and the workers need."""

from __future__ import annotations

from typing import Any

__all__ = ["block_bytes", "unsuited"]


def unsuited(kv_cache_config: Any, cache_config: Any) -> str | None:
    """Why this model, or its settings, can't have a knowledge tree; ``None`` if it can.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``.
        cache_config: vLLM's ``CacheConfig``.
    """
    if not cache_config.enable_prefix_caching:
        return "prefix caching is off, or the model does not support it"
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return f"the model is a hybrid with {len(groups)} groups of KV caches"
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ != "FullAttentionSpec" or getattr(spec, "sliding_window", None):
        return f"the model's attention ({type(spec).__name__}) does not reach all of the prompt"
    return None


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
