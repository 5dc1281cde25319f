"""Query profiles: what a question needs, in four values (RAGServe §4.1).

Profilers that ask no LLM are here, too: rules of thumb for cold starts and tests, which do not know
the corpus and estimate no confidence; profiles cached for questions that were asked before, in the
same or other words; and recorded profiles, so that two runs under comparison have the same ones.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import (
    check_choice,
    check_field,
    check_flag,
    check_int,
    check_number,
    is_whole,
)
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.generation import TokenLogprob, Usage
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, QueryCache

__all__ = [
    "MAX_PIECES",
    "MAX_SUMMARY_WORDS",
    "MIN_SUMMARY_WORDS",
    "PROFILE_ANSWERS",
    "SUMMARY_RANGES",
    "CachedProfiler",
    "Complexity",
    "HeuristicProfiler",
    "ProfileEstimate",
    "Profiler",
    "QueryProfile",
    "RecordedProfiler",
    "failed_estimate",
    "read_profile",
    "save_profiles",
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


class RecordedProfiler:
    """Returns recorded profiles.

    ::

        save_profiles("profiles.jsonl", [(text, profiler.profile(text)) for text in questions])
        recorded = RecordedProfiler.load("profiles.jsonl")

    Args:
        estimates: The estimates, by question.
    """

    def __init__(self, estimates: Mapping[str, ProfileEstimate]) -> None:
        self._estimates = dict(estimates)

    def __len__(self) -> int:
        return len(self._estimates)

    def __iter__(self) -> Iterator[str]:
        """The questions, in the order in which they were recorded."""
        return iter(self._estimates)

    def profile(self, question: str) -> ProfileEstimate:
        """Look a question up; one that was not recorded has no profile."""
        unknown = ProfileEstimate(None, "recorded", problem="the question was not recorded")
        return self._estimates.get(question, unknown)

    async def aprofile(self, question: str) -> ProfileEstimate:
        """Async version of :meth:`profile`; neither of them waits."""
        return self.profile(question)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :func:`save_profiles` wrote.

        Raises:
            ConfigurationError: The file cannot be read, or does not hold profiles.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
            rows = [json.loads(line) for line in lines if line.strip()]
            return cls(
                {
                    row["question"]: ProfileEstimate(
                        QueryProfile.from_dict(row["profile"]),
                        "recorded",
                        None if row["confidence"] is None else float(row["confidence"]),
                    )
                    for row in rows
                }
            )
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise ConfigurationError(f"{path} holds no recorded profiles: {error}") from error


def save_profiles(path: str | Path, estimates: Iterable[tuple[str, ProfileEstimate]]) -> int:
    """Write profiles as JSON lines, each with its question and confidence.

    Args:
        path: The file.
        estimates: Questions with their estimates; those without a profile are left out.

    Returns:
        Number of profiles written.
    """
    lines = [
        json.dumps(
            {
                "question": question,
                "profile": estimate.profile.as_dict(),
                "confidence": estimate.confidence,
            }
        )
        for question, estimate in estimates
        if estimate.profile is not None
    ]
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


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

    def as_dict(self) -> dict[str, Any]:
        """The profile as plain data for JSON."""
        return asdict(self) | {"summary_words": list(self.summary_words)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`as_dict`.

        Raises:
            ConfigurationError: ``content`` is no profile, or a value is out of its range.
        """
        names = [value.name for value in fields(cls)]
        if not isinstance(content, Mapping) or set(content) != set(names):
            raise ConfigurationError(f"a profile has {', '.join(names)}, got {content!r:.200}")
        return cls(**content)


@dataclass(frozen=True, slots=True)
class ProfileEstimate:
    """A profiler's estimate for one question.

    Attributes:
        profile: The profile; ``None`` if there is none.
        source: Where it comes from: ``llm``, ``heuristic``, ``cache`` or ``recorded``; ``none`` if
            the profiler failed or was late.
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
