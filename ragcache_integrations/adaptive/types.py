"""The configuration of an answer, and the answer with its citations and steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ragcache_integrations.core.checks import check_choice, check_field, check_int, is_whole
from ragcache_integrations.core.generation import Usage
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "Citation",
    "ConfidenceKind",
    "Step",
    "StepKind",
    "Synthesis",
    "SynthesisConfig",
    "Synthesised",
]

TOKENS_PER_WORD = 4 / 3
"""Average of English text in the usual vocabularies."""

Synthesis = Literal["stuff", "map_reduce", "map_rerank"]
"""How chunks become an answer (RAGServe §2, figure 3)."""

ConfidenceKind = Literal["logprob", "self_rated"]
"""Whether a confidence is a mean token log-probability (at most 0) or a share from 0 to 1."""


@dataclass(frozen=True, slots=True)
class SynthesisConfig:
    """One configuration of retrieval and synthesis: RAGServe's three knobs (§2).

    Attributes:
        method: ``stuff`` puts all chunks into one prompt; ``map_reduce`` has each chunk summarised
            separately and answers from the summaries; ``map_rerank`` answers from each chunk
            separately and takes the answer that the model is surest of.
        num_chunks: The most chunks to read, the most relevant first; at least 1.
        intermediate_length: For ``map_reduce``, the most words of each summary; ``None`` for the
            other methods. The prompt states it, and :attr:`summary_tokens` enforces it.

    Raises:
        ConfigurationError: A value is out of its range or is not for the method.
    """

    method: Synthesis
    num_chunks: int
    intermediate_length: int | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, get_args(Synthesis))
        check_field(self, check_int, "num_chunks", 1)
        length = self.intermediate_length
        if self.method != "map_reduce":
            if length is not None:
                msg = f"intermediate_length is for map_reduce, got {length!r} with {self.method}"
                raise ConfigurationError(msg)
        elif length is None or not is_whole(length) or length < 1:
            raise ConfigurationError(
                "map_reduce needs intermediate_length, a whole number of words of at least 1, "
                f"got {length!r}"
            )

    @property
    def summary_tokens(self) -> int:
        """The most tokens of each summary; 0 for methods without summaries."""
        return math.ceil((self.intermediate_length or 0) * TOKENS_PER_WORD)


@dataclass(frozen=True, slots=True)
class Citation:
    """A chunk that an answer comes from.

    Attributes:
        index: Its position among the retrieved chunks, from 0.
        id: Its document id.
    """

    index: int
    id: str


StepKind = Literal["answer", "summary", "reduce", "candidate"]


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the model.

    Attributes:
        kind: ``answer`` is the only call of ``stuff``, ``summary`` and ``reduce`` are the calls of
            ``map_reduce``, ``candidate`` those of ``map_rerank``.
        chunks: Positions of the chunks that it read, among the retrieved ones.
        text: The model's answer.
        found: Whether it found something: ``False`` if it says "not in the document".
        confidence: How sure the model is; ``None`` if that is unknown.
        usage: Tokens of the call; ``None`` if the model does not report them.
    """

    kind: StepKind
    chunks: tuple[int, ...]
    text: str
    found: bool
    confidence: float | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Synthesised:
    """An answer, with the chunks that it comes from and the calls that made it.

    Attributes:
        text: The answer.
        method: The synthesis method.
        citations: The chunks that it comes from, in their order: those in the prompt for
            ``stuff``, those whose summaries found something for ``map_reduce``, the one that the
            answer was read from for ``map_rerank``. Empty if the answer is "not in the document".
        confidence: How sure the model is of the answer; ``None`` if that is unknown.
        confidence_kind: The scale of the confidence.
        calls: Number of calls of the model: one for ``stuff``, n for ``map_rerank``, n + 1 for
            ``map_reduce`` over n chunks.
        usage: Tokens of all calls together; ``None`` if the model did not report those of each.
        steps: The calls in the order of their chunks.
        left_out: Positions of the chunks that did not fit into the context window.
        shortened: Positions of the chunks that were cut to fit into it.
    """

    text: str
    method: Synthesis
    citations: tuple[Citation, ...] = ()
    confidence: float | None = None
    confidence_kind: ConfidenceKind | None = None
    calls: int = 0
    usage: Usage | None = None
    steps: tuple[Step, ...] = ()
    left_out: tuple[int, ...] = ()
    shortened: tuple[int, ...] = ()
