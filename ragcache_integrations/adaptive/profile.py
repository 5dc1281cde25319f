"""Query profiles: what a question needs, in four values (RAGServe §4.1, appendix A).

:class:`LLMProfiler` asks a model. The other profilers ask none: rules of thumb for cold starts and
tests, which do not know the corpus and estimate no confidence; profiles cached for questions that
were asked before, in the same or other words.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import (
    check_choice,
    check_field,
    check_flag,
    check_int,
    check_number,
    is_whole,
    or_none,
)
from ragcache_integrations.core.flows import Call, Flow, awhole_output, whole_output
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.generation import TokenLogprob, Usage
from ragcache_integrations.core.prompt import Message, Prompt
from ragcache_integrations.errors import ConfigurationError, ServerResponseError
from ragcache_integrations.query_cache import Candidate, QueryCache

from .asker import Asker, ModelAnswer, ModelRequest

__all__ = [
    "EXAMPLES",
    "MAX_PIECES",
    "MAX_SUMMARY_WORDS",
    "MIN_SUMMARY_WORDS",
    "PROFILE_ANSWERS",
    "PROFILE_TOKENS",
    "SUMMARY_RANGES",
    "CachedProfiler",
    "Complexity",
    "Example",
    "HeuristicProfiler",
    "LLMProfiler",
    "ProfileEstimate",
    "Profiler",
    "QueryProfile",
    "adraft_corpus",
    "draft_corpus",
    "failed_estimate",
    "read_profile",
    "value_confidence",
]


logger = logging.getLogger(__name__)


class CachedProfiler:
    """Keeps confident profiles in a query cache, by the questions' embeddings. Thread-safe.

    ::

        profiler = CachedProfiler(LLMProfiler(asker), embeddings.embed_query)
        estimate = profiler.profile(question)

    Args:
        profiler: Profiles the questions that are not close to a cached one.
        embed: Returns the embedding of a question; called from any thread.
        tolerance: The largest distance between two questions that share a profile: the chord
            ``sqrt(2 - 2 cos)`` between their embeddings; at least 0.
        capacity: The most profiles to keep; at least 1.
        min_confidence: Profiles below this confidence (0 to 1) are not kept.

    Raises:
        ConfigurationError: An argument is out of its range.
    """

    def __init__(
        self,
        profiler: Profiler,
        embed: Callable[[str], ArrayLike],
        *,
        tolerance: float = 0.2,
        capacity: int = 1000,
        min_confidence: float = 0.9,
    ) -> None:
        if not callable(embed):
            raise ConfigurationError(f"embed must be a function of a question, got {embed!r}")
        self._profiler = profiler
        self._embed = embed
        self._arguments = (
            check_int("capacity", capacity, 1),
            check_number("tolerance", tolerance, 0),
        )
        self._min_confidence = min_confidence
        self._lock = make_lock()
        self._cache: QueryCache[ProfileEstimate] | None = None

    def profile(self, question: str) -> ProfileEstimate:
        """Return the profile of a close question, or profile this one."""
        embedding = self._embedding(question)
        known = self._find(embedding)
        return known or self._keep(question, embedding, self._profiler.profile(question))

    async def aprofile(self, question: str) -> ProfileEstimate:
        """Async version of :meth:`profile`; embeds in a thread."""
        embedding = await asyncio.to_thread(self._embedding, question)
        known = self._find(embedding)
        return known or self._keep(question, embedding, await self._profiler.aprofile(question))

    def clear(self) -> None:
        """Forget all profiles."""
        if self._cache is not None:
            self._cache.clear()

    def _embedding(self, question: str) -> NDArray[np.float32] | None:
        try:
            embedding = np.asarray(self._embed(question), dtype=np.float32)
            with self._lock:
                if self._cache is None:
                    (dim,) = embedding.shape
                    capacity, tolerance = self._arguments
                    self._cache = QueryCache(dim, capacity, tolerance, metric="cosine")
        except Exception as error:  # noqa: BLE001 - a profile must not cost the user the answer
            logger.warning("profiles are not cached: %s: %s", type(error).__name__, error)
            return None
        return embedding

    def _find(self, embedding: NDArray[np.float32] | None) -> ProfileEstimate | None:
        if self._cache is None or embedding is None:
            return None
        try:
            hit = self._cache.lookup(embedding, 1)
        except ConfigurationError as error:
            logger.warning("profiles are not cached: %s", error)
            return None
        if hit is None:
            return None
        known = hit.candidates[0].document
        return ProfileEstimate(known.profile, "cache", known.confidence)

    def _keep(
        self, question: str, embedding: NDArray[np.float32] | None, estimate: ProfileEstimate
    ) -> ProfileEstimate:
        sure = estimate.confidence is None or estimate.confidence >= self._min_confidence
        if self._cache is not None and embedding is not None and estimate.profile and sure:
            try:
                self._cache.insert(embedding, [Candidate(question, estimate)])
            except ConfigurationError as error:
                logger.warning("profiles are not cached: %s", error)
        return estimate


_REASONS = re.compile(
    r"\b(why|how (?!many|much|old|long|far|tall|often)|explain|reasons?|causes?|caused|effects?|"
    r"implications?|consequences?|analy[sz]e|discuss|evaluate|relationship|summari[sz]e|"
    r"summary|describe|opinions?|think|thought|disagree)\b",
    re.IGNORECASE,
)
_JOINS = re.compile(
    r"\b(compare|compared|comparison|versus|vs|differences?|differ|both|same|between|more than|"
    r"less than|trend|each|every|all|across|respectively|who else|summari[sz]e|summary|discussion|"
    r"discussed)\b",
    re.IGNORECASE,
)
# A further question, or a further name; "law and order" is one thing.
_LISTS = re.compile(
    r"(?:[,;]|\b(?:and|or|then|as well as)\b)\s*(?:\w+\s+)?"
    r"\b(?:who|whom|whose|what|when|where|which|why|how)\b"
    r"|(?-i:(?<=\s)[A-Z][\w'-]*\s*(?:,|\band\b|\bor\b|,\s*and\b|,\s*or\b)\s+(?:the\s+)?(?=[A-Z]))",
    re.IGNORECASE,
)
_NAMES = re.compile(r"(?<!^)(?<![.?!]\s)\b[A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)*")


class HeuristicProfiler:
    """Profiles a question by its words, without an LLM.

    Words that ask for reasons make the question complex; words that compare, a further question or
    a list of names make it one of joint reasoning. Then each name and each part of a list is a
    piece of information. One passage usually says all about several names.
    """

    def profile(self, question: str) -> ProfileEstimate:
        """Estimate a question's profile within microseconds."""
        reasons = bool(_REASONS.search(question))
        parts = 1 + len(_LISTS.findall(question))
        joint = bool(_JOINS.search(question)) or reasons or parts > 1
        pieces = max(parts, len(_NAMES.findall(question)), 2) if joint else 1
        profile = QueryProfile(
            "high" if reasons else "low",
            joint,
            min(MAX_PIECES, pieces),
            SUMMARY_RANGES["long" if reasons else "medium"],
        )
        return ProfileEstimate(profile, "heuristic")

    async def aprofile(self, question: str) -> ProfileEstimate:
        """Async version of :meth:`profile`; neither of them waits."""
        return self.profile(question)


