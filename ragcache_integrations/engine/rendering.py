"""Prompts as token ids; the public name of :class:`PromptRenderer`."""

from ragcache_integrations.core.prompt import PromptRenderer

__all__ = ["PromptRenderer"]
