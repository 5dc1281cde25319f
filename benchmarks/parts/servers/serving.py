"""Answering a trace on a real engine, one request after another or as they arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Unpack

from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.protocol import EngineCallOptions

__all__ = ["Served", "serve"]


@dataclass
class Served:
    """What an engine did with a trace, request by request.

    Attributes:
        ttft: Seconds from a request's arrival to its first token.
        tokens: Answers.
        cached: Prompt tokens found in a cache.
        seconds: From the first arrival to the last answer.
        prompted: Prompt tokens, cached ones included.
    """

    ttft: list[float] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    seconds: float = 0.0
    prompted: list[int] = field(default_factory=list)

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens found in a cache."""
        return sum(self.cached) / sum(self.prompted)

    def extend(self, other: Served) -> None:
        """Append what was served next."""
        self.ttft += other.ttft
        self.tokens += other.tokens
        self.cached += other.cached
        self.seconds += other.seconds
        self.prompted += other.prompted


def serve(
    engine: RAGCacheEngine,
    prompts: Sequence[Prompt],
    arrivals: Sequence[float] | None,
    output_tokens: int,
    **call: Unpack[EngineCallOptions],
) -> Served:
    """Answer prompts.

    Args:
        engine: Who answers.
        prompts: What is asked.
        arrivals: Seconds after the start at which each arrives; ``None`` for one after another.
        output_tokens: Length of every answer.
        **call: Other arguments of each request.
    """
    options = SamplingOptions(max_tokens=output_tokens, ignore_eos=True)
    if arrivals is not None:
        return asyncio.run(_serve_open(engine, prompts, arrivals, options, call))
    served = Served()
    began = time.perf_counter()
    for prompt in prompts:
        asked = time.perf_counter()
        stream = engine.stream(prompt, options, **call)
        next(stream)
        served.ttft.append(time.perf_counter() - asked)
        answer = stream.result()
        served.tokens.append(answer.token_ids)
        served.cached.append(answer.usage.cached_tokens)
        served.prompted.append(answer.usage.prompt_tokens)
    served.seconds = time.perf_counter() - began
    return served


async def _serve_open(
    engine: RAGCacheEngine,
    prompts: Sequence[Prompt],
    arrivals: Sequence[float],
    options: SamplingOptions,
    call: EngineCallOptions,
) -> Served:
    began = time.perf_counter()

    async def ask(prompt: Prompt, arrival: float) -> tuple[float, tuple[int, ...], int, int]:
        await asyncio.sleep(max(0.0, began + arrival - time.perf_counter()))
        stream = await engine.astream(prompt, options, **call)
        await anext(stream)
        ttft = time.perf_counter() - began - arrival
        answer = await stream.aresult()
        usage = answer.usage
        return ttft, answer.token_ids, usage.cached_tokens, usage.prompt_tokens

    answers = await asyncio.gather(*map(ask, prompts, arrivals))
    seconds = time.perf_counter() - began
    ttft, tokens, cached, prompted = (list(column) for column in zip(*answers, strict=True))
    return Served(ttft, tokens, cached, seconds, prompted)
