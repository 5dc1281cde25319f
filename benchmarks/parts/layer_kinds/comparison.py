"""The tree beside stock vLLM and beside no cache, on the same prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from ragcache_integrations.core.prompt.rendering import DocumentSpan, RenderedPrompt
from ragcache_integrations.engine import RAGCacheEngine, SamplingOptions
from ragcache_integrations.knowledge_tree import TreeStats

from .models import VOCABULARY

__all__ = ["STOCK", "STREAMS", "TREE", "Outcome", "compare", "make_prompts"]

BLOCK = 32
DOCUMENTS = 60
DRIFT = 10
LENGTHS = (60, 201)
SYSTEM_TOKENS, QUESTION_TOKENS = 40, 20
STREAMS = ("skewed", "drifting", "uniform")
"""Popularity by Zipf's law; the same, and every tenth request two documents change places; none."""
TREE, STOCK, UNCACHED = "tree", "stock", "uncached"
KNOBS: dict[str, dict[str, Any]] = {
    TREE: {},
    STOCK: {"knowledge_tree": False},
    UNCACHED: {"knowledge_tree": False, "vllm_args": {"enable_prefix_caching": False}},
}
OPTIONS = SamplingOptions(max_tokens=2, ignore_eos=True)


@dataclass(frozen=True)
class Outcome:
    """What a stream showed.

    Attributes:
        hits: Share of the documents that were cached whole, of the tree and of stock vLLM.
        different: Answers of each that differ from the uncached one.
        distinct: Different answers among the uncached ones.
        counted: The share of hits by the tree's own statistics; 0 where it is off.
    """

    hits: dict[str, float]
    different: dict[str, int]
    distinct: int
    counted: float


def make_prompts(stream: str, requests: int, seed: int = 7) -> Iterator[RenderedPrompt]:
    """Prompts with two documents each.

    Args:
        stream: Of :data:`STREAMS`.
        requests: How many.
        seed: The same seed gives the same prompts.
    """
    dice = np.random.default_rng(seed)
    texts = [
        dice.integers(20, VOCABULARY - 100, length).tolist()
        for length in dice.integers(*LENGTHS, DOCUMENTS)
    ]
    names = dice.permutation(DOCUMENTS)
    weights = np.arange(1.0, DOCUMENTS + 1) ** (0.0 if stream == "uniform" else -1.0)
    for number in range(requests):
        if stream == "drifting" and number % DRIFT == 0:
            places = dice.choice(DOCUMENTS, 2, replace=False)
            names[places] = names[places[::-1]]
        tokens, spans = [5] * SYSTEM_TOKENS, []
        for name in dice.choice(names, 2, replace=False, p=weights / weights.sum()):
            end = len(tokens) + len(texts[name])
            spans.append(DocumentSpan(str(name), len(tokens), end))
            tokens += texts[name]
        question = dice.integers(20, VOCABULARY - 100, QUESTION_TOKENS).tolist()
        yield RenderedPrompt(tokens + question, tuple(spans))


def compare(
    model: str, streams: Sequence[str], *, requests: int, blocks: int, **knobs: Any
) -> Iterator[tuple[str, Outcome]]:
    """Answer each stream with each engine, which start with empty caches.

    Args:
        model: Folder of the model.
        streams: Of :data:`STREAMS`.
        requests: Prompts of each stream.
        blocks: Blocks of each engine's KV cache, of 32 tokens, all groups of layers together.
        knobs: Further knobs of the engine with the tree.
    """
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(_engine(model, blocks, **own))
            for name, own in {**KNOBS, TREE: knobs}.items()
        }
        for stream in streams:
            prompts = list(make_prompts(stream, requests))
            before = engines[TREE].stats().tree or TreeStats()
            answers: dict[str, list[tuple[int, ...]]] = {}
            hits: dict[str, float] = {}
            for name, engine in engines.items():
                engine.reset_cache()
                results = [engine.generate(prompt, OPTIONS) for prompt in prompts]
                answers[name] = [result.token_ids for result in results]
                cached = [result.usage.cached_tokens for result in results]
                hits[name] = _share_found(prompts, cached)
            after = engines[TREE].stats().tree or TreeStats()
            uncached = answers.pop(UNCACHED)
            different = {
                name: sum(ours != plain for ours, plain in zip(theirs, uncached, strict=True))
                for name, theirs in answers.items()
            }
            found = _found(after) - _found(before)
            counted = found / max(1, after.documents - before.documents)
            del hits[UNCACHED]
            yield stream, Outcome(hits, different, len(set(uncached)), counted)


def _share_found(prompts: Sequence[RenderedPrompt], cached: Sequence[int]) -> float:
    """The share of documents of which all whole blocks were cached; ``cached`` counts tokens."""
    found = [
        max(span.end // BLOCK * BLOCK, span.start + 1) <= tokens
        for prompt, tokens in zip(prompts, cached, strict=True)
        for span in prompt.documents
    ]
    return sum(found) / len(found)


def _found(stats: TreeStats) -> int:
    return stats.documents_hit_gpu + stats.documents_hit_host


def _engine(model: str, blocks: int, **knobs: Any) -> RAGCacheEngine:
    arguments = {
        "block_size": BLOCK,
        "enforce_eager": True,
        "num_gpu_blocks_override": blocks,
    } | knobs.pop("vllm_args", {})
    return RAGCacheEngine(
        model, max_model_len=512, dtype="float32", kv_cache_gib=0.2, vllm_args=arguments, **knobs
    )
