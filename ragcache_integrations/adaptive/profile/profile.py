"""What a question needs, in four values (RAGServe §4.1), and their form in a few tokens."""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Protocol, Self

from ragcache_integrations.core.checks import check_choice, check_flag, check_int, is_whole
from ragcache_integrations.core.generation import TokenLogprob, Usage
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "MAX_PIECES",
    "MAX_SUMMARY_WORDS",
    "MIN_SUMMARY_WORDS",
    "PROFILE_ANSWERS",
    "SUMMARY_RANGES",
    "Complexity",
    "ProfileEstimate",
    "Profiler",
    "QueryProfile",
    "failed_estimate",
    "read_profile",
    "value_confidence",
]

logger = logging.getLogger(__name__)

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
        joint = check_flag("joint_reasoning", self.joint_reasoning)
        object.__setattr__(self, "joint_reasoning", joint)
        object.__setattr__(self, "pieces", check_int("pieces", self.pieces, 1, MAX_PIECES))
        words = self.summary_words
        if not isinstance(words, Sequence) or len(words) != 2 or not all(map(is_whole, words)):  # noqa: PLR2004 - a range
            msg = f"summary_words must be two whole numbers, got {words!r}"
            raise ConfigurationError(msg)
        low, high = words
        if not MIN_SUMMARY_WORDS <= low <= high <= MAX_SUMMARY_WORDS:
            msg = (
                f"summary_words must be in rising order, from {MIN_SUMMARY_WORDS} to "
                f"{MAX_SUMMARY_WORDS}, got {words!r}"
            )
            raise ConfigurationError(msg)
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
            msg = f"a profile has {', '.join(names)}, got {content!r:.200}"
            raise ConfigurationError(msg)
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
