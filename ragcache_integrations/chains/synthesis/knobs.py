"""The knobs of the synthesis classes, the same in every framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ragcache_integrations.adaptive import (
    Synthesis,
    SynthesisConfig,
    SynthesisPrompts,
    SynthesisSettings,
)
from ragcache_integrations.adaptive.synthesis.settings import Ranking
from ragcache_integrations.core.checks import explain_error

__all__ = [
    "MapReduceArguments",
    "MapReduceKnobs",
    "SynthesisArguments",
    "SynthesisKnobs",
    "read_synthesis_knobs",
]

Knobs = TypeVar("Knobs", bound="SynthesisKnobs")


class SynthesisKnobs(BaseModel):
    """What can be set on a synthesis class.

    Attributes:
        num_chunks: Chunks to read at most, from the first; all where ``None``.
        max_tokens: The most tokens of an answer; the model's own setting where ``None``.
        context_window: Tokens that prompt and answer may take together; what the model says where
            ``None``. What does not fit is left out; a chunk that is too long by itself is cut.
            Where the model says nothing, nothing is.
        max_concurrency: So many calls of the model at once, at most.
        ranking: How ``map_rerank`` tells which answer is best: ``logprobs``, by the mean
            log-probability of its tokens; ``self_rated``, by a score that the model gives itself;
            ``auto``, by log-probabilities where the model gives them, else by its score.
    """

    model_config = ConfigDict(extra="forbid")

    num_chunks: int | None = Field(default=None, ge=1, strict=True)
    max_tokens: int | None = Field(default=None, ge=1, strict=True)
    context_window: int | None = Field(default=None, ge=2, strict=True)
    max_concurrency: int = Field(default=32, ge=1, strict=True)
    ranking: Ranking = "auto"

    def _config(self, method: Synthesis, found: int) -> SynthesisConfig:
        """The configuration for so many chunks as were found."""
        chunks = max(1, found) if self.num_chunks is None else self.num_chunks
        length = getattr(self, "intermediate_length", None)
        return SynthesisConfig(method, chunks, length)

    def _settings_with(self, prompts: SynthesisPrompts) -> SynthesisSettings:
        return SynthesisSettings(
            max_tokens=self.max_tokens,
            context_window=self.context_window,
            max_concurrency=self.max_concurrency,
            ranking=self.ranking,
            prompts=prompts,
        )


class MapReduceKnobs(SynthesisKnobs):
    """What can be set on a ``map_reduce`` class.

    Attributes:
        intermediate_length: The most words of each summary; short ones save time, and complex
            questions take longer ones (RAGServe's figure 4 (c)).
    """

    intermediate_length: int = Field(default=100, ge=1, strict=True)


class SynthesisArguments(TypedDict, total=False):
    """The fields of :class:`SynthesisKnobs` as keyword arguments."""

    num_chunks: int | None
    max_tokens: int | None
    context_window: int | None
    max_concurrency: int
    ranking: Ranking


class MapReduceArguments(SynthesisArguments, total=False):
    """The fields of :class:`MapReduceKnobs` as keyword arguments."""

    intermediate_length: int


def read_synthesis_knobs(kind: type[Knobs], arguments: Mapping[str, Any]) -> Knobs:
    """Return the knobs that keyword arguments set.

    Raises:
        ConfigurationError: One is unknown or out of its range.
    """
    try:
        return kind(**arguments)
    except ValidationError as error:
        raise explain_error(error, kind.model_fields) from error
