"""Lookups: matching, re-ranking, decisions."""

from .answers import Answers, Look, Match
from .decisions import Decisions
from .learning import Learning

__all__ = [
    "Answers",
    "Decisions",
    "Learning",
    "Look",
    "Match",
]
