"""Every sync method that may wait has an async twin with the same arguments, and the reverse."""

from __future__ import annotations

import inspect

import pytest

from ragcache_integrations import embeddings
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.langchain import ApproximateCacheRetriever as LangChainRetriever
from ragcache_integrations.langchain import ChatRAGCache
from ragcache_integrations.langchain import RAGCacheLLM as LangChainLLM
from ragcache_integrations.llama_index import ApproximateCacheRetriever as LlamaIndexRetriever
from ragcache_integrations.llama_index import RAGCacheLLM as LlamaIndexLLM
from ragcache_integrations.llms.openai_server import OpenAIServer
from ragcache_integrations.retrievers.core import RetrieverCore

# Touches memory alone: fine to call in a coroutine, so it needs no twin.
IMMEDIATE = {
    RAGCacheEngine: {"stats", "render", "tokenize", "count_tokens"},
    OpenAIServer: {"tokenize", "count_tokens"},
    RetrieverCore: {"stats", "clear"},
    LangChainRetriever: {"stats", "clear", "attach", "detach"},
    LlamaIndexRetriever: {"stats", "clear", "attach", "detach"},
    embeddings.MiniLM: set(),
    ChatRAGCache: {"get_token_ids", "get_num_tokens", "with_structured_output"},
    LangChainLLM: {"get_token_ids", "get_num_tokens"},
    LlamaIndexLLM: {"to_payload"},
}


def own_methods(kind: type) -> dict[str, object]:
    """Public methods that our code defines, not the framework's."""
    found: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("ragcache_integrations"):
            found |= {
                name: value
                for name, value in vars(base).items()
                if not name.startswith("_")
                and inspect.isfunction(value)
                and not name.startswith("model_")
            }
    return found


@pytest.mark.parametrize("kind", IMMEDIATE, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_sync_and_async_go_together(kind: type) -> None:
    methods = own_methods(kind)
    waiting = {name for name in methods if not name.startswith("a")} - IMMEDIATE[kind]
    twins = {name for name in methods if name.startswith("a")} - IMMEDIATE[kind]
    assert {f"a{name}" for name in waiting} <= twins
    assert all(hasattr(kind, name[1:]) for name in twins)  # the framework's own, where not ours
    assert IMMEDIATE[kind] <= set(methods)
    for name in waiting:
        sync, twin = (inspect.signature(methods[n]) for n in (name, f"a{name}"))  # type: ignore[arg-type] # functions
        assert sync.parameters == twin.parameters, name


@pytest.mark.parametrize("kind", IMMEDIATE, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_twins_are_coroutines(kind: type) -> None:
    for name, method in own_methods(kind).items():
        asynchronous = inspect.iscoroutinefunction(inspect.unwrap(method))  # type: ignore[arg-type]
        assert asynchronous == (name.startswith("a") and name not in IMMEDIATE[kind]), name
