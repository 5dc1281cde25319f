"""The three synthesis methods (RAGServe §2, figure 3), as plans that ask nobody themselves.

A plan yields rounds of requests, which may all be sent at once, is sent their answers, and returns
the result. What asks, and whether it blocks, streams or awaits, is for the caller to say.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal

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
    SynthesisConfig,
    Synthesised,
)
from ragcache_integrations.core.generation import Usage
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError

from .packing import Packed, Window
from .prompts import NOTHING_TO_READ, found_nothing
from .scores import best, mean_logprob, self_rated
from .settings import SynthesisSettings

__all__ = ["Plan", "Round", "plan_of"]

logger = logging.getLogger(__name__)

SHORTEST_SUMMARY = 16
"""Tokens below which a summary says nothing: rather fewer summaries than shorter ones."""


@dataclass(frozen=True, slots=True)
class Round:
    """Requests that wait for nothing but each other's answers.

    Attributes:
        requests: At least one.
        final: Whether the answer to the only request is the answer to the question.
    """

    requests: tuple[ModelRequest, ...]
    final: bool = False


Plan = Generator[Round, Sequence[ModelAnswer], Synthesised]


def plan_of(
    asker: Asker,
    question: str,
    chunks: Sequence[PromptDocument],
    config: SynthesisConfig,
    settings: SynthesisSettings,
) -> Plan:
    """Plan an answer.

    Args:
        asker: Counts tokens, and tells how much the model reads; it is not asked.
        question: The question.
        chunks: What was retrieved, the most relevant first.
        config: The method, and how much to read.
        settings: What else can be set.

    Raises:
        ConfigurationError: The question is empty, or a chunk is none.
        PromptTooLongError: Question and instructions alone fill the context window.
    """
    if not isinstance(question, str) or not question.strip():
        msg = f"the question must be a non-empty string, got {question!r}"
        raise ConfigurationError(msg)
    for chunk in chunks:
        if not isinstance(chunk, PromptDocument):
            msg = f"chunks must be PromptDocument, got {type(chunk).__name__}"
            raise ConfigurationError(msg)
    return _Job(asker, question, chunks, config, settings).plan()


class _Job:
    """One question."""

    def __init__(
        self,
        asker: Asker,
        question: str,
        chunks: Sequence[PromptDocument],
        config: SynthesisConfig,
        settings: SynthesisSettings,
    ) -> None:
        self._asker = asker
        self._question = question
        self._given = tuple(chunks)
        self._chunks = self._given[: config.num_chunks]
        self._config = config
        self._settings = settings
        self._prompts = settings.prompts

    def plan(self) -> Plan:
        if not self._chunks:
            return Synthesised(NOTHING_TO_READ, self._config.method)
        window = Window(self._asker, self._settings)
        if self._config.method == "stuff":
            return (yield from self._stuff(window))
        if self._config.method == "map_reduce":
            return (yield from self._map_reduce(window))
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
        cited = packed.places if step.found else ()
        return self._result(step, cited, (step,), packed)

    # map_reduce

    def _map_reduce(self, window: Window) -> Plan:
        # Known beforehand, so that no chunk is read whose summary then finds no room.
        count, tokens = self._summaries_that_fit(window)
        words = max(1, min(self._config.intermediate_length or 1, int(tokens / TOKENS_PER_WORD)))
        frame = self._prompts.map(self._question, (), words)
        packed = window.pack_each(self._chunks[:count], frame, tokens)
        requests = tuple(
            ModelRequest(self._prompts.map(self._question, (document,), words), tokens)
            for document in packed.documents
        )
        answers = yield Round(requests)
        steps = [
            self._step("summary", (place,), answer)
            for place, answer in zip(packed.places, answers, strict=True)
        ]
        return (yield from self._reduce(window, packed, steps))

    def _reduce(self, window: Window, packed: Packed, steps: list[Step]) -> Plan:
        # Marked as documents: what a page made the model say must not open a chat turn either.
        said = [step for step in steps if step.text]
        summaries = [PromptDocument(step.text) for step in said]
        fitting = window.pack(summaries, self._prompts.combine(self._question, ()))
        request = ModelRequest(
            self._prompts.combine(self._question, fitting.documents),
            self._settings.max_tokens,
            logprobs=self._wants_logprobs,
        )
        (answer,) = yield Round((request,), final=True)
        read = [said[place] for place in fitting.places]
        step = self._step("reduce", tuple(place for one in read for place in one.chunks), answer)
        cited = [place for one in read if one.found for place in one.chunks] if step.found else []
        return self._result(step, cited, (*steps, step), packed)

    def _summaries_that_fit(self, window: Window) -> tuple[int, int]:
        """How many chunks to summarise, and in how many tokens each."""
        count, tokens = len(self._chunks), self._config.summary_tokens
        if not window.limited:
            return count, tokens
        room = window.room(self._prompts.combine(self._question, ()))
        behind = window.separator
        shortest = min(tokens, SHORTEST_SUMMARY)
        count = min(count, max(1, room // (shortest + behind)))
        return count, max(1, min(tokens, room // count - behind))

    # map_rerank

    def _map_rerank(self, window: Window) -> Plan:
        scored = not self._wants_logprobs
        if scored and self._settings.ranking == "logprobs":
            raise _no_logprobs()
        packed, answers = yield from self._candidates(window, scored=scored)
        steps = self._rated(packed, answers, scored=scored)
        unknown = any(step.confidence is None and step.text for step in steps)
        if not scored and unknown:
            # Found out only now. Ranked by anything else, the answer would be a matter of chance.
            self._asker.logprob_support.given = False
            if self._settings.ranking == "logprobs":
                raise _no_logprobs()
            scored, asked = True, steps
            packed, answers = yield from self._candidates(window, scored=True)
            steps = self._rated(packed, answers, scored=True)
            everything = (*asked, *steps)
        else:
            everything = tuple(steps)
        if scored and self._settings.ranking == "auto":
            _say_once(self._asker.logprob_support)
        chosen = steps[best([(step.found, step.confidence) for step in steps])]
        cited = chosen.chunks if chosen.found else ()
        return self._result(chosen, cited, everything, packed, scored=scored)

    def _candidates(
        self, window: Window, *, scored: bool
    ) -> Generator[Round, Sequence[ModelAnswer], tuple[Packed, Sequence[ModelAnswer]]]:
        frame = self._prompts.rerank(self._question, (), scored=scored)
        packed = window.pack_each(self._chunks, frame)
        requests = tuple(
            ModelRequest(
                self._prompts.rerank(self._question, (document,), scored=scored),
                self._settings.max_tokens,
                logprobs=not scored,
            )
            for document in packed.documents
        )
        answers = yield Round(requests)
        return packed, answers

    def _rated(self, packed: Packed, answers: Sequence[ModelAnswer], *, scored: bool) -> list[Step]:
        steps = []
        for place, answer in zip(packed.places, answers, strict=True):
            if scored:
                text, confidence = self_rated(answer.text)
            else:
                text, confidence = answer.text.strip(), mean_logprob(answer.logprobs)
            steps.append(
                Step(
                    "candidate",
                    (place,),
                    text,
                    found=not found_nothing(text),
                    confidence=confidence,
                    usage=answer.usage,
                )
            )
        return steps

    # what they share

    @property
    def _wants_logprobs(self) -> bool:
        return self._asker.logprob_support.given and self._settings.ranking != "self_rated"

    def _step(
        self,
        kind: Literal["answer", "summary", "reduce"],
        places: tuple[int, ...],
        answer: ModelAnswer,
    ) -> Step:
        text = answer.text.strip()
        confidence = mean_logprob(answer.logprobs)
        return Step(kind, places, text, not found_nothing(text), confidence, answer.usage)

    def _result(
        self,
        step: Step,
        cited: Sequence[int],
        steps: tuple[Step, ...],
        packed: Packed,
        *,
        scored: bool = False,
    ) -> Synthesised:
        kind: ConfidenceKind = "self_rated" if scored else "logprob"
        read = {place for one in steps for place in one.chunks}
        return Synthesised(
            text=step.text,
            method=self._config.method,
            citations=tuple(Citation(place, self._given[place].id) for place in sorted(cited)),
            confidence=step.confidence,
            confidence_kind=None if step.confidence is None else kind,
            calls=len(steps),
            usage=_total(steps),
            steps=steps,
            left_out=tuple(place for place in range(len(self._chunks)) if place not in read),
            shortened=packed.shortened,
        )


def _total(steps: Sequence[Step]) -> Usage | None:
    known = [step.usage for step in steps if step.usage is not None]
    return add_usage(known) if len(known) == len(steps) else None


def _no_logprobs() -> ConfigurationError:
    return ConfigurationError(
        "ranking='logprobs' needs a model that gives log-probabilities, and this one gives none: "
        "'auto' and 'self_rated' rank its answers by a score that it gives itself"
    )


def _say_once(support: LogprobSupport) -> None:
    if not support.lack_was_told:
        support.lack_was_told = True
        logger.warning(
            "the model gives no log-probabilities: map_rerank ranks its answers by a score from 0 "
            "to 100 that it gives itself, which is less reliable"
        )
