"""Cached answers: one is served again only where question, documents and settings are the same."""

from .controls import AnswerControls
from .core import AnswerCore, Near
from .entries import CachedAnswer, Question
from .flow import AnswerFlow, Lookup, plain_answer, same_text, says_same
from .knobs import AnswerKnobs
from .types import (
    AnswerCacheCollector,
    AnswerExplanation,
    AnswerStats,
    AnswerTrace,
    SharedAnswerStats,
)

__all__ = [
    "AnswerCacheCollector",
    "AnswerControls",
    "AnswerCore",
    "AnswerExplanation",
    "AnswerFlow",
    "AnswerKnobs",
    "AnswerStats",
    "AnswerTrace",
    "CachedAnswer",
    "Lookup",
    "Near",
    "Question",
    "SharedAnswerStats",
    "plain_answer",
    "same_text",
    "says_same",
]