Complexity = Literal["low", "high"]
COMPLEXITIES = ("high", "low")
JOINT = ("yes", "no")

MAX_PIECES = 6
MIN_SUMMARY_WORDS, MAX_SUMMARY_WORDS = 30, 200

SUMMARY_RANGES: dict[str, tuple[int, int]] = {
    "short": (30, 60),
    "medium": (60, 120),
    "long": (120, 200),
}
"""Ranges of summary lengths that a profiler chooses from, in words. A name is one token or two."""


@dataclass(frozen=True, slots=True)
class QueryProfile:
    """What it takes to answer a question (RAGServe §4.1).

    Attributes:
        complexity: ``high`` if the answer takes reasoning, as for why-questions, else ``low``.
        joint_reasoning: Whether several pieces of information must be read together.
        pieces: Number of distinct pieces of information that the answer needs, 1 to 6.
        summary_words: Lower and upper limit of a chunk's summary in words, within 30 to 200.

    Raises:
        ConfigurationError: A value is out of its range.
    """

    complexity: Complexity
    joint_reasoning: bool
    pieces: int
    summary_words: tuple[int, int] = SUMMARY_RANGES["medium"]

    def __post_init__(self) -> None:
        check_choice("complexity", self.complexity, COMPLEXITIES)
        check_field(self, check_flag, "joint_reasoning")
        check_field(self, check_int, "pieces", 1, MAX_PIECES)
        words = self.summary_words
        if not isinstance(words, Sequence) or len(words) != 2 or not all(map(is_whole, words)):  # noqa: PLR2004 - a range
            raise ConfigurationError(f"summary_words must be two whole numbers, got {words!r}")
        low, high = words
        if not MIN_SUMMARY_WORDS <= low <= high <= MAX_SUMMARY_WORDS:
            raise ConfigurationError(
                f"summary_words must be in rising order, from {MIN_SUMMARY_WORDS} to "
                f"{MAX_SUMMARY_WORDS}, got {words!r}"
            )
        object.__setattr__(self, "summary_words", (low, high))

    @property
    def answer(self) -> str:
        """The profile in the form of a profiler's answer, such as ``high yes 3 medium``."""
        joint = "yes" if self.joint_reasoning else "no"
        names = {words: name for name, words in SUMMARY_RANGES.items()}
        words = names.get(self.summary_words) or "-".join(map(str, self.summary_words))
        return f"{self.complexity} {joint} {self.pieces} {words}"


