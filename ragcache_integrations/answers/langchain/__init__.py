"""Cached answers for LangChain, and cached results of its tools and of LangGraph's nodes."""

from .cache import ANSWER_CACHE_EVENT, AnswerCache
from .tools import cached_node, cached_tool

__all__ = ["ANSWER_CACHE_EVENT", "AnswerCache", "cached_node", "cached_tool"]
