"""What ``AnswerCache`` adds to a LangChain chain, where embedding and search take no time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda

from parts.stats.intervals import median_ratio
from ragcache_integrations.langchain import AnswerCache

__all__ = ["overhead"]

DIM = 384


class _Table(Embeddings):
    """Embeddings without a model."""

    def __init__(self) -> None:
        self._vector = (np.ones(DIM) / DIM**0.5).tolist()

    def embed_query(self, text: str) -> list[float]:
        del text
        return list(self._vector)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


def overhead(calls: int) -> dict[str, list[float] | float]:
    """Time hits and misses in turn with LangChain's own Runnable.

    Args:
        calls: How many of each.

    Returns:
        ``hit_ratio``: a hit over a call of a RunnableLambda. ``near_ratio``: the same for a hit in
        other words. ``miss_us``: what a miss adds to the chain, in microseconds.
    """
    documents = [
        Document(f"Passage {number}. " + "A sentence about cats. " * 20, id=str(number))
        for number in range(5)
    ]
    answer: Any = RunnableLambda(lambda _: "a short answer")
    cached = AnswerCache(
        chain=answer,
        retriever=RunnableLambda(lambda _: documents),
        documents_key="context",
        embeddings=_Table(),
        tolerance=0.5,
        capacity=10 * calls,
    )
    plain: Any = RunnableLambda(lambda _: "a short answer")
    cached.invoke("what is a cat")
    times: dict[str, list[float]] = {"plain": [], "hit": [], "near": [], "miss": [], "chain": []}

    def timed(name: str, call: Callable[[Any], Any], value: Any) -> None:
        began = time.perf_counter_ns()
        call(value)
        times[name].append((time.perf_counter_ns() - began) / 1e3)

    inputs = {"input": "what is a cat", "context": documents}
    for number in range(calls):
        timed("plain", plain.invoke, "what is a cat")
        timed("hit", cached.invoke, "what is a cat")
        # Its number makes it another question to the guard.
        timed("miss", cached.invoke, f"what is cat {number}")
        timed("chain", answer.invoke, inputs)
        words = f"what is a cat, {'x' * (1 + number % 9)}{'abcdefghij'[number // 9 % 10]}"
        timed("near", cached.invoke, words)
    warm = {name: values[calls // 10 :] for name, values in times.items()}
    return {
        "hit_ratio": median_ratio(warm["hit"], warm["plain"]).as_list(3),
        "near_ratio": median_ratio(warm["near"], warm["plain"]).as_list(3),
        "miss_us": float(np.median(np.subtract(warm["miss"], warm["chain"]))),
    }
