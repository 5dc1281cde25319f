"""The knobs of the synthesis classes, the same in every framework."""

from __future__ import annotations

from typing import TypedDict

from pydantic import BaseModel, ConfigDict, Field

from ragcache_integrations.adaptive import (
    Synthesis,
    SynthesisConfig,
    SynthesisPrompts,
    SynthesisSettings,
)
from ragcache_integrations.adaptive.synthesis import Ranking
from ragcache_integrations.core.knobs import settings_of

__all__ = [
    "AnswerArguments",
    "AnswerKnobs",
    "MapReduceArguments",
    "MapReduceKnobs",
    "SynthesisArguments",
    "SynthesisKnobs",
]


class AnswerKnobs(BaseModel):
    """The settings of every class that answers from documents; the subclasses explain them."""

    model_config = ConfigDict(extra="forbid")

    max_tokens: int | None = Field(default=None, ge=1, strict=True)
    context_window: int | None = Field(default=None, ge=2, strict=True)
    max_concurrency: int = Field(default=32, ge=1, strict=True)
    ranking: Ranking = "auto"

    def _settings_with(self, prompts: SynthesisPrompts) -> SynthesisSettings:
        return settings_of(SynthesisSettings, self, prompts=prompts)


class SynthesisKnobs(AnswerKnobs):
    """The settings of a synthesis class.

    Attributes:
        num_chunks: The most chunks to read, from the first; ``None`` for all.
        max_tokens: The most tokens of an answer; ``None`` for the model's own setting.
        context_window: The most tokens of prompt and answer together; ``None`` for what the model
            reports, or for no limit if it doesn't. Chunks that don't fit are left out; a single
            chunk that is too long is cut.
        max_concurrency: The most concurrent calls of the model.
        ranking: How ``map_rerank`` finds the best answer: ``logprobs``, by the mean log-probability
            of its tokens; ``self_rated``, by a score that the model assigns; ``auto``, by
            log-probabilities if the model returns them, otherwise by its score.
    """

    num_chunks: int | None = Field(default=None, ge=1, strict=True)

    def _config(self, method: Synthesis, count: int) -> SynthesisConfig:
        """The configuration for a number of chunks."""
        chunks = max(1, count) if self.num_chunks is None else self.num_chunks
        length = getattr(self, "intermediate_length", None)
        return SynthesisConfig(method, chunks, length)


class MapReduceKnobs(SynthesisKnobs):
    """The settings of a ``map_reduce`` class.

    Attributes:
        intermediate_length: The most words of each summary. Short ones save time; complex questions
            need longer ones (RAGServe's figure 4 (c)).
    """

    intermediate_length: int = Field(default=100, ge=1, strict=True)


class AnswerArguments(TypedDict, total=False):
    """The fields of :class:`AnswerKnobs` as keyword arguments."""

    max_tokens: int | None
    context_window: int | None
    max_concurrency: int
    ranking: Ranking


class SynthesisArguments(AnswerArguments, total=False):
    """The fields of :class:`SynthesisKnobs` as keyword arguments."""

    num_chunks: int | None


class MapReduceArguments(SynthesisArguments, total=False):
    """The fields of :class:`MapReduceKnobs` as keyword arguments."""

    intermediate_length: int