@dataclass(frozen=True, slots=True)
class ProfileEstimate:
    """A profiler's estimate for one question.

    Attributes:
        profile: The profile; ``None`` if there is none.
        source: Where it comes from: ``llm``, ``heuristic``, ``cache`` or what your own profiler
            says; ``none`` if the profiler failed or was late.
        confidence: Mean probability of the four values' tokens, 0 to 1; ``None`` if the profiler
            has no probabilities.
        problem: Why there is no profile; empty if there is one.
        usage: Tokens of the call; ``None`` if no model was called, or it does not report them.
    """

    profile: QueryProfile | None
    source: str
    confidence: float | None = None
    problem: str = ""
    usage: Usage | None = None


def failed_estimate(source: str, error: BaseException) -> ProfileEstimate:
    """Log an error, and return an estimate without a profile that names it as the problem.

    Args:
        source: The estimate's source.
        error: The error of the profiler or its model.
    """
    problem = f"{type(error).__name__}: {error}"
    logger.warning("no profile: %s", problem)
    return ProfileEstimate(None, source, problem=problem)


class Profiler(Protocol):
    """Estimates profiles. Every method may be called from any thread."""

    def profile(self, question: str) -> ProfileEstimate:
        """Estimate a question's profile; an error becomes the estimate's ``problem``."""

    async def aprofile(self, question: str) -> ProfileEstimate:
        """Async version of :meth:`profile`."""


_WORDS = (COMPLEXITIES, JOINT, tuple(map(str, range(1, MAX_PIECES + 1))), tuple(SUMMARY_RANGES))
"""The words of each value."""

PROFILE_ANSWERS = tuple(map(" ".join, itertools.product(*_WORDS)))
"""Every answer that a profiler's grammar allows: fewer than a dozen tokens each."""

# White space is optional: the tokens that a server reports may lack it.
_SHAPE = re.compile(
    r"(high|low)\W*(yes|no)\W*(\d+)\W*(short|medium|long|(?<=\W)\d+\D{1,4}\d+)", re.IGNORECASE
)


def read_profile(text: str) -> tuple[QueryProfile, tuple[tuple[int, int], ...]]:
    """Read the answer of a model, which need not follow the grammar.

    Args:
        text: The answer; it may have other words before and after the profile.

    Returns:
        The profile, and the (begin, end) of its four values in the text.

    Raises:
        ConfigurationError: It holds no profile, or one with a value out of its range.
    """
    match = _SHAPE.search(text)
    if match is None:
        msg = f"no profile such as {PROFILE_ANSWERS[0]!r} in the answer {text!r:.200}"
        raise ConfigurationError(msg)
    complexity, joint, pieces, words = (group.lower() for group in match.groups())
    low, high = SUMMARY_RANGES.get(words) or map(int, re.split(r"\D+", words))
    profile = QueryProfile(
        "high" if complexity == "high" else "low", joint == "yes", int(pieces), (low, high)
    )
    return profile, tuple(match.span(number) for number in range(1, 5))


def value_confidence(tokens: Sequence[TokenLogprob]) -> float | None:
    """How sure a profiler is: the mean probability of the tokens that decide the four values.

    Tokens of separators alone, and those that finish a word which is already determined, do not
    count, since the grammar forces them. (RAGServe §5 takes all tokens of the output.)

    Args:
        tokens: The answer's tokens with their log-probabilities, in order.

    Returns:
        0 to 1; ``None`` if there are no tokens, or they hold no profile.
    """
    text = "".join(token.token for token in tokens)
    try:
        _, spans = read_profile(text)
    except ConfigurationError:
        return None
    probabilities = []
    begin = 0
    for token in tokens:
        end = begin + len(token.token)
        if any(
            begin < high and low < end and _leaves_a_choice(value, text[low : max(begin, low)])
            for value, (low, high) in enumerate(spans)
        ):
            probabilities.append(math.exp(min(token.logprob, 0.0)))
        begin = end
    return sum(probabilities) / len(probabilities)


def _leaves_a_choice(value: int, so_far: str) -> bool:
    """Whether other than one word of a value begins like this; a number of words matches none."""
    return sum(word.startswith(so_far.lower()) for word in _WORDS[value]) != 1


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
