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
    SynthesisConfig,
    SynthesisPrompts,
    SynthesisSettings,
)
from ragcache_integrations.adaptive.resources import resources_of
from ragcache_integrations.adaptive.settings import PipelineKnobs
from ragcache_integrations.adaptive.synthesis import AnswerKnobs
from ragcache_integrations.core.checks import check_number
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.knobs import PositiveOrNone, checked, settings_of
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.handover import backend_of
from ragcache_integrations.retrievers.sharing import Identity, SharedState

__all__ = [
    "PROFILER_KNOBS",
    "AdaptiveKnobs",
    "Pipelines",
]

PROFILER_KNOBS = ("profiler", "corpus", "chunk_size", "profile_tolerance", "min_confidence")
"""Settings on which profiles depend."""


class AdaptiveKnobs(AnswerKnobs, PipelineKnobs):
    """The settings of a per-query pipeline.

    Attributes:
        profiler: ``llm`` asks a model what a question needs; ``heuristic`` infers it from the
            question's words; or an object with ``profile`` and ``aprofile``.
        corpus: A one-line description of the corpus, for the profiler; ``draft_corpus`` drafts it.
        chunk_size: Length of the corpus's chunks in tokens, for the profiler.
        profile_tolerance: With embeddings: the largest distance, ``sqrt(2 - 2 cos)``, between two
            questions that share a profile; 0 for identical questions only.
        load: Reports the free memory: the address of another vLLM server, whose ``/metrics`` are
            read, or a :class:`~ragcache_integrations.adaptive.LoadSource`. ``None`` for the engine
            or server that answers.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    profiler: Annotated[Literal["llm", "heuristic"] | Profiler, SkipValidation] = "llm"
    corpus: str = Field(default="", strict=True)
    chunk_size: PositiveOrNone = None
    profile_tolerance: Annotated[float, checked(check_number, 0)] = 0.2
    load: Annotated[str | LoadSource | None, SkipValidation] = Field(default=None, exclude=True)

    _pipeline: AdaptivePipeline = PrivateAttr()

    def _make_pipeline(
        self,
        asker: Asker,
        prompts: SynthesisPrompts,
        own: BaseRAGCacheLLM | None,
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
            settings_of(SynthesisSettings, self, prompts=prompts),
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
