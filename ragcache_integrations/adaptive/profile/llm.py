"""A profiler that asks an LLM (RAGServe §4.1, appendix A)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any

from ragcache_integrations.adaptive.asker import Asker, ModelAnswer, ModelRequest
from ragcache_integrations.core.checks import check_int, or_none
from ragcache_integrations.core.flows import Call, Flow, awhole_output, whole_output
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import Message, Prompt
from ragcache_integrations.errors import ConfigurationError, ServerResponseError

from .profile import (
    PROFILE_ANSWERS,
    SUMMARY_RANGES,
    ProfileEstimate,
    QueryProfile,
    failed_estimate,
    read_profile,
    value_confidence,
)

__all__ = ["EXAMPLES", "PROFILE_TOKENS", "Example", "LLMProfiler", "adraft_corpus", "draft_corpus"]

logger = logging.getLogger(__name__)

PROFILE_TOKENS = 12
"""Limit of a profiler's answer in tokens."""

EXAMPLES = 4
"""Golden examples that stay in the prompt (RAGServe §5)."""

EXAMPLE_CHARACTERS = 1200
"""Limit of an example's question and of its answer: they are in every prompt from then on."""

EXAMPLES_SHARE = 0.5
"""Largest share of the context window that instructions and examples may take."""

CORPUS_TOKENS = 60
SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 12, 400

PROFILE_SCHEMA: dict[str, Any] = {"type": "string", "enum": list(PROFILE_ANSWERS)}

_UNSUPPORTED = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.NOT_IMPLEMENTED,
}
"""Status codes of servers that do not know an option."""

_REFUSALS = (ConfigurationError, ServerResponseError, TypeError)
"""Errors of askers for an unknown option; a TypeError if a call has no such argument."""

_RANGES = "; ".join(f"{name}: {low} to {high}" for name, (low, high) in SUMMARY_RANGES.items())
_INSTRUCTION = f"""You estimate what it takes to answer questions about a corpus. Say four things:
1. How complex the question is: high where it takes reasoning, as to a why-question, else low.
2. Whether several pieces of information must be read together: yes or no.
3. How many distinct pieces of information the answer needs: 1 to 6.
4. How long a summary of one chunk must be to keep what matters, in words ({_RANGES}).
Answer with the four values alone, such as: {PROFILE_ANSWERS[0]}"""

_CORPUS_INSTRUCTION = (
    "Say in one line what kind of information the corpus holds that these texts are from, as in: "
    "Financial reports of Fortune 500 companies from every quarter of 2023."
)


@dataclass(frozen=True, slots=True)
class Example:
    """A question that the profiler has learnt from.

    Attributes:
        question: The question.
        answer: The most accurate answer that is known.
        profile: The profile that fits, according to the profiler's review.
    """

    question: str
    answer: str
    profile: QueryProfile


