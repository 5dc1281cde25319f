"""Streams in every order on the real engine: cached tokens as it reports them, and TTFT."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parts.prompts.document_orders import Ordered
from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine, SamplingOptions

__all__ = ["Reported", "on_engine"]

SYSTEM = "Answer from the documents, and from nothing else."


@dataclass(frozen=True)
class Reported:
    """What the engine said of a stream in one order, by request number.

    Attributes:
        cached: Prompt tokens found in the cache.
        prompt_tokens: Length of all prompts.
        ttft: Seconds to the first token.
    """

    cached: list[int]
    prompt_tokens: int
    ttft: list[float]

    @property
    def share(self) -> float:
        """Share of the prompt tokens found in the cache."""
        return sum(self.cached) / self.prompt_tokens

    @property
    def median_ms(self) -> float:
        """Median time to first token in milliseconds."""
        return 1e3 * statistics.median(self.ttft)


def on_engine(
    engine: RAGCacheEngine, texts: Mapping[str, str], orders: Sequence[Ordered]
) -> dict[str, Reported]:
    """Serve a stream in every order, one request after another.

    The orders take turns, each as a tenant of its own: namespaces share no KV cache, so that each
    finds what it left itself, and all meet the same weather.

    Args:
        engine: Who answers.
        texts: The documents' texts by id.
        orders: The same requests in several orders.

    Raises:
        RuntimeError: The engine's cache has no room for all of them.
    """
    prompts = {order.name: _prompts(order, texts) for order in orders}
    lengths = {
        name: sum(len(engine.render(prompt).token_ids) for prompt in sent)
        for name, sent in prompts.items()
    }
    if (total := sum(lengths.values())) > engine.total_kv_tokens:
        msg = f"{total} tokens are to be sent, the cache holds {engine.total_kv_tokens}"
        raise RuntimeError(msg)
    engine.reset_cache()
    options = SamplingOptions(max_tokens=1)
    found: dict[str, list[tuple[int, int, float]]] = {order.name: [] for order in orders}
    turns = list(orders)
    for turn in range(len(orders[0].sent)):
        for order in turns:
            began = time.perf_counter()
            answer = engine.generate(prompts[order.name][turn], options, namespace=order.name)
            took = time.perf_counter() - began
            found[order.name].append((order.numbers[turn], answer.usage.cached_tokens, took))
        turns.append(turns.pop(0))
    return {
        name: Reported(
            cached=[cached for _, cached, _ in sorted(rows)],
            prompt_tokens=lengths[name],
            ttft=[took for _, _, took in sorted(rows)],
        )
        for name, rows in found.items()
    }


def _prompts(order: Ordered, texts: Mapping[str, str]) -> list[Prompt]:
    return [
        Prompt.rag(
            f"{number}: what do the documents say about it?",
            [PromptDocument(texts[document], document) for document in documents],
            system=SYSTEM,
        )
        for number, documents in zip(order.numbers, order.sent, strict=True)
    ]
