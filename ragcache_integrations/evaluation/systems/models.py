"""What the adapters of both frameworks' models have in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ragcache_integrations.engine import EngineStats, RAGCacheEngine
from ragcache_integrations.engine.tiny_model import has_random_weights
from ragcache_integrations.llms.handover import backend_of
from ragcache_integrations.llms.knobs import LLMKnobs

__all__ = ["EngineModel", "likeliest_arguments"]

LIKELIEST = 20
"""First tokens to request; the limit of vLLM's default settings and of most servers."""


def likeliest_arguments(fields: Collection[str], *, own: bool) -> dict[str, Any]:
    """Return the arguments by which a model returns the likeliest tokens; empty if unknown.

    Args:
        fields: Names of the arguments that its class has.
        own: Whether it is one of this package.
    """
    if own:
        return {"logprobs": LIKELIEST}
    if {"logprobs", "top_logprobs"} <= set(fields):
        return {"logprobs": True, "top_logprobs": LIKELIEST}
    return {}


class EngineModel:
    """Gives access to the bundled engine, if a model of this package uses it.

    Args:
        llm: The LLM object; ``None`` for a model of another package.
        name: Path or name of the model, for a model of another package.
        random_weights: Whether its answers are noise; ``None`` to find out.
        owned: Whether :meth:`close` closes it.
    """

    def __init__(
        self, llm: LLMKnobs | None, name: str, *, random_weights: bool | None, owned: bool
    ) -> None:
        self._own = llm
        self._owned = owned
        self.name = name if llm is None else llm.model_name or name
        # Whether an engine on this machine answers, which streams token by token.
        self.eager_first = llm is not None and llm.base_url is None
        self.random_weights = self._is_noise() if random_weights is None else random_weights

    def _is_noise(self) -> bool:
        if self._own is None or not self.eager_first:
            return False
        engine = self._own.engine
        if isinstance(engine, str | None):  # not an engine of the user's
            return has_random_weights(self._own.model)
        return has_random_weights(engine.model)

    def backend(self) -> object:
        """Return the engine or server that answers; ``None`` for a model of another package."""
        return None if self._own is None else backend_of(self._own)

    def _engine(self) -> RAGCacheEngine | None:
        backend = self.backend() if self.eager_first else None
        return backend if isinstance(backend, RAGCacheEngine) else None

    def stats(self) -> EngineStats | None:
        """Return the counters of the bundled engine; ``None`` for another model."""
        engine = self._engine()
        return None if engine is None else engine.stats()

    def reset(self) -> None:
        """Empty the engine's KV cache, if there is one."""
        engine = self._engine()
        if engine is not None:
            engine.reset_cache()

    def close(self) -> None:
        """Close the model if it is owned."""
        if self._owned and self._own is not None:
            self._own.close()
