"""Everything for LlamaIndex: take the place of your retriever and your LLM.

Needs the extra ``llama-index``.
"""

from __future__ import annotations

from ragcache_integrations.core.extras import require

require("llama_index.core", feature="ragcache_integrations.llama_index", extra="llama-index")

# Only now, so that a missing extra is named rather than a module of a framework.
from ragcache_integrations.answers.llama_index import (  # noqa: E402
    ANSWER_CACHE_METADATA,
    AnswerCache,
    cached_tool,
)
from ragcache_integrations.chains.adaptive.llama_index import (  # noqa: E402
    AdaptiveQueryEngine,
)
from ragcache_integrations.chains.modular.llama_index import ModularPrompt  # noqa: E402
from ragcache_integrations.chains.speculative.llama_index import SpeculativeQueryEngine  # noqa: E402
from ragcache_integrations.chains.synthesis.llama_index import (  # noqa: E402
    MapReduceSynthesis,
    MapRerankSynthesis,
    StuffSynthesis,
)
from ragcache_integrations.embeddings.llama_index import MiniLMEmbeddings  # noqa: E402
from ragcache_integrations.llms.llama_index import RAGCacheLLM, hint_steps  # noqa: E402
from ragcache_integrations.prompts.history.llama_index import (  # noqa: E402
    HalfTruncationMemory,
)
from ragcache_integrations.prompts.layout.llama_index import RAGPromptTemplate  # noqa: E402
from ragcache_integrations.prompts.lint.llama_index import lint_prompt  # noqa: E402
from ragcache_integrations.prompts.llama_index import (  # noqa: E402
    CacheFriendlyOrder,
    RelevanceFilter,
    documents_once,
)
from ragcache_integrations.retrievers.cached.llama_index.retriever import (  # noqa: E402
    ApproximateCacheRetriever,
    QueryCacheEvent,
    question_in_context,
)
from ragcache_integrations.retrievers.staged.llama_index import (  # noqa: E402
    StagedFaissRetriever,
)
from ragcache_integrations.retrievers.stores import (  # noqa: E402
    MappedVectors,
    SearchResults,
    StoreFacts,
    StoreKind,
    register_store,
)

__all__ = [
    "ANSWER_CACHE_METADATA",
    "AdaptiveQueryEngine",
    "AnswerCache",
    "ApproximateCacheRetriever",
    "CacheFriendlyOrder",
    "HalfTruncationMemory",
    "MapReduceSynthesis",
    "MapRerankSynthesis",
    "MappedVectors",
    "MiniLMEmbeddings",
    "ModularPrompt",
    "QueryCacheEvent",
    "RAGCacheLLM",
    "RAGPromptTemplate",
    "RelevanceFilter",
    "SearchResults",
    "SpeculativeQueryEngine",
    "StagedFaissRetriever",
    "StoreFacts",
    "StoreKind",
    "StuffSynthesis",
    "cached_tool",
    "documents_once",
    "hint_steps",
    "lint_prompt",
    "question_in_context",
    "register_store",
]
