"""The knobs of the synthesis classes, the same in every framework."""

from __future__ import annotations

from pydantic import ConfigDict

from ragcache_integrations.adaptive import Synthesis, SynthesisConfig
from ragcache_integrations.adaptive.synthesis import AnswerKnobs
from ragcache_integrations.core.knobs import Positive, PositiveOrNone

__all__ = [
    "MapReduceKnobs",
    "SynthesisKnobs",
]


class SynthesisKnobs(AnswerKnobs):
    """The settings of a synthesis class.

    Attributes:
        num_chunks: The most chunks to read, from the first; ``None`` for all.
    """

    model_config = ConfigDict(extra="forbid")

    num_chunks: PositiveOrNone = None

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

    intermediate_length: Positive = 100