class LLMProfiler:
    """Asks a model for a question's profile: at most a dozen tokens that follow a grammar.

    Thread-safe. If the model refuses the grammar, requests have none from then on, and its answers
    are searched for the four values. ::

        profiler = LLMProfiler(asker, "Financial reports of 2023", chunk_size=512)
        estimate = profiler.profile("why did the revenue fall?")
        print(estimate.profile, estimate.confidence)

    Args:
        asker: The model; the one that answers, or another one.
        corpus: One line about what the corpus holds; empty for nothing.
        chunk_size: Length of its chunks in tokens; ``None`` if unknown.

    Raises:
        ConfigurationError: ``corpus`` is not one line, or ``chunk_size`` is below 1.
    """

    def __init__(self, asker: Asker, corpus: str = "", chunk_size: int | None = None) -> None:
        if not isinstance(corpus, str) or "\n" in corpus.strip():
            raise ConfigurationError(f"corpus must be one line of text, got {corpus!r:.200}")
        self._asker = asker
        self._corpus = corpus.strip()
        self._chunk_size = or_none(check_int)(
            "chunk_size", chunk_size, 1, unit="tokens", also="None"
        )
        self._lock = make_lock()
        self._examples: tuple[Example, ...] = ()
        self._grammar = True
        self._warned = False

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples that it has learnt from, oldest first."""
        return self._examples

    def learn(self, example: Example) -> None:
        """Put an example into the prompt, each of its texts in one line of limited length.

        The oldest are dropped: of more than four, and of those that would leave a question less
        than half of the context window. One that would do so alone is not taken. Never call it on
        an event loop, since it counts tokens.

        Args:
            example: The example.
        """
        question, answer = (_shortened(text) for text in (example.question, example.answer))
        window = self._asker.limits().context_window
        with self._lock:
            kept = (*self._examples, replace(example, question=question, answer=answer))[-EXAMPLES:]
            if window is not None:
                count, most = self._asker.count_prompt, EXAMPLES_SHARE * window
                while kept and count(self._prompt("", examples=kept)) > most:
                    kept = kept[1:]
            self._examples = kept or self._examples

    def profile(self, question: str) -> ProfileEstimate:
        """Estimate a question's profile."""
        estimate: ProfileEstimate = whole_output(self._estimating(self._prompt(question)))
        return estimate

    async def aprofile(self, question: str) -> ProfileEstimate:
        """Async version of :meth:`profile`; cancelling it cancels the call."""
        estimate: ProfileEstimate = await awhole_output(self._estimating(self._prompt(question)))
        return estimate

    def review(self, question: str, answer: str) -> ProfileEstimate:
        """Ask for the profile that would have fitted, now that the most accurate answer is known.

        Args:
            question: The question.
            answer: The answer of the golden configuration.
        """
        flow = self._estimating(self._prompt(question, answer))
        estimate: ProfileEstimate = whole_output(flow)
        return estimate

    async def areview(self, question: str, answer: str) -> ProfileEstimate:
        """Async version of :meth:`review`."""
        flow = self._estimating(self._prompt(question, answer))
        estimate: ProfileEstimate = await awhole_output(flow)
        return estimate

    def review_tokens(self, question: str, answer: str = "") -> int:
        """Return the most tokens that :meth:`review` takes."""
        return self._asker.count_prompt(self._prompt(question, answer)) + PROFILE_TOKENS

    def _prompt(
        self,
        question: str,
        answer: str | None = None,
        examples: Sequence[Example] | None = None,
    ) -> Prompt:
        # The parts that change least come first, so that requests share their KV.
        parts = [_INSTRUCTION]
        if self._corpus:
            parts.append(f"The corpus: {self._corpus}")
        if self._chunk_size is not None:
            parts.append(f"A chunk has {self._chunk_size} tokens.")
        parts += [
            f"Question: {example.question}\nThe most accurate answer: {example.answer}\n"
            f"Profile: {example.profile.answer}"
            for example in (self.examples if examples is None else examples)
        ]
        lines = f"Question: {question}"
        if answer is not None:
            lines += (
                f"\nThe most accurate answer: {answer[:EXAMPLE_CHARACTERS]}\n"
                "Which profile should this question have been given?"
            )
        system = Message("system", "\n\n".join(parts))
        return Prompt(messages=(system, Message("user", f"{lines}\nProfile:")))

    def _request(self, prompt: Prompt) -> ModelRequest:
        return ModelRequest(
            prompt,
            PROFILE_TOKENS,
            logprobs=self._asker.logprob_support.available,
            json_schema=PROFILE_SCHEMA if self._grammar else None,
            inner=True,
        )

    def _estimating(self, prompt: Prompt) -> Flow:
        try:
            request = self._request(prompt)
            try:
                answer = yield self._asking(request)
            except _REFUSALS as error:
                if request.json_schema is None or not _refuses(error):
                    raise
                answer = yield self._asking(replace(request, json_schema=None))
                self._note_no_grammar(error)
            yield self._read(answer)
        except Exception as error:  # noqa: BLE001 - a profile must not cost the user the answer
            yield failed_estimate("llm", error)

    def _asking(self, request: ModelRequest) -> Call:
        return Call(partial(self._asker.ask, request), partial(self._asker.aask, request))

    def _note_no_grammar(self, error: Exception) -> None:
        """Leave the grammar out from now on: it was refused, and its lack was not."""
        self._grammar = False
        logger.info(
            "the profiler's model supports no grammar, so that requests have none: %s", error
        )

    def _read(self, answer: ModelAnswer) -> ProfileEstimate:
        try:
            profile, _ = read_profile(answer.text)
        except ConfigurationError as error:
            return ProfileEstimate(None, "llm", problem=str(error), usage=answer.usage)
        confidence = value_confidence(answer.logprobs)
        if confidence is None and not self._warned:
            self._warned = True
            logger.warning(
                "the profiler's model returns no log-probabilities: all of its profiles are "
                "trusted, also unsure ones"
            )
        return ProfileEstimate(profile, "llm", confidence, usage=answer.usage)


def _refuses(error: Exception) -> bool:
    """Whether a request was refused for its options, not by a busy server or for want of a key."""
    return not isinstance(error, ServerResponseError) or error.status_code in _UNSUPPORTED


def draft_corpus(asker: Asker, sample: Sequence[str]) -> str:
    """Draft the one line about a corpus from some of its texts, for the user to review.

    Args:
        asker: The model.
        sample: Texts of the corpus; the beginnings of the first dozen are read.

    Raises:
        ConfigurationError: There are no texts.
        RAGCacheError: The model failed.
    """
    return _one_line(asker.ask(_corpus_request(sample)).text)


async def adraft_corpus(asker: Asker, sample: Sequence[str]) -> str:
    """Async version of :func:`draft_corpus`."""
    return _one_line((await asker.aask(_corpus_request(sample))).text)


def _corpus_request(sample: Sequence[str]) -> ModelRequest:
    texts = [] if isinstance(sample, str) else [text for text in sample if text.strip()]
    if not texts:
        raise ConfigurationError("a corpus is drafted from a list of its texts, and there are none")
    shown = "\n\n".join(text[:SAMPLE_CHARACTERS] for text in texts[:SAMPLE_DOCUMENTS])
    messages = (Message("system", _CORPUS_INSTRUCTION), Message("user", f"{shown}\n\nOne line:"))
    return ModelRequest(Prompt(messages=messages), CORPUS_TOKENS)


def _shortened(text: str) -> str:
    """A text of an example, which can then not be taken for other lines of the prompt."""
    return _one_line(text[:EXAMPLE_CHARACTERS])


def _one_line(text: str) -> str:
    return " ".join(text.split())
