"""What the adapters of both frameworks know of models, those of this package above all."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ragcache_integrations.engine import EngineStats, RAGCacheEngine
from ragcache_integrations.engine.tiny_model import has_random_weights
from ragcache_integrations.llms.handover import backend_of
from ragcache_integrations.llms.knobs import LLMKnobs

__all__ = ["EngineModel", "likeliest_arguments"]

LIKELIEST = 20
"""First tokens to ask for; more is not to be had of most servers, and of vLLM by default."""


def likeliest_arguments(fields: Collection[str], *, own: bool) -> dict[str, Any]:
    """How a model is asked for the likeliest tokens; not at all where it is not known how.

    Args:
        fields: What its class can be told.
        own: Whether it is of this package.
    """
    if own:
        return {"logprobs": LIKELIEST}
    if {"logprobs", "top_logprobs"} <= set(fields):
        return {"logprobs": True, "top_logprobs": LIKELIEST}
    return {}


class EngineModel:
    """What a model of either framework has of the bundled engine, if it is one of this package.

    Args:
        llm: The LLM object; ``None`` for a model that is not of this package.
        name: Path or name of the model, where it is not of this package.
        random_weights: Whether what it says is noise; found out where ``None``.
        owned: Whether :meth:`close` closes it.
    """

    def __init__(
        self, llm: LLMKnobs | None, name: str, *, random_weights: bool | None, owned: bool
    ) -> None:
        self._own = llm
        self._owned = owned
        self.name = name if llm is None else llm.model_name or name
        # Whether an engine of this machine answers, whose pieces are tokens.
        self.eager_first = llm is not None and llm.base_url is None
        self.random_weights = self._is_noise() if random_weights is None else random_weights

    def _is_noise(self) -> bool:
        if self._own is None or not self.eager_first:
            return False
        engine = self._own.engine
        if isinstance(engine, str | None):  # none of the user's own
            return has_random_weights(self._own.model)
        return has_random_weights(engine.model)

    def backend(self) -> object:
        """The engine or server that answers; ``None`` for a model that is not of this package."""
        return None if self._own is None else backend_of(self._own)

    def _engine(self) -> RAGCacheEngine | None:
        backend = self.backend() if self.eager_first else None
        return backend if isinstance(backend, RAGCacheEngine) else None

    def stats(self) -> EngineStats | None:
        """What the bundled engine did so far."""
        engine = self._engine()
        return None if engine is None else engine.stats()

    def reset(self) -> None:
        """Empty the engine's KV cache."""
        engine = self._engine()
        if engine is not None:
            engine.reset_cache()

    def close(self) -> None:
        """Close the model if it is owned."""
        if self._owned and self._own is not None:
            self._own.close()
