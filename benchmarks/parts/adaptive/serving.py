"""Answering questions as they arrive with one way of choosing configurations, and what it took."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from parts.adaptive.workload import Corpus
from ragcache_integrations.adaptive import (
    AdaptiveAnswer,
    AdaptivePipeline,
    AdaptiveSettings,
    Choice,
    EngineAsker,
    MemoryLoad,
    Profiler,
    PrunedSpace,
    SynthesisConfig,
    SynthesisSettings,
)
from ragcache_integrations.adaptive.best_fit import (
    BestFit,
    ChunkFacts,
    PromptSizes,
    Situation,
    size,
)
from ragcache_integrations.adaptive.resources import EngineLoadSource, Resources
from ragcache_integrations.engine import PromptDocument, RAGCacheEngine, SamplingOptions

__all__ = ["CheckedBestFit", "Served", "System", "Unlimited", "serve"]

PATIENCE_SECONDS = 600.0


class CheckedBestFit(BestFit):
    """Best fit that is held to brute force at every choice.

    Attributes:
        violations: Choices that did not fit although something did, or were not the largest.
        choices: All choices.
    """

    violations = 0
    choices = 0

    def choose(
        self, space: PrunedSpace, chunks: ChunkFacts, sizes: PromptSizes, situation: Situation
    ) -> Choice:
        """Choose, and look at all configurations."""
        choice = super().choose(space, chunks, sizes, situation)
        fitting = [
            config
            for config in space.configurations(len(chunks.tokens))
            if self.fits(size(config, chunks, sizes), situation, sizes.window)
        ]
        largest = max((_rank(config) for config in fitting), default=None)
        wrong = largest is not None and _rank(choice.config) != largest
        object.__setattr__(self, "violations", self.violations + wrong)  # it is frozen
        object.__setattr__(self, "choices", self.choices + 1)
        return choice


def _rank(config: SynthesisConfig) -> tuple[int, int, int]:
    methods = ("map_rerank", "stuff", "map_reduce")
    return config.num_chunks, config.intermediate_length or 0, methods.index(config.method)


class Unlimited:
    """Says that all memory is free: what is chosen then looks at quality alone."""

    def read(self) -> MemoryLoad:
        """Say so."""
        return MemoryLoad(1 << 40, 1 << 40)

    async def aread(self) -> MemoryLoad:
        """Say so."""
        return self.read()


@dataclass(frozen=True)
class System:
    """A way of choosing configurations.

    Attributes:
        name: What it is called in the tables.
        settings: Its settings.
        quality_only: Whether it takes the best that suits, whatever memory is free.
        max_concurrency: Calls of one question at once; 1 for one after another.
    """

    name: str
    settings: AdaptiveSettings
    quality_only: bool = False
    max_concurrency: int = 32

    def pipeline(
        self,
        engine: RAGCacheEngine,
        profiler: Profiler,
        best_fit: BestFit,
        *,
        answer_tokens: int,
        ignore_eos: bool,
    ) -> AdaptivePipeline:
        """The pipeline on an engine."""
        load = Unlimited() if self.quality_only else EngineLoadSource(engine)
        return AdaptivePipeline(
            EngineAsker(engine, SamplingOptions(ignore_eos=ignore_eos)),
            profiler,
            self.settings,
            SynthesisSettings(max_tokens=answer_tokens, max_concurrency=self.max_concurrency),
            resources=lambda: Resources(load, engine, best_fit),
        )


@dataclass
class Served:
    """What one way of choosing did with questions.

    Attributes:
        delays: Seconds from a question's arrival to its whole answer.
        questions: The questions.
        answers: The answers.
        seconds: From the first arrival to the last answer.
    """

    delays: list[float] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    answers: list[AdaptiveAnswer] = field(default_factory=list)
    seconds: float = 0.0

    def extend(self, other: Served) -> None:
        """Append what was served next."""
        self.delays += other.delays
        self.questions += other.questions
        self.answers += other.answers
        self.seconds += other.seconds

    @property
    def chunks(self) -> float:
        """Chunks that an answer was allowed to read, on average."""
        return statistics.fmean(answer.explanation.config.num_chunks for answer in self.answers)

    @property
    def throughput(self) -> float:
        """Answers a second."""
        return len(self.answers) / self.seconds

    @property
    def profiler_share(self) -> float:
        """Median share of the delay during which the profiler was at work."""
        return statistics.median(answer.cost.profile_share for answer in self.answers)

    @property
    def profiler_wait_share(self) -> float:
        """Median share of the delay that it added."""
        return statistics.median(
            answer.cost.profile_wait_seconds / answer.cost.total_seconds for answer in self.answers
        )

    def methods(self) -> dict[str, int]:
        """How often each method was chosen."""
        names = [answer.explanation.config.method for answer in self.answers]
        return {name: names.count(name) for name in ("map_rerank", "stuff", "map_reduce")}

    def reasons(self) -> dict[str, int]:
        """How often each reason was given."""
        names = [str(answer.explanation.why) for answer in self.answers]
        return {name: names.count(name) for name in sorted(set(names))}


def serve(
    pipeline: AdaptivePipeline,
    corpus: Corpus,
    questions: Sequence[str],
    arrivals: Sequence[float],
) -> Served:
    """Answer questions.

    Args:
        pipeline: Answers.
        corpus: What it answers from.
        questions: What is asked.
        arrivals: Seconds after the start at which each arrives.
    """
    return asyncio.run(_serve(pipeline, corpus, questions, arrivals))


async def _serve(
    pipeline: AdaptivePipeline,
    corpus: Corpus,
    questions: Sequence[str],
    arrivals: Sequence[float],
) -> Served:
    found = {question: corpus.find(question, 30) for question in questions}
    began = time.perf_counter()

    async def retrieve(question: str, count: int) -> list[PromptDocument]:
        return found[question][:count]

    async def ask(question: str, arrival: float) -> tuple[float, AdaptiveAnswer]:
        await asyncio.sleep(max(0.0, began + arrival - time.perf_counter()))
        answer = await pipeline.aanswer(question, retrieve)
        return time.perf_counter() - began - arrival, answer

    async with asyncio.timeout(PATIENCE_SECONDS):
        answered = await asyncio.gather(*map(ask, questions, arrivals))
    seconds = time.perf_counter() - began
    delays, answers = (list(column) for column in zip(*answered, strict=True))
    return Served(delays, list(questions), answers, seconds)
