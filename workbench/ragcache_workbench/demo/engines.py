"""One engine that reuses documents anywhere, used as if it were several."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from ragcache_integrations.engine import RAGCacheEngine

__all__ = ["preset"]

_CALLS = ("generate", "agenerate", "generate_batch", "agenerate_batch", "stream", "astream")


def preset(engine: RAGCacheEngine, **call: Any) -> RAGCacheEngine:
    """The same engine, whose requests have some arguments.

    Args:
        engine: The engine.
        **call: What each request has, such as ``reuse="prefix"``.
    """
    return cast("RAGCacheEngine", _Preset(engine, call))


class _Preset:
    def __init__(self, engine: RAGCacheEngine, call: dict[str, Any]) -> None:
        self._engine, self._call = engine, call

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        return partial(value, **self._call) if name in _CALLS else value
