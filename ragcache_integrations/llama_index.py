"""Everything for LlamaIndex: take the place of your retriever and your LLM.

Needs the extra ``llama-index``.
"""

from __future__ import annotations

from ragcache_integrations._lazy import require

require("llama_index.core", feature="ragcache_integrations.llama_index", extra="llama-index")

# Only now, so that a missing extra is named rather than a module of a framework.
from ragcache_integrations._embeddings_llama_index import MiniLMEmbeddings  # noqa: E402
from ragcache_integrations.chains.adaptive_llama_index import (  # noqa: E402
    AdaptiveQueryEngine,
)
from ragcache_integrations.chains.llama_index import SpeculativeQueryEngine  # noqa: E402
from ragcache_integrations.chains.modular_llama_index import ModularPrompt  # noqa: E402
from ragcache_integrations.chains.synthesis_llama_index import (  # noqa: E402
    MapReduceSynthesis,
    MapRerankSynthesis,
    StuffSynthesis,
)
from ragcache_integrations.llms.llama_index import RAGCacheLLM  # noqa: E402
from ragcache_integrations.prompts.history_llama_index import (  # noqa: E402
    HalfTruncationMemory,
)
from ragcache_integrations.prompts.lint_llama_index import lint_prompt  # noqa: E402
from ragcache_integrations.prompts.order_llama_index import CacheFriendlyOrder  # noqa: E402
from ragcache_integrations.prompts.relevance_llama_index import RelevanceFilter  # noqa: E402
from ragcache_integrations.prompts.template_llama_index import RAGPromptTemplate  # noqa: E402
from ragcache_integrations.retrievers.llama_index import (  # noqa: E402
    ApproximateCacheRetriever,
    QueryCacheEvent,
)
from ragcache_integrations.retrievers.staged_llama_index import (  # noqa: E402
    StagedFaissRetriever,
)

__all__ = [
    "AdaptiveQueryEngine",
    "ApproximateCacheRetriever",
    "CacheFriendlyOrder",
    "HalfTruncationMemory",
    "MapReduceSynthesis",
    "MapRerankSynthesis",
    "MiniLMEmbeddings",
    "ModularPrompt",
    "QueryCacheEvent",
    "RAGCacheLLM",
    "RAGPromptTemplate",
    "RelevanceFilter",
    "SpeculativeQueryEngine",
    "StagedFaissRetriever",
    "StuffSynthesis",
    "lint_prompt",
]
