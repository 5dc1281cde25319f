"""Relevance checks: one joint request against parallel ones, cold and warm.

Cold, the KV cache is emptied before a check; warm, the documents were checked before, for another
question. The answer step follows each check, with the documents that it leaves: it finds what a
joint check has computed, and nothing that parallel ones have. The default model judges at random,
so every document is kept in both ways, and the figures compare like with like.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parts.stats.intervals import median_ratio
from parts.stats.tables import print_table
from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine, SamplingOptions
from ragcache_integrations.prompts.relevance import (
    RelevanceCheck,
    RelevanceSettings,
)
from ragcache_integrations.resources import load_passages, load_questions

__all__ = ["run"]

BLOCK = 32
SYSTEM = "Answer from the documents."
MODES: tuple[Literal["parallel", "shared"], ...] = ("parallel", "shared")


@dataclass(frozen=True)
class Timed:
    """A check and the answer step behind it, in seconds; the answer's computed tokens."""

    check: float
    answer: float
    computed: int

    @property
    def total(self) -> float:
        """Until the first token of the answer."""
        return self.check + self.answer


class Judge:
    """Answers checks by the engine."""

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._engine = engine

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        """Answer prompts together."""
        return [answer.text for answer in self._engine.generate_batch(prompts, options)]

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        """Async version of :meth:`ask`."""
        return [answer.text for answer in await self._engine.agenerate_batch(prompts, options)]


def lay_out(documents: Sequence[PromptDocument], asked: str) -> Prompt:
    """The prompt for the answer."""
    return Prompt.rag(asked, documents, system=SYSTEM)


def once(
    engine: RAGCacheEngine,
    mode: Literal["parallel", "shared"],
    question: str,
    documents: Sequence[PromptDocument],
) -> Timed:
    """Check and answer."""
    check = RelevanceCheck(Judge(engine), RelevanceSettings(mode=mode))
    began = time.perf_counter()
    verdict = check.check(question, documents, lay_out)
    checked = time.perf_counter()
    asked = f"{verdict.note}\n\n{question}" if verdict.note else question
    answer = engine.generate(lay_out(documents, asked), SamplingOptions(max_tokens=1))
    done = time.perf_counter()
    usage = answer.usage
    return Timed(checked - began, done - checked, usage.prompt_tokens - usage.cached_tokens)


def measure(
    engine: RAGCacheEngine, requests: int, top_k: int
) -> dict[tuple[str, str], list[Timed]]:
    """All settings in turns, each on the same questions and documents."""
    passages, questions = load_passages(), load_questions()
    found: dict[tuple[str, str], list[Timed]] = {}
    for number in range(requests + 1):
        chosen = passages[number * top_k : (number + 1) * top_k]
        documents = [PromptDocument(passage.text, passage.id) for passage in chosen]
        asked, before = questions[2 * number].text, questions[2 * number + 1].text
        for mode in MODES:
            while not engine.reset_cache():
                time.sleep(0.01)
            cold = once(engine, mode, asked, documents)
            while not engine.reset_cache():
                time.sleep(0.01)
            once(engine, mode, before, documents)
            warm = once(engine, mode, asked, documents)
            if number:  # the first one warms the engine up
                found.setdefault((mode, "cold"), []).append(cold)
                found.setdefault((mode, "warm"), []).append(warm)
    return found


def median(values: Sequence[float]) -> float:
    """Median."""
    return sorted(values)[len(values) // 2]


def run(
    quick: bool = False,
    engine: RAGCacheEngine | None = None,
) -> dict[str, Any]:
    """Measure, and print a table.

    Args:
        quick: Fewer requests, and five documents alone.
        engine: One to use; its own where ``None``.

    Returns:
        ``relevance_checks``: for each number of documents, medians in milliseconds and the ratio
        of joint over parallel, until the answer's first token.
    """
    own = engine is None
    used = engine or RAGCacheEngine(vllm_args={"block_size": BLOCK})
    result: dict[str, Any] = {}
    rows: list[list[str | int | float]] = []
    try:
        for top_k in (5,) if quick else (2, 5, 10):
            found = measure(used, 4 if quick else 30, top_k)
            for (mode, state), times in found.items():
                row = [
                    1000 * median([t.check for t in times]),
                    1000 * median([t.answer for t in times]),
                    1000 * median([t.total for t in times]),
                    median([t.computed for t in times]),
                ]
                rows.append([top_k, mode, state, *row])
            for state in ("cold", "warm"):
                joint, parallel = (
                    [t.total for t in found[mode, state]] for mode in ("shared", "parallel")
                )
                result[f"k{top_k}_{state}"] = {
                    "parallel_ms": round(1000 * median(parallel), 2),
                    "shared_ms": round(1000 * median(joint), 2),
                    "shared_over_parallel": median_ratio(joint, parallel).as_list(4),
                }
    finally:
        if own:
            used.close()
    head = ["k", "mode", "cache", "check ms", "answer TTFT ms", "both ms", "answer computes"]
    print_table("Relevance check and answer", head, rows)
    return {"relevance_checks": result}
