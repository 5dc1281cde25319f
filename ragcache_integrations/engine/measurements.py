"""Measures T(alpha, beta), the prefill time, on a running engine (RAGCache §5.1).

It also measures what documents that were encoded ahead save: reading them against computing them.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from tqdm import tqdm

from ragcache_integrations.core.checks import check_int, is_whole
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.engine.engine import RAGCacheEngine
from ragcache_integrations.engine.protocol import EngineCallOptions
from ragcache_integrations.errors import ConfigurationError, EngineError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel, PrefillFormula
from ragcache_integrations.resources import load_passages

__all__ = ["Reloading", "measure_prefill", "measure_reloading", "prefill_duration"]


ANSWERED = 1
"""Tokens of the answer; the window and the KV cache must hold them too."""
FIRST_TOKEN = SamplingOptions(max_tokens=ANSWERED, ignore_eos=True)
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
        raise ConfigurationError(f"this engine computes all documents: {engine.reuse_is_off}")
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


SMALLEST_NEW = 8
"""Fewer new tokens cost hardly less, because most of the time is the overhead of a step."""
CLOSEST = 1.5
"""The least ratio of the last two columns: between closer points, noise would decide the slope."""
ESTIMATED_SHARE = 4
"""The longest prompt, divided by the one by which the duration is estimated."""
FEWEST_WORDS = 50
"""The fewest words to draw from; with fewer, texts might repeat."""
ATTEMPTS = 10


def measure_prefill(
    engine: RAGCacheEngine,
    *,
    max_tokens: int | None = None,
    repeats: int = 3,
    show_progress: bool = False,
) -> PrefillCostModel:
    """Measure the time to the first token over a grid of cached and new tokens.

    Rows are 0 cached tokens, one block and its doublings; columns are powers of two of new tokens;
    both end at the longest prompt. Each node is the median of ``repeats`` measurements, taken in
    rounds so that a disturbance affects a node only once. New tokens are random each time. Nodes
    longer than any prompt are extrapolated from the longest prompt with as many new tokens, by the
    formula fitted to all measurements. Disturbances only ever add time. So if a node took longer
    than one with more new or more cached tokens, it gets the shorter time: times rise both ways.

    The engine's KV cache is emptied. Nothing else may run on the engine during the measurement.

    Args:
        engine: A running engine.
        max_tokens: Longest request to measure, in tokens of its prompt and one of its answer; by
            default the context window, or as much of it as the KV cache holds.
        repeats: Measurements per node.
        show_progress: Show a progress bar on standard error.

    Raises:
        ConfigurationError: An argument is out of its range.
        EngineError: The engine is busy, does not reuse KV caches, or fails.
    """
    repeats = check_int("repeats", repeats, 1)
    grid = _grid(_longest_prompt(engine, max_tokens), engine.block_size)
    bench = _Bench(engine)
    samples: dict[tuple[int, int], list[float]] = defaultdict(list)
    with tqdm(
        desc="Measuring prefills",
        total=sum(grid.new) + repeats * grid.tokens,
        unit=" tokens",
        unit_scale=True,
        disable=not show_progress,
    ) as progress:
        bench.reset()
        for new in grid.new:  # to warm up: the first prompt of a size pays for set-up
            bench.measure("", 0, new)
            progress.update(new)
        for _ in range(repeats):
            for cached in grid.cached:
                bench.reset()
                prefix = bench.prefill(cached) if cached else ""
                bench.measure(prefix, cached, grid.new[0])  # the first one after a pause is slower
                progress.update(cached)
                for new in grid.new_after(cached):
                    samples[cached, new].append(bench.measure(prefix, cached, new))
                    progress.update(new)
        bench.reset()
    return _completed(grid, {node: statistics.median(times) for node, times in samples.items()})


def prefill_duration(
    engine: RAGCacheEngine, *, max_tokens: int | None = None, repeats: int = 3
) -> float:
    """Estimate how many seconds :func:`measure_prefill` will take, by a short and a long prompt.

    Arguments and errors are those of :func:`measure_prefill`.
    """
    repeats = check_int("repeats", repeats, 1)
    grid = _grid(_longest_prompt(engine, max_tokens), engine.block_size)
    bench = _Bench(engine)
    bench.reset()
    shortest, longer = grid.new[0], max(grid.new[0] + 1, grid.longest // ESTIMATED_SHARE)
    bench.measure("", 0, shortest)  # to warm up
    step = bench.measure("", 0, shortest)
    per_token = max(0.0, bench.measure("", 0, longer) - step) / (longer - shortest)
    prompts = len(grid.new) + repeats * sum(2 + len(grid.new_after(n)) for n in grid.cached)
    return prompts * step + (sum(grid.new) + repeats * grid.tokens) * per_token


@dataclass(frozen=True, slots=True)
class _Grid:
    """Nodes to measure: those rows and columns that together fit the longest prompt."""

    cached: tuple[int, ...]
    new: tuple[int, ...]
    longest: int

    def new_after(self, cached: int) -> tuple[int, ...]:
        return tuple(new for new in self.new if cached + new <= self.longest)

    @property
    def tokens(self) -> int:
        """Tokens to compute for all nodes, each once."""
        return sum(cached + sum(self.new_after(cached)) for cached in self.cached)


def _longest_prompt(engine: RAGCacheEngine, max_tokens: int | None) -> int:
    window, kv_tokens = engine.max_model_len, engine.total_kv_tokens
    smallest = engine.block_size + SMALLEST_NEW + ANSWERED
    if min(window, kv_tokens) < smallest:
        raise ConfigurationError(
            f"there is nothing to measure below {smallest} tokens (a block of the KV cache and a "
            f"few new ones): the context window is {window} tokens, the KV cache {kv_tokens}"
        )
    if max_tokens is None:
        max_tokens = window
    if not is_whole(max_tokens) or not smallest <= max_tokens <= window:
        raise ConfigurationError(
            f"max_tokens must be a whole number from {smallest} (a block of the KV cache and a few "
            f"new tokens) to {window} (the context window), got {max_tokens!r}"
        )
    return min(max_tokens, kv_tokens) - ANSWERED


def _grid(longest: int, block_size: int) -> _Grid:
    blocks = (longest - SMALLEST_NEW) // block_size
    return _Grid(
        cached=(0, *(block_size * count for count in _doublings(1, blocks))),
        new=_doublings(SMALLEST_NEW, longest),
        longest=longest,
    )


def _doublings(first: int, last: int) -> tuple[int, ...]:
    """``first``, doubled again and again while well below ``last``, and ``last``."""
    numbers = [first]
    while numbers[-1] * 2 * CLOSEST <= last:
        numbers.append(numbers[-1] * 2)
    return (*numbers, last) if last > first else (first,)


def _completed(grid: _Grid, times: Mapping[tuple[int, int], float]) -> PrefillCostModel:
    """The whole grid, including the nodes that are longer than any prompt."""
    formula = PrefillFormula.fit([(*node, seconds) for node, seconds in times.items()])
    rows: list[list[float]] = []
    for cached in reversed(grid.cached):
        row = []
        for new in grid.new:
            measured = max(
                reached for reached, added in times if added == new and reached <= cached
            )
            growth = formula(cached, new) - formula(measured, new)
            row.append(times[measured, new] + growth)
        if rows:
            row = list(map(min, row, rows[-1]))
        rows.append(list(itertools.accumulate(reversed(row), min))[::-1])
    return PrefillCostModel(grid.cached, grid.new, rows[::-1])


class _Bench:
    """Measures prompts of an exact length.

    Prefix and new text are documents: the renderer remembers their tokens, so that tokenisation
    happens beforehand and is not measured.
    """

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._engine = engine
        self._random = random.Random()  # noqa: S311 - noise, no secret
        self._words = _whole_words(engine)
        # Tokens that the model's tokenizer puts before every prompt.
        self._head = engine.render(Prompt.raw(PromptDocument("head"))).documents[0].start

    def reset(self) -> None:
        """Empty the KV cache."""
        if not self._engine.reset_cache():
            raise EngineError("the engine is busy with other requests: profile it while it is idle")

    def prefill(self, tokens: int) -> str:
        """Compute a new prefix of ``tokens`` tokens with the prompt's head, and return its text."""
        prefix = self._text(tokens - self._head)
        self._engine.prefill(Prompt.raw(PromptDocument(prefix)))
        return prefix

    def measure(self, prefix: str, cached: int, new: int) -> float:
        """Seconds to the first token of a prompt with a cached prefix and new tokens.

        Raises:
            EngineError: More or less than the prefix was cached.
        """
        text = self._text(new if prefix else new - self._head)
        prompt = Prompt.raw([PromptDocument(part) for part in (prefix, text) if part])
        self._engine.render(prompt)
        begun = time.perf_counter()
        with self._engine.stream(prompt, FIRST_TOKEN) as stream:
            usage = next(stream).usage
            seconds = time.perf_counter() - begun
            stream.result()
        if usage is None or (usage.prompt_tokens, usage.cached_tokens) != (cached + new, cached):
            raise EngineError(
                f"of a prompt of {cached + new} tokens {cached} should have been cached, the "
                f"engine reports {usage}: prefix caching must be on and nothing else running"
            )
        return seconds

    def _text(self, tokens: int) -> str:
        """Random words with exactly this number of tokens."""
        words: list[str] = []
        excess = -tokens
        for _ in range(ATTEMPTS):
            if excess < 0:
                words += self._random.choices(self._words, k=-excess)
            else:  # the words did not add up: the first one may have a token more, for instance
                words = words[: max(len(words) - excess, 0)]
            text = " ".join(words)
            excess = self._engine.count_tokens(text) - tokens
            if excess == 0:
                return text
        msg = f"found no text of exactly {tokens} tokens for the tokenizer of {self._engine.model}"
        raise EngineError(msg)


def _whole_words(engine: RAGCacheEngine) -> list[str]:
    """Words that are one token each in running text.

    Raises:
        EngineError: The tokenizer has hardly any, like one of bytes or characters.
    """
    passages = load_passages()
    words = sorted({word for passage in passages for word in passage.text.split()})
    whole = [
        word
        for word in words
        if word.isalpha()
        and engine.count_tokens(f"{word} {word} {word}")
        == engine.count_tokens(f"{word} {word}") + 1
    ]
    if len(whole) < FEWEST_WORDS:
        raise EngineError(
            f"the tokenizer of {engine.model} has only {len(whole)} of {len(words)} English words "
            "whole: texts of a given length cannot be written for it"
        )
    return whole
