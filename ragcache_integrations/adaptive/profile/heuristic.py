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
    r"less than|highest|lowest|most|least|trend|each|every|all|across|respectively|who else|"
    r"summari[sz]e|summary|discussion|discussed)\b",
    re.IGNORECASE,
)
_LISTS = re.compile(r",|;|\band\b|\bor\b|\bas well as\b|\bthen\b", re.IGNORECASE)
_NAMES = re.compile(r"(?<!^)(?<![.?!]\s)\b[A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)*")


class HeuristicProfiler:
    """Profiles a question by its words, without an LLM.

    Words that ask for reasons make the question complex; words that compare, or several names,
    make it one of joint reasoning; each name or part of a list is a piece of information.
    """

    def profile(self, question: str) -> ProfileEstimate:
        """Estimate a question's profile within microseconds."""
        reasons = bool(_REASONS.search(question))
        parts = 1 + len(_LISTS.findall(question))
        pieces = max(parts, len(_NAMES.findall(question)), 2 if reasons else 1)
        joint = bool(_JOINS.search(question)) or reasons or pieces > 1
        profile = QueryProfile(
            "high" if reasons else "low",
            joint,
            min(MAX_PIECES, max(pieces, 2) if joint else 1),
            SUMMARY_RANGES["long" if reasons else "medium"],
        )
        return ProfileEstimate(profile, "heuristic")

    async def aprofile(self, question: str) -> ProfileEstimate:
        """Async version of :meth:`profile`; neither of them waits."""
        return self.profile(question)
