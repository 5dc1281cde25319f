"""Answers that processes share in Redis."""

from .shared import SharedAnswers

__all__ = ["SharedAnswers"]
