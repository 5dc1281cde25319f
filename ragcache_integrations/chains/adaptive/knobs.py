"""The knobs of the per-query pipelines of both frameworks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr, SkipValidation

from ragcache_integrations.adaptive import (
    AdaptivePipeline,
    AdaptiveSettings,
    Asker,
    CachedProfiler,
    HeuristicProfiler,
    LLMProfiler,
    LoadSource,
    MetricsLoadSource,
    Profiler,
    Synthesis,
    SynthesisConfig,
    SynthesisPrompts,
)
from ragcache_integrations.adaptive.resources import resources_of
from ragcache_integrations.adaptive.settings import Mode
from ragcache_integrations.chains.synthesis import AnswerArguments, AnswerKnobs
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.knobs import settings_of
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.handover import backend_of
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.retrievers.sharing import Identity, SharedState

__all__ = [
    "PROFILER_KNOBS",
    "AdaptiveArguments",
    "AdaptiveKnobs",
    "Pipelines",
]

PROFILER_KNOBS = ("profiler", "corpus", "chunk_size", "profile_tolerance", "min_confidence")
"""Settings on which profiles depend."""

DEFAULTS = AdaptiveSettings()


class AdaptiveKnobs(AnswerKnobs):
    """The settings of a per-query pipeline.

    Attributes:
        mode: ``adaptive`` uses the largest of the suitable configurations that fits into the free
            memory; ``gradual`` the smallest one first, and larger ones that fit, only while the
            model says that the answer is not in the documents;
            ``largest`` the largest and ``median`` the middle one, without looking at the memory;
            ``fixed`` always ``config``.
        config: For ``fixed``: a :class:`~ragcache_integrations.adaptive.SynthesisConfig`.
        method: Synthesis method of all questions: ``stuff``, ``map_reduce`` or ``map_rerank``.
            ``None``: chosen for each question.
        num_chunks: Number of chunks that all questions read. ``None``: chosen for each question.
        intermediate_length: The most words of the summaries of all questions, for ``map_reduce``.
            ``None``: chosen for each question.
        profiler: ``llm`` asks a model what a question needs; ``heuristic`` infers it from the
            question's words; or an object with ``profile`` and ``aprofile``.
        corpus: A one-line description of the corpus, for the profiler; ``draft_corpus`` drafts it.
        chunk_size: Length of the corpus's chunks in tokens, for the profiler.
        max_chunks: Number of chunks that are retrieved while the question is being profiled, if
            ``num_chunks`` is not set.
        min_confidence: Profiles below this confidence, from 0 to 1, are replaced by what suited
            recent questions.
        profile_timeout: Seconds from the question after which a missing profile is replaced, too.
        profile_tolerance: With embeddings: the largest distance, ``sqrt(2 - 2 cos)``, between two
            questions that share a profile; 0 for identical questions only.
        latency_budget: Seconds that the answer is expected to take at most; ``None`` for no limit.
        load: Reports the free memory: the address of another vLLM server, whose ``/metrics`` are
            read, or a :class:`~ragcache_integrations.adaptive.LoadSource`. ``None`` for the engine
            or server that answers.
        golden_every: One of this many questions is answered a second time with the most expensive
            configuration, in the background, and the profiler learns from it; 30 in the paper.
            ``None`` for never.
        golden_token_budget: The most tokens to spend on these answers.
        max_tokens: The most tokens of an answer; ``None`` for the model's own setting.
        context_window: The most tokens of prompt and answer together; ``None`` for what the model
            reports.
        max_concurrency: The most concurrent calls of the model for one question.
        ranking: How ``map_rerank`` finds the best answer: ``logprobs``, ``self_rated`` or
            ``auto``.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    mode: Mode = DEFAULTS.mode
    config: SynthesisConfig | None = None
    method: Synthesis | None = None
    num_chunks: int | None = Field(default=None, ge=1, strict=True)
    intermediate_length: int | None = Field(default=None, ge=1, strict=True)
    profiler: Annotated[Literal["llm", "heuristic"] | Profiler, SkipValidation] = "llm"
    corpus: str = Field(default="", strict=True)
    chunk_size: int | None = Field(default=None, ge=1, strict=True)
    max_chunks: int = Field(default=DEFAULTS.max_chunks, ge=1, strict=True)
    min_confidence: float = Field(default=DEFAULTS.min_confidence, ge=0, le=1)
    profile_timeout: float = Field(
        default=DEFAULTS.profile_timeout, gt=0, allow_inf_nan=False, strict=True
    )
    profile_tolerance: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    latency_budget: float | None = Field(default=None, gt=0, allow_inf_nan=False, strict=True)
    load: Annotated[str | LoadSource | None, SkipValidation] = Field(default=None, exclude=True)
    golden_every: int | None = Field(default=None, ge=1, strict=True)
    golden_token_budget: int = Field(default=DEFAULTS.golden_token_budget, ge=1, strict=True)

    _pipeline: AdaptivePipeline = PrivateAttr()

    def _make_pipeline(
        self,
        asker: Asker,
        prompts: SynthesisPrompts,
        own: LLMKnobs | None,
        profilers: tuple[LLMProfiler | None, Profiler | None],
    ) -> AdaptivePipeline:
        """Make the pipeline with these settings.

        Args:
            asker: The model that answers.
            prompts: The prompts of the synthesis.
            own: The LLM object that answers; ``None`` for other models than ours.
            profilers: The profiler that learns and the one that is used.

        Raises:
            ConfigurationError: Settings contradict each other.
        """
        load = MetricsLoadSource(self.load) if isinstance(self.load, str) else self.load
        if load is not None and not (hasattr(load, "read") and hasattr(load, "aread")):
            msg = f"load must be an address or have read and aread, got {type(load).__name__}"
            raise ConfigurationError(msg)
        teaches, profiler = profilers
        return AdaptivePipeline(
            asker,
            profiler,
            settings_of(AdaptiveSettings, self),
            self._settings_with(prompts),
            resources=lambda: resources_of(None if own is None else backend_of(own), load),
            namespace="" if own is None else own.namespace,
            teaches=teaches,
        )

    def _values(self, *names: str) -> tuple[Hashable, ...]:
        """Hashable values of some settings; of all settings if there are no names."""
        values = [getattr(self, name) for name in names or AdaptiveKnobs.model_fields]
        plain = str | int | float | SynthesisConfig | None
        return tuple(value if isinstance(value, plain) else Identity(value) for value in values)

    def _profilers(
        self, asker: Asker, embed: Callable[[str], Any] | None
    ) -> tuple[LLMProfiler | None, Profiler | None]:
        """The profiler that learns, if any, and the one that is used."""
        if self.mode == "fixed":
            return None, None
        profiler: Profiler
        if self.profiler == "llm":
            profiler = LLMProfiler(asker, self.corpus, self.chunk_size)
        elif self.profiler == "heuristic":
            return None, HeuristicProfiler()
        elif isinstance(self.profiler, str) or not hasattr(self.profiler, "aprofile"):
            raise ConfigurationError(
                "profiler must be llm, heuristic, or have profile and aprofile, "
                f"got {self.profiler!r:.100}"
            )
        else:
            profiler = self.profiler
        teaches = profiler if isinstance(profiler, LLMProfiler) else None
        if embed is not None:
            profiler = CachedProfiler(
                profiler,
                embed,
                tolerance=self.profile_tolerance,
                min_confidence=self.min_confidence,
            )
        return teaches, profiler


