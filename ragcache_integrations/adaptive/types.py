"""What a question is answered with, and what comes back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.core.generation import Usage
from ragcache_integrations.errors import ConfigurationError

__all__ = ["Citation", "ConfidenceKind", "Step", "Synthesis", "SynthesisConfig", "Synthesised"]

TOKENS_PER_WORD = 4 / 3
"""Of English text in the usual vocabularies."""

Synthesis = Literal["stuff", "map_reduce", "map_rerank"]
"""How chunks become an answer (RAGServe §2, figure 3)."""

ConfidenceKind = Literal["logprob", "self_rated"]
"""Whether a confidence is a mean token log-probability (at most 0) or a share from 0 to 1."""


@dataclass(frozen=True, slots=True)
class SynthesisConfig:
    """One configuration of retrieval and synthesis: RAGServe's three knobs (§2).

    Attributes:
        method: ``stuff`` puts all chunks into one prompt; ``map_reduce`` has each chunk summarised
            by itself and answers from the summaries; ``map_rerank`` answers from each chunk by
            itself and takes the answer that the model is surest of.
        num_chunks: The most chunks to read, from the first; at least 1.
        intermediate_length: The most words of each summary; for ``map_reduce``, ``None`` for the
            others. The model is told so, and gets :attr:`summary_tokens` to say it in.

    Raises:
        ConfigurationError: A value is out of its range or does not go with the method.
    """

    method: Synthesis
    num_chunks: int
    intermediate_length: int | None = None

    def __post_init__(self) -> None:
        if self.method not in get_args(Synthesis):
            msg = f"method must be one of {', '.join(get_args(Synthesis))}, got {self.method!r}"
            raise ConfigurationError(msg)
        if not is_whole(self.num_chunks) or self.num_chunks < 1:
            msg = f"num_chunks must be a whole number of at least 1, got {self.num_chunks!r}"
            raise ConfigurationError(msg)
        length = self.intermediate_length
        if self.method != "map_reduce":
            if length is not None:
                msg = f"intermediate_length is for map_reduce, got {length!r} with {self.method}"
                raise ConfigurationError(msg)
        elif length is None or not is_whole(length) or length < 1:
            msg = (
                "map_reduce needs intermediate_length, a whole number of words of at least 1, "
                f"got {length!r}"
            )
            raise ConfigurationError(msg)

    @property
    def summary_tokens(self) -> int:
        """The most tokens of each summary; 0 for methods without summaries."""
        return math.ceil((self.intermediate_length or 0) * TOKENS_PER_WORD)


@dataclass(frozen=True, slots=True)
class Citation:
    """A chunk that an answer comes from.

    Attributes:
        index: Its place among the chunks that were given, from 0.
        id: Its id.
    """

    index: int
    id: str


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the model.

    Attributes:
        kind: ``answer`` is the only call of ``stuff``, ``summary`` and ``reduce`` are those of
            ``map_reduce``, ``candidate`` those of ``map_rerank``.
        chunks: Places of the chunks that it read.
        text: What the model said.
        found: Whether it found something: ``False`` where it says "not in the document".
        confidence: How sure the model is, where it tells.
        usage: What the call took, where the model tells.
    """

    kind: Literal["answer", "summary", "reduce", "candidate"]
    chunks: tuple[int, ...]
    text: str
    found: bool
    confidence: float | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Synthesised:
    """An answer and where it comes from.

    Attributes:
        text: The answer.
        method: How it was made.
        citations: The chunks that it comes from, in their order: those in the prompt for
            ``stuff``, those whose summaries found something for ``map_reduce``, the one behind
            the answer for ``map_rerank``. None where the answer is "not in the document".
        confidence: How sure the model is of the answer; ``None`` where nothing tells.
        confidence_kind: What the confidence is.
        calls: Calls of the model: one for ``stuff``, n for ``map_rerank``, n + 1 for
            ``map_reduce`` over n chunks.
        usage: Tokens of all calls together; ``None`` where the model did not tell for each.
        steps: The calls in the order of their chunks.
        left_out: Places of the chunks that did not fit into the context window.
        shortened: Places of the chunks that were cut to fit into it.
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
