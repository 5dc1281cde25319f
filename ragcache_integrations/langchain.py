"""Everything for LangChain: take the place of your retriever and your chat model.

Needs the extra ``langchain``.
"""

from __future__ import annotations

from ragcache_integrations._lazy import require

require("langchain_core", feature="ragcache_integrations.langchain", extra="langchain")

# Only now, so that a missing extra is named rather than a module of a framework.
from ragcache_integrations._embeddings_langchain import MiniLMEmbeddings  # noqa: E402
from ragcache_integrations.llms.langchain import ChatRAGCache, RAGCacheLLM  # noqa: E402
from ragcache_integrations.retrievers.langchain import (  # noqa: E402
    QUERY_CACHE_EVENT,
    ApproximateCacheRetriever,
)

__all__ = [
    "QUERY_CACHE_EVENT",
    "ApproximateCacheRetriever",
    "ChatRAGCache",
    "MiniLMEmbeddings",
    "RAGCacheLLM",
]
