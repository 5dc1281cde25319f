"""Synthesis methods as components of each framework."""

from .knobs import AnswerArguments, AnswerKnobs

__all__ = ["AnswerArguments", "AnswerKnobs"]
