"""Measures what documents that were encoded ahead save: reading them against computing them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.engine.engine import RAGCacheEngine
from ragcache_integrations.engine.protocol import EngineCallOptions
from ragcache_integrations.errors import ConfigurationError

__all__ = ["Reloading", "measure_reloading"]

FIRST_TOKEN = SamplingOptions(max_tokens=1, ignore_eos=True)
QUESTION = "What is this about?"


@dataclass(frozen=True, slots=True)
class Reloading:
    """Times to the first token of a prompt of known documents, in seconds, medians.

    Attributes:
        tokens: Length of the prompt.
        loaded_tokens: Those of them that were not computed again.
        computed_seconds: If all of it is computed.
        loaded_seconds: If its documents are read: from the disk where there is one.
    """

    tokens: int
    loaded_tokens: int
    computed_seconds: float
    loaded_seconds: float

    @property
    def ratio(self) -> float:
        """How many times sooner the first token comes if documents are read."""
        return self.computed_seconds / self.loaded_seconds


def measure_reloading(
    engine: RAGCacheEngine,
    documents: Sequence[PromptDocument | str],
    *,
    repeats: int = 3,
    **call: Unpack[EngineCallOptions],
) -> Reloading:
    """Measure the time to the first token with documents read, and with them computed.

    Before each measurement the engine's KV cache and its documents in memory are emptied, so that
    documents come from the disk, and nothing else may run on the engine. Without a disk they are
    encoded again.

    Args:
        engine: An engine with ``reuse="anywhere"`` that has encoded the documents.
        documents: Of one prompt, which must fit the context window.
        repeats: Measurements of each, of which the median counts.
        call: As of :meth:`RAGCacheEngine.generate`, for the requests that read.

    Raises:
        ConfigurationError: An argument is out of its range, or the engine can't reuse anywhere.
        EngineError: The engine is busy or fails.
    """
    check_int("repeats", repeats, 1)
    if engine.reuse_is_off is not None:
        msg = f"this engine computes all documents: {engine.reuse_is_off}"
        raise ConfigurationError(msg)
    prompt = Prompt.rag(QUESTION, documents)
    text = Prompt(tuple(Message(each.role, each.text) for each in prompt.messages))
    computed, loaded = [], []
    namespace = call.get("namespace", "")
    for _ in range(repeats):
        engine.reset_cache()
        began = time.perf_counter()
        engine.generate(text, FIRST_TOKEN, namespace=namespace)  # or they would be read, too
        computed.append(time.perf_counter() - began)
        engine.reset_cache()
        engine.encode(documents, namespace=namespace)
        began = time.perf_counter()
        usage = engine.generate(prompt, FIRST_TOKEN, **call).usage
        loaded.append(time.perf_counter() - began)
    return Reloading(
        usage.prompt_tokens,
        usage.cached_tokens,
        statistics.median(computed),
        statistics.median(loaded),
    )
