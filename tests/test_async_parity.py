"""Every sync method that may wait has an async twin with the same arguments, and the reverse."""

from __future__ import annotations

import inspect

import pytest

from ragcache_integrations.adaptive import (
    AdaptivePipeline,
    CachedProfiler,
    EngineAsker,
    HeuristicProfiler,
    LLMProfiler,
    MetricsLoadSource,
)
from ragcache_integrations.adaptive.resources import EngineLoadSource
from ragcache_integrations.answers import AnswerFlow
from ragcache_integrations.answers.langchain import AnswerCache
from ragcache_integrations.answers.llama_index import AnswerCache as AnswerCacheEngine
from ragcache_integrations.chains.adaptive.langchain import AdaptiveRAG
from ragcache_integrations.chains.adaptive.llama_index import AdaptiveQueryEngine
from ragcache_integrations.chains.langchain import LangChainAsker
from ragcache_integrations.chains.llama_index import LlamaIndexAsker
from ragcache_integrations.chains.modular.langchain import ModularPrompt
from ragcache_integrations.chains.modular.llama_index import ModularPrompt as ModularQueryEngine
from ragcache_integrations.chains.speculative.knobs import Speculators
from ragcache_integrations.chains.synthesis.langchain import SynthesisRunnable
from ragcache_integrations.chains.synthesis.llama_index import BaseSynthesis
from ragcache_integrations.embeddings import minilm as embeddings
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.langchain import ApproximateCacheRetriever as LangChainRetriever
from ragcache_integrations.langchain import ChatRAGCache, SpeculativeRAG
from ragcache_integrations.langchain import RAGCacheLLM as LangChainLLM
from ragcache_integrations.langchain import StagedFaissRetriever as LangChainStagedRetriever
from ragcache_integrations.llama_index import ApproximateCacheRetriever as LlamaIndexRetriever
from ragcache_integrations.llama_index import RAGCacheLLM as LlamaIndexLLM
from ragcache_integrations.llama_index import SpeculativeQueryEngine
from ragcache_integrations.llama_index import StagedFaissRetriever as LlamaIndexStagedRetriever
from ragcache_integrations.llms.openai.server import OpenAIServer
from ragcache_integrations.prompts.history.langchain import HalfTruncationHistory
from ragcache_integrations.prompts.history.llama_index import HalfTruncationMemory
from ragcache_integrations.prompts.langchain import OrderDocuments
from ragcache_integrations.prompts.layout.langchain import RAGPromptTemplate
from ragcache_integrations.prompts.layout.llama_index import (
    RAGPromptTemplate as LlamaIndexTemplate,
)
from ragcache_integrations.prompts.llama_index import CacheFriendlyOrder
from ragcache_integrations.prompts.order.order import DocumentOrder
from ragcache_integrations.prompts.pml.schema import Schema
from ragcache_integrations.prompts.relevance import RelevanceCheck
from ragcache_integrations.retrievers.cached.core import RetrieverCore
from ragcache_integrations.retrievers.staged.core import StagedCore
from ragcache_integrations.speculation import Speculator
from ragcache_integrations.vector_search import StagedIndex
from ragcache_modular import ModularEngine, ModularModel

