"""Laying a prompt out so that its KV cache can be reused."""

from ragcache_integrations.prompts.marking import mark_documents, mark_prompt

__all__ = ["mark_documents", "mark_prompt"]
