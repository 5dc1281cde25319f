"""Lookups: matching, re-ranking, decisions."""

from .answers import Answers, Look, Match
from .decisions import Decisions
from .lookups import Lookups

__all__ = [
    "Answers",
    "Decisions",
    "Look",
    "Lookups",
    "Match",
]
