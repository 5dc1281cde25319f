"""Cached answers for LangChain."""

from .cache import ANSWER_CACHE_EVENT, AnswerCache

__all__ = ["ANSWER_CACHE_EVENT", "AnswerCache"]
