"""Everything for LlamaIndex: take the place of your retriever and your LLM.

Needs the extra ``llama-index``.
"""

from __future__ import annotations

from ragcache_integrations._lazy import require

require("llama_index.core", feature="ragcache_integrations.llama_index", extra="llama-index")

# Only now, so that a missing extra is named rather than a module of a framework.
from ragcache_integrations._embeddings_llama_index import MiniLMEmbeddings  # noqa: E402
from ragcache_integrations.llms.llama_index import RAGCacheLLM  # noqa: E402
from ragcache_integrations.retrievers.llama_index import (  # noqa: E402
    ApproximateCacheRetriever,
    QueryCacheEvent,
)

__all__ = ["ApproximateCacheRetriever", "MiniLMEmbeddings", "QueryCacheEvent", "RAGCacheLLM"]
