"""The three synthesis methods (RAGServe §2, figure 3), as plans that call no model themselves.

A plan is a generator. It yields rounds of requests that may be sent concurrently, is sent their
answers, and returns the result. The caller decides whether to block, to stream or to await.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from ragcache_integrations.adaptive.asker import (
    Asker,
    LogprobSupport,
    ModelAnswer,
    ModelRequest,
    add_usage,
)
from ragcache_integrations.adaptive.types import (
    TOKENS_PER_WORD,
    Citation,
    ConfidenceKind,
    Step,
    StepKind,
    SynthesisConfig,
    Synthesised,
)
from ragcache_integrations.core.generation import TokenLogprob, Usage
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError

from .packing import Packed, Window
from .prompts import NOTHING_TO_READ, found_nothing
from .settings import SynthesisSettings

__all__ = ["Answered", "Plan", "Round", "best", "mean_logprob", "plan_of", "self_rated"]

logger = logging.getLogger(__name__)


_SCORE = re.compile(r"\bscore\W*(\d+(?:\.\d+)?)", re.IGNORECASE)
_LABEL = re.compile(r"^\s*answer\s*:\s*", re.IGNORECASE)
_TRAILING = " \t\n\r*_-("
HIGHEST = 100.0


def mean_logprob(tokens: Sequence[TokenLogprob]) -> float | None:
    """Mean natural-log probability of an answer's tokens; ``None`` if there are none.

    At most 0; ``-inf`` if a token was impossible.
    """
    if not tokens:
        return None
    mean = math.fsum(token.logprob for token in tokens) / len(tokens)
    return -math.inf if math.isnan(mean) else mean


def self_rated(text: str) -> tuple[str, float | None]:
    """Separate an answer from the score that the model gave it.

    Returns:
        The answer, and its score from 0 to 1; ``None`` if it is missing or out of range.
    """
    scores = list(_SCORE.finditer(text))
    if not scores:
        return _LABEL.sub("", text).strip(), None
    last = scores[-1]
    score = float(last[1])
    answer = _LABEL.sub("", text[: last.start()]).rstrip(_TRAILING).strip()
    return answer, score / HIGHEST if score <= HIGHEST else None


def best(candidates: Sequence[tuple[bool, float | None]]) -> int:
    """Find the best answer: one that found something, then the surest, then the first.

    Args:
        candidates: For each answer, whether it found something and how sure the model is. Answers
            of unknown confidence rank after those of known confidence.

    Returns:
        The position of the best answer.
    """
    return max(
        range(len(candidates)),
        key=lambda i: (
            candidates[i][0],
            candidates[i][1] is not None,
            candidates[i][1] or 0.0,
            -i,
        ),
    )


SHORTEST_SUMMARY = 16
"""Least length of a summary in tokens: chunks are left out before summaries get shorter."""


@dataclass(frozen=True, slots=True)
class Round:
    """Requests that do not depend on each other's answers.

    Attributes:
        requests: The requests; at least one.
        final: Whether there is a single request whose answer is the answer to the question.
    """

    requests: tuple[ModelRequest, ...]
    final: bool = False


Plan = Generator[Round, Sequence[ModelAnswer], Synthesised]

Answered = dict[ModelRequest, ModelAnswer]
"""The requests about a single chunk that were answered before."""


def plan_of(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings,
    answered: Answered,
) -> Plan:
    """Plan an answer.

    Args:
        asker: Counts tokens and knows the model's limits; it is sent no request.
        question: The question.
        chunks: The retrieved chunks, most relevant first.
        config: The method, and how much to read.
        settings: The other settings.
        answered: What need not be asked again; what is asked is added.

    Raises:
        ConfigurationError: The question is empty, or a chunk is no ``PromptDocument``.
        PromptTooLongError: Question and instructions alone fill the context window.
    """
    if not isinstance(question, str) or not question.strip():
        msg = f"the question must be a non-empty string, got {question!r}"
        raise ConfigurationError(msg)
    for chunk in chunks:
        if not isinstance(chunk, PromptDocument):
            msg = f"chunks must be PromptDocument, got {type(chunk).__name__}"
            raise ConfigurationError(msg)
    return _Job(asker, question, chunks, config, settings, answered).plan()


class _Job:
    """The plan of one question."""

    def __init__(
        self,
        asker: Asker,
        question: str,
        chunks: Sequence[PromptDocument],
        config: SynthesisConfig,
        settings: SynthesisSettings,
        answered: Answered,
    ) -> None:
        self._asker = asker
        self._question = question
        self._retrieved = tuple(chunks)
        self._chunks = self._retrieved[: config.num_chunks]
        self._config = config
        self._settings = settings
        self._answered = answered
        self._prompts = settings.prompts

    def plan(self) -> Plan:
        if not self._chunks:
            return Synthesised(NOTHING_TO_READ, self._config.method)
        window = Window(self._asker, self._settings)
        match self._config.method:
            case "stuff":
                return (yield from self._stuff(window))
            case "map_reduce":
                return (yield from self._map_reduce(window))
            case "map_rerank":
                return (yield from self._map_rerank(window))

    # stuff

    def _stuff(self, window: Window) -> Plan:
        packed = window.pack(self._chunks, self._prompts.stuff(self._question, ()))
        request = ModelRequest(
            self._prompts.stuff(self._question, packed.documents),
            self._settings.max_tokens,
            logprobs=self._wants_logprobs,
        )
        (answer,) = yield Round((request,), final=True)
        step = self._step("answer", packed.places, answer)
        citations = packed.places if step.found else ()
        return self._result(step, citations, (step,), packed)

    # map_reduce

    def _map_reduce(self, window: Window) -> Plan:
        # Computed in advance, so that no chunk is read whose summary would not fit afterwards.
        count, tokens = self._summaries_that_fit(window)
        words = max(1, min(self._config.intermediate_length or 1, int(tokens / TOKENS_PER_WORD)))
        frame = self._prompts.map(self._question, (), words)
        packed = window.pack_each(self._chunks[:count], frame, tokens)
        requests = tuple(
            ModelRequest(self._prompts.map(self._question, (document,), words), tokens, inner=True)
            for document in packed.documents
        )
        steps, made = yield from self._ask_each("summary", packed, requests)
        return (yield from self._reduce(window, packed, steps, made))

    def _reduce(
        self, window: Window, packed: Packed, steps: Sequence[Step], made: Sequence[Step]
    ) -> Plan:
        # Marked as documents: a summary repeats text of a page, which must not open a chat turn.
        written = [step for step in steps if step.text]
        summaries = [PromptDocument(step.text) for step in written]
        fitting = window.pack(summaries, self._prompts.combine(self._question, ()))
        request = ModelRequest(
            self._prompts.combine(self._question, fitting.documents),
            self._settings.max_tokens,
            logprobs=self._wants_logprobs,
        )
        (answer,) = yield Round((request,), final=True)
        read = [written[place] for place in fitting.places]
        chunks = tuple(place for summary in read for place in summary.chunks)
        step = self._step("reduce", chunks, answer)
        citations = [place for summary in read if summary.found for place in summary.chunks]
        return self._result(step, citations if step.found else (), (*made, step), packed)

    def _summaries_that_fit(self, window: Window) -> tuple[int, int]:
        """Return how many chunks to summarise, and in how many tokens each."""
        count, tokens = len(self._chunks), self._config.summary_tokens
        if not window.limited:
            return count, tokens
        room = window.room(self._prompts.combine(self._question, ()))
        shortest = min(tokens, SHORTEST_SUMMARY)
        count = min(count, max(1, room // (shortest + window.separator)))
        return count, max(1, min(tokens, room // count - window.separator))

    # map_rerank

    def _map_rerank(self, window: Window) -> Plan:
        scored = not self._wants_logprobs
        if scored and self._settings.ranking == "logprobs":
            raise _no_logprobs()
        packed, steps, made = yield from self._candidates(window, scored=scored)
        unknown = any(step.confidence is None and step.text for step in steps)
        if not scored and unknown:
            # The model turns out to return none. Without confidences the choice would be arbitrary,
            # so that the model is asked again, with scores.
            self._asker.logprob_support.available = False
            if self._settings.ranking == "logprobs":
                raise _no_logprobs()
            scored, unscored = True, made
            packed, steps, made = yield from self._candidates(window, scored=True)
            made = [*unscored, *made]
        if scored and self._settings.ranking == "auto":
            _warn_once(self._asker.logprob_support)
        chosen = steps[best([(step.found, step.confidence) for step in steps])]
        citations = chosen.chunks if chosen.found else ()
        return self._result(chosen, citations, made, packed, scored=scored)

    def _candidates(
        self, window: Window, *, scored: bool
    ) -> Generator[Round, Sequence[ModelAnswer], tuple[Packed, list[Step], list[Step]]]:
        frame = self._prompts.rerank(self._question, (), scored=scored)
        packed = window.pack_each(self._chunks, frame)
        requests = tuple(
            ModelRequest(
                self._prompts.rerank(self._question, (document,), scored=scored),
                self._settings.max_tokens,
                logprobs=not scored,
                inner=True,
            )
            for document in packed.documents
        )
        steps, made = yield from self._ask_each("candidate", packed, requests, scored=scored)
        return packed, steps, made

    # Shared by the methods

    def _ask_each(
        self,
        kind: StepKind,
        packed: Packed,
        requests: Sequence[ModelRequest],
        *,
        scored: bool = False,
    ) -> Generator[Round, Sequence[ModelAnswer], tuple[list[Step], list[Step]]]:
        """Ask about one document each; return the steps of all, and those that were made now."""
        new = [request not in self._answered for request in requests]
        asked = tuple(itertools.compress(requests, new))
        if asked:
            answers = yield Round(asked)
            self._answered.update(zip(asked, answers, strict=True))
        steps = [
            self._step(kind, (place,), self._answered[request], scored=scored)
            for place, request in zip(packed.places, requests, strict=True)
        ]
        return steps, list(itertools.compress(steps, new))

    @property
    def _wants_logprobs(self) -> bool:
        return self._asker.logprob_support.available and self._settings.ranking != "self_rated"

    def _step(
        self, kind: StepKind, places: tuple[int, ...], answer: ModelAnswer, *, scored: bool = False
    ) -> Step:
        text, confidence = answer.text.strip(), mean_logprob(answer.logprobs)
        if scored:
            text, confidence = self_rated(answer.text)
        return Step(kind, places, text, not found_nothing(text), confidence, answer.usage)

    def _result(
        self,
        step: Step,
        citations: Sequence[int],
        made: Sequence[Step],
        packed: Packed,
        *,
        scored: bool = False,
    ) -> Synthesised:
        kind: ConfidenceKind = "self_rated" if scored else "logprob"
        return Synthesised(
            text=step.text,
            method=self._config.method,
            citations=tuple(
                Citation(place, self._retrieved[place].id) for place in sorted(citations)
            ),
            confidence=step.confidence,
            confidence_kind=None if step.confidence is None else kind,
            calls=len(made),
            usage=_total(made),
            steps=tuple(made),
            left_out=tuple(
                place for place in range(len(self._chunks)) if place not in packed.places
            ),
            shortened=packed.shortened,
        )


def _total(steps: Sequence[Step]) -> Usage | None:
    known = [step.usage for step in steps if step.usage is not None]
    return add_usage(known) if len(known) == len(steps) else None


def _no_logprobs() -> ConfigurationError:
    return ConfigurationError(
        "ranking='logprobs' needs a model that gives log-probabilities, and this one gives none: "
        "use 'auto' or 'self_rated', which rank its answers by a score that it gives itself"
    )


def _warn_once(support: LogprobSupport) -> None:
    if not support.lack_was_told:
        support.lack_was_told = True
        logger.warning(
            "the model gives no log-probabilities: map_rerank ranks its answers by a score from 0 "
            "to 100 that it gives itself, which is less reliable"
        )
