"""Everything for LangChain: take the place of your retriever and your chat model.

Needs the extra ``langchain``.
"""

from __future__ import annotations

from ragcache_integrations.core.extras import require

require("langchain_core", feature="ragcache_integrations.langchain", extra="langchain")

# Only now, so that a missing extra is named rather than a module of a framework.
from ragcache_integrations.answers.langchain import (  # noqa: E402
    ANSWER_CACHE_EVENT,
    AnswerCache,
    cached_node,
    cached_tool,
)
from ragcache_integrations.chains.adaptive.langchain import AdaptiveRAG  # noqa: E402
from ragcache_integrations.chains.modular.langchain import ModularPrompt  # noqa: E402
from ragcache_integrations.chains.speculative.langchain import SpeculativeRAG  # noqa: E402
from ragcache_integrations.chains.synthesis.langchain import (  # noqa: E402
    MapReduceSynthesis,
    MapRerankSynthesis,
    StuffSynthesis,
    synthesis_chain,
)
from ragcache_integrations.embeddings.langchain import MiniLMEmbeddings  # noqa: E402
from ragcache_integrations.llms.langchain.models import (  # noqa: E402
    ChatRAGCache,
    RAGCacheLLM,
    hint_steps,
)
from ragcache_integrations.prompts.history.langchain import (  # noqa: E402
    HalfTruncationHistory,
)
from ragcache_integrations.prompts.langchain import (  # noqa: E402
    RelevanceFilter,
    documents_once,
    order_documents,
)
from ragcache_integrations.prompts.layout.langchain import RAGPromptTemplate  # noqa: E402
from ragcache_integrations.prompts.lint.langchain import lint_prompt  # noqa: E402
from ragcache_integrations.retrievers.cached.langchain.retriever import (  # noqa: E402
    QUERY_CACHE_EVENT,
    ApproximateCacheRetriever,
)
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever  # noqa: E402
from ragcache_integrations.retrievers.stores import (  # noqa: E402
    MappedVectors,
    SearchResults,
    StoreFacts,
    StoreKind,
    register_store,
)

__all__ = [
    "ANSWER_CACHE_EVENT",
    "QUERY_CACHE_EVENT",
    "AdaptiveRAG",
    "AnswerCache",
    "ApproximateCacheRetriever",
    "ChatRAGCache",
    "HalfTruncationHistory",
    "MapReduceSynthesis",
    "MapRerankSynthesis",
    "MappedVectors",
    "MiniLMEmbeddings",
    "ModularPrompt",
    "RAGCacheLLM",
    "RAGPromptTemplate",
    "RelevanceFilter",
    "SearchResults",
    "SpeculativeRAG",
    "StagedFaissRetriever",
    "StoreFacts",
    "StoreKind",
    "StuffSynthesis",
    "cached_node",
    "cached_tool",
    "documents_once",
    "hint_steps",
    "lint_prompt",
    "order_documents",
    "register_store",
    "synthesis_chain",
]
