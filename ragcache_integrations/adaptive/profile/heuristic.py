"""A profiler without an LLM: rules of thumb on the words of a question.

It is for cold starts and tests. It does not know the corpus, and estimates no confidence.
"""

from __future__ import annotations

import re

from .profile import (
    MAX_PIECES,
    SUMMARY_RANGES,
    ProfileEstimate,
    QueryProfile,
)

__all__ = ["HeuristicProfiler"]

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
