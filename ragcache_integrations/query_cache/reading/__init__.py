"""Lookups: matching, re-ranking, decisions."""

from .answers import Answers, Look, Match
from .conclusions import Conclusions
from .decisions import Decisions
from .learning import Learning

__all__ = [
    "Answers",
    "Conclusions",
    "Decisions",
    "Learning",
    "Look",
    "Match",
]
