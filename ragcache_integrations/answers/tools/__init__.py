"""Cached results of agents' tools, over the cache of answers."""

from .calls import ToolCalls

__all__ = ["ToolCalls"]
