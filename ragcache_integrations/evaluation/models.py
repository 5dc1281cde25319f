"""What the adapters of both frameworks know of models, those of this package above all."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from ragcache_integrations.engine import EngineStats, RAGCacheEngine
from ragcache_integrations.engine.tiny_model import bundled_reader_path, default_model_path
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.llms.replaying import backend_of

__all__ = ["OwnEngine", "has_random_weights", "likeliest_arguments", "own_name"]

LIKELIEST = 20
"""First tokens to ask for; more is not to be had of most servers, and of vLLM by default."""


def has_random_weights(model: str | None) -> bool:
    """Whether a model of the bundled engine is the tiny one that says noise."""
    if bundled_reader_path() is not None:
        return False
    return model is None or Path(model) == default_model_path()


def own_name(llm: LLMKnobs | None) -> str:
    """Name of a model of this package; empty for another one."""
    return "" if llm is None else llm.model_name


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


class OwnEngine:
    """The bundled engine behind an LLM object, if there is one.

    Args:
        llm: The LLM object; ``None`` for a model that is not of this package.
        owned: Whether :meth:`close` closes it.
    """

    def __init__(self, llm: LLMKnobs | None, *, owned: bool) -> None:
        self._llm = llm
        self._owned = owned

    @property
    def is_local(self) -> bool:
        """Whether an engine of this machine answers, whose pieces are tokens."""
        return self._llm is not None and self._llm.base_url is None

    @property
    def random_weights(self) -> bool:
        """Whether what it says is noise."""
        if self._llm is None or not self.is_local:
            return False
        engine = self._llm.engine
        return has_random_weights(self._llm.model if engine is None else engine.model)

    def _engine(self) -> RAGCacheEngine | None:
        if self._llm is None or not self.is_local:
            return None
        backend = backend_of(self._llm)
        return backend if isinstance(backend, RAGCacheEngine) else None

    def stats(self) -> EngineStats | None:
        """What the engine did so far."""
        engine = self._engine()
        return None if engine is None else engine.stats()

    def reset(self) -> None:
        """Empty its KV cache."""
        engine = self._engine()
        if engine is not None:
            engine.reset_cache()

    def close(self) -> None:
        """Close the LLM object if it is owned."""
        if self._owned and self._llm is not None:
            self._llm.close()