# Touches memory alone: fine to call in a coroutine, so it needs no twin.
IMMEDIATE = {
    RAGCacheEngine: {"stats", "render", "tokenize", "count_tokens"},
    OpenAIServer: {"tokenize", "count_tokens"},
    ModularModel: {"tokenize", "count_tokens", "assemble", "stats", "clear"},
    ModularEngine: {
        *("stats", "assemble", "render", "tokenize", "count_tokens", "with_strategy"),
    },
    Schema: {"to_pml", "members_of"},
    ModularPrompt: set(),
    ModularQueryEngine: {"with_prompt"},
    RetrieverCore: {
        "stats",
        *("embed", "explain", "forget", "load"),  # flows, which block nothing
        *("dump", "restore"),  # pickling knows no coroutines
        # The retrievers' own aclear and asave call these in a thread.
        *("discard", "save"),
    },
    Speculator: {"stats", "interval"},
    LangChainRetriever: {"stats", "attach", "detach"},
    LlamaIndexRetriever: {"with_context", "stats", "attach", "detach"},
    StagedIndex: set(),
    # Flows, which block nothing, and the searches that these have made in a thread.
    StagedCore: {"retrieve", "stages", "search", "search_stages"},
    LangChainStagedRetriever: set(),
    LlamaIndexStagedRetriever: set(),
    Speculators: set(),
    SpeculativeRAG: set(),
    SpeculativeQueryEngine: set(),
    AdaptiveRAG: set(),
    AdaptiveQueryEngine: set(),
    AdaptivePipeline: set(),
    LLMProfiler: {"learn", "review_tokens"},
    CachedProfiler: {"clear"},
    HeuristicProfiler: set(),
    EngineLoadSource: set(),
    MetricsLoadSource: set(),
    SynthesisRunnable: set(),
    BaseSynthesis: set(),
    # These are called in a thread.
    EngineAsker: {"limits", "count_tokens", "count_prompt"},
    LangChainAsker: {"limits", "count_tokens", "count_prompt"},
    LlamaIndexAsker: {"limits", "count_tokens", "count_prompt"},
    embeddings.MiniLM: set(),
    # Those of both frameworks have async versions of these.
    DocumentOrder: {"arrange", "arrange_all", "schedule", "report", "refresh", "clear", "stats"},
    OrderDocuments: {"report", "clear", "stats"},
    CacheFriendlyOrder: {"report", "clear", "stats"},
    # The frameworks' own async versions call these in a thread, except what is immediate.
    HalfTruncationHistory: {"stats", "get_messages", "add_messages", "clear"},
    HalfTruncationMemory: {
        *("get", "put", "put_messages", "set", "reset", "stats"),
        "custom_model_dump",  # LlamaIndex calls it
    },
    RAGPromptTemplate: {"format_messages", "partial", "lay_out", "cache_key", "pretty_repr"},
    LlamaIndexTemplate: {
        *("format", "format_messages", "partial_format", "get_template", "lay_out", "cache_key"),
    },
    RelevanceCheck: set(),
    # Checks run in the background of either.
    AnswerFlow: {"warn", "leave_out", "check", "check_unshared", "stats"},
    AnswerCache: {"stats"},
    AnswerCacheEngine: {"stats"},
    ChatRAGCache: {"get_token_ids", "get_num_tokens", "with_structured_output", "bind_tools"},
    LangChainLLM: {"get_token_ids", "get_num_tokens"},
    LlamaIndexLLM: {"to_payload", "get_tool_calls_from_response"},
}


def own_methods(kind: type) -> dict[str, object]:
    """Public methods that our code defines, not the framework's."""
    found: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith(("ragcache_integrations", "ragcache_modular")):
            found |= {
                name: value
                for name, value in vars(base).items()
                if not name.startswith("_")
                and inspect.isfunction(value)
                and not name.startswith("model_")
            }
    return found


def is_twin(kind: type, name: str) -> bool:
    """Whether a name is that of another method with an a before it, as ``add`` is not."""
    return name.startswith("a") and hasattr(kind, name[1:]) and name not in IMMEDIATE[kind]


@pytest.mark.parametrize("kind", IMMEDIATE, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_sync_and_async_go_together(kind: type) -> None:
    methods = own_methods(kind)
    twins = {name for name in methods if is_twin(kind, name)}  # perhaps of a framework's method
    waiting = set(methods) - twins - IMMEDIATE[kind]
    assert {f"a{name}" for name in waiting} <= twins
    assert IMMEDIATE[kind] <= set(methods)
    for name in waiting:
        sync, twin = (inspect.signature(methods[n]) for n in (name, f"a{name}"))  # type: ignore[arg-type] # functions
        assert sync.parameters == twin.parameters, name


@pytest.mark.parametrize("kind", IMMEDIATE, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_twins_are_coroutines(kind: type) -> None:
    for name, method in own_methods(kind).items():
        function = inspect.unwrap(method)  # type: ignore[arg-type]
        asynchronous = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        # A function may return the generator of a flow that both versions have.
        given = str(inspect.signature(function).return_annotation)
        asynchronous = asynchronous or given.startswith("AsyncGenerator[")
        assert asynchronous == is_twin(kind, name), name