class Pipelines:
    """The pipelines of a chain and of its copies with other settings. Thread-safe."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._kept = SharedState()
        self._made: weakref.WeakSet[AdaptivePipeline] = weakref.WeakSet()
        self._closed = False

    def get(self, settings: Hashable, make: Callable[[], AdaptivePipeline]) -> AdaptivePipeline:
        """Return the pipeline for some settings, which chains with equal settings share.

        Args:
            settings: Identifies the settings.
            make: Makes a pipeline.
        """
        pipeline = self._kept.core(settings, make)
        with self._lock:
            self._made.add(pipeline)
            closed = self._closed
        if closed:
            pipeline.close()
        return pipeline

    def close(self) -> None:
        """Stop background learning of all pipelines. Idempotent."""
        with self._lock:
            self._closed = True
            made = list(self._made)
        for pipeline in made:
            pipeline.close()


class AdaptiveArguments(AnswerArguments, total=False):
    """The fields of :class:`AdaptiveKnobs` as keyword arguments."""

    mode: Mode
    config: SynthesisConfig | None
    method: Synthesis | None
    num_chunks: int | None
    intermediate_length: int | None
    profiler: Literal["llm", "heuristic"] | Profiler
    corpus: str
    chunk_size: int | None
    max_chunks: int
    min_confidence: float
    profile_timeout: float
    profile_tolerance: float
    latency_budget: float | None
    load: str | LoadSource | None
    golden_every: int | None
    golden_token_budget: int
