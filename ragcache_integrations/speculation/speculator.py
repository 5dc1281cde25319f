"""Generation that starts while the search is still running."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from typing import Unpack

from ragcache_integrations.core.checks import check_flag, check_seconds, is_whole
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.generation import CallOptions, check_call
from ragcache_integrations.engine import Prompt, SamplingOptions
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import PrefillCostModel
from ragcache_integrations.knowledge_tree.prefill_cost import load_profile

from .pool import Capacity, PrefillPool, saturating_tokens
from .request import Request, Shared
from .sources import Stages
from .streams import AsyncSpeculativeStream, SpeculativeStream
from .types import (
    Document,
    SpeculationReport,
    SpeculativeAnswer,
    SpeculativeEngine,
    SpeculatorStats,
)

__all__ = ["Speculator"]

_SUMMED = {field.name for field in fields(SpeculatorStats)} & {
    field.name for field in fields(SpeculationReport)
}


class Speculator:
    """Dynamic speculative pipelining over one engine (RAGCache §5.3, algorithm 2).

    A search that gives its documents in stages lets the engine begin with those of an early stage.
    Where a later stage changes them, the generation is terminated and the new documents submitted;
    where the final ones are those in flight, that generation is the answer. The user sees nothing
    of a wrong guess. What was computed for one stays in the KV cache for later prompts that begin
    alike, and does not count in the knowledge tree's frequencies.

    A guess is submitted only while the pool, requests in or before their prefill, is smaller than
    ``max_prefill_bs``; it is held back until then. Final documents are submitted at once. So on a
    busy engine everything happens as without speculation.

    One speculator serves any number of threads and event loops, and one engine should have one:
    it is what the pool is counted by. A terminated prefill occupies the engine to the end of the
    current chunk: ``vllm_args={"max_num_batched_tokens": 512}`` keeps chunks short on a CPU.

    Args:
        engine: Generates; a :class:`RAGCacheEngine`.
        max_prefill_bs: Prompts in their prefill at which guesses are held back. By default as many
            as saturate the device, by the profile of ``ragcache profile``; a formula is used
            before that. Guesses that would not fit the free KV cache are held back in any case.
        stage_interval: Seconds between two stages that searches are asked for; at most the
            measured prefill time, which is the default.
        speculate: ``False`` submits final documents alone, for comparison.

    Raises:
        ConfigurationError: An argument is out of its range.
    """

    def __init__(
        self,
        engine: SpeculativeEngine,
        *,
        max_prefill_bs: int | None = None,
        stage_interval: float | None = None,
        speculate: bool = True,
    ) -> None:
        if not all(callable(getattr(engine, name, None)) for name in ("astream", "aload")):
            msg = f"engine must be a RAGCacheEngine, got {type(engine).__name__}"
            raise ConfigurationError(msg)
        if max_prefill_bs is not None and not (is_whole(max_prefill_bs) and max_prefill_bs >= 1):
            raise ConfigurationError(
                "max_prefill_bs must be a whole number of at least 1 prompt, or None, "
                f"got {max_prefill_bs!r}"
            )
        stage_interval = check_seconds("stage_interval", stage_interval)
        speculate = check_flag("speculate", speculate)
        capacity = Capacity(max_prefill_bs, saturating_tokens(_prefill_cost(engine)))
        self._shared = Shared(engine, PrefillPool(), capacity, speculate)
        self._stage_interval = stage_interval
        self._stats = SpeculatorStats()
        self._lock = make_lock()

    def interval(self) -> float | None:
        """Seconds that a stage of a search should take; ``None`` before anything was measured.

        At most the mean time of a prefill, as theorem 5.1 asks for: ``StagePlan(seconds=...)``.
        """
        measured = self._shared.capacity.pace.prefill_seconds or None
        if measured is None or self._stage_interval is None:
            return self._stage_interval or measured
        return min(measured, self._stage_interval)

    def stats(self) -> SpeculatorStats:
        """What speculation did so far."""
        return replace(self._stats, pending=len(self._shared.pool))

    def run(
        self,
        stages: Stages[Document],
        prompt_of: Callable[[tuple[Document, ...]], Prompt],
        options: SamplingOptions | None = None,
        **call: Unpack[CallOptions],
    ) -> SpeculativeAnswer[Document]:
        """Search and answer.

        Args:
            stages: The search: :class:`StageOfDocuments` after :class:`StageOfDocuments`, the last
                one final. An async iterable, or an iterable, which is run in a thread of its own.
                It is closed at the end.
            prompt_of: Makes the prompt of a stage's documents. Called for every stage; where two
                prompts are equal the generation continues. It should take no time.
            options: How to generate.
            namespace: Tenant, as in :meth:`RAGCacheEngine.generate`.
            timeout: Seconds for the whole answer, the search included.

        Returns:
            The answer over the final documents, these, and what speculation did.

        Raises:
            ConfigurationError: An argument is wrong, or the stages ended without a final one.
            GenerationTimeoutError: The timeout is over.
            EngineDeadError: The engine's process ended.
            PromptTooLongError: The prompt does not fit the context window.
            Exception: Anything that the search or ``prompt_of`` raises for the final documents; an
                error in a guess only means that there is no guess.
        """
        with self.stream(stages, prompt_of, options, **call) as stream:
            return stream.result()

    async def arun(
        self,
        stages: Stages[Document],
        prompt_of: Callable[[tuple[Document, ...]], Prompt],
        options: SamplingOptions | None = None,
        **call: Unpack[CallOptions],
    ) -> SpeculativeAnswer[Document]:
        """The async twin of :meth:`run`; cancelling it ends the search and the generation."""
        async with await self.astream(stages, prompt_of, options, **call) as stream:
            return await stream.aresult()

    def stream(
        self,
        stages: Stages[Document],
        prompt_of: Callable[[tuple[Document, ...]], Prompt],
        options: SamplingOptions | None = None,
        **call: Unpack[CallOptions],
    ) -> SpeculativeStream[Document]:
        """Search, and answer piece by piece; arguments and errors as :meth:`run`.

        Returns:
            When the search is over: the final documents, and the chunks of the answer as an
            iterator, those at once that a right guess has already brought.
        """
        _check(stages, prompt_of, options, **call)
        return SpeculativeStream(partial(self.astream, stages, prompt_of, options, **call))

    async def astream(
        self,
        stages: Stages[Document],
        prompt_of: Callable[[tuple[Document, ...]], Prompt],
        options: SamplingOptions | None = None,
        **call: Unpack[CallOptions],
    ) -> AsyncSpeculativeStream[Document]:
        """The async twin of :meth:`stream`: ``async for chunk in await speculator.astream(...)``.

        Cancelling it ends the search and the generation.
        """
        _check(stages, prompt_of, options, **call)
        request = Request(self._shared, prompt_of, options, **call)
        documents, guess = await request.find(stages)
        self._count(request.report())
        return AsyncSpeculativeStream(request, guess, documents)

    def _count(self, report: SpeculationReport) -> None:
        with self._lock:
            stats = self._stats
            sums = {name: getattr(stats, name) + getattr(report, name) for name in _SUMMED}
            self._stats = replace(stats, requests=stats.requests + 1, **sums)


def _check(
    stages: object,
    prompt_of: object,
    options: SamplingOptions | None,
    **call: Unpack[CallOptions],
) -> None:
    if not isinstance(stages, AsyncIterable | Iterable):
        msg = f"stages must be an iterable or an async iterable, got {type(stages).__name__}"
        raise ConfigurationError(msg)
    if not callable(prompt_of):
        raise ConfigurationError(f"prompt_of must be a function of documents, got {prompt_of!r}")
    check_call(options, **call)


def _prefill_cost(engine: SpeculativeEngine) -> PrefillCostModel:
    """What was measured for the engine's model on this device, or the formula in its place."""
    model = getattr(engine, "model", None)
    measured = load_profile(model, device_name()) if isinstance(model, str) and model else None
    return measured or PrefillCostModel.default()
