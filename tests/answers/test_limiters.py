"""What a model has beside its settings, and changes with each call, ends no answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import BaseRateLimiter, InMemoryRateLimiter
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.cache.memory import InMemoryCache as NodeCache
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import CachePolicy
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.rate_limiter import SlidingWindowRateLimiter, TokenBucketRateLimiter
from llama_index.core.response_synthesizers import get_response_synthesizer

from ragcache_integrations.langchain import cached_tool
from tests.attacks.scripted import (
    QUESTION,
    WAYS,
    Page,
    ask_llama,
    cache_of,
    llama_cached,
)


class Own(BaseRateLimiter):
    """A limiter of an application's."""

    def __init__(self) -> None:
        self.last: list[int] = []

    def acquire(self, *, blocking: bool = True) -> bool:
        self.last = [*self.last, 1]
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        return self.acquire(blocking=blocking)


LANGCHAIN: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "a limiter": lambda: {"rate_limiter": InMemoryRateLimiter(requests_per_second=1e6)},
    "a limiter of one's own": lambda: {"rate_limiter": Own()},
    "a cache": lambda: {"cache": InMemoryCache()},
    "a small cache": lambda: {"cache": InMemoryCache(maxsize=1)},
    "callbacks": lambda: {"callbacks": [UsageMetadataCallbackHandler()]},
}


def langchain_model(number: int, **beside: Any) -> Any:
    answers = iter([AIMessage(f"{number}, {count}") for count in range(9)])
    return GenericFakeChatModel(messages=answers, **beside)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("beside", LANGCHAIN)
def test_a_model_of_langchain_s(beside: str, way: str) -> None:
    prompt = ChatPromptTemplate.from_template("{input}")
    made = LANGCHAIN[beside]()
    chain: Any = prompt | langchain_model(1, **made)
    cached = cache_of(chain)
    assert WAYS[way](cached).content == WAYS[way](cached).content == "1, 0"
    assert cached.stats().hits == 1
    chain.last = langchain_model(2, **made)
    if "cache" not in made:  # that one answers by the model's settings, which are the same
        assert WAYS[way](cached).content == "2, 0"


@pytest.mark.parametrize("beside", ["a limiter", "a limiter of one's own"])
def test_a_limiter_within_a_function(beside: str) -> None:
    limiter, count = LANGCHAIN[beside]()["rate_limiter"], iter(range(9))

    def answer(query: Any) -> str:
        limiter.acquire()
        return f"answer {next(count)}"

    cached = cache_of(RunnableLambda(answer))
    assert cached.invoke(QUESTION) == cached.invoke(QUESTION) == "answer 0"
    tool = cached_tool(StructuredTool.from_function(answer, name="look_up", description="d"))
    assert tool.invoke({"query": "x"}) == tool.invoke({"query": "x"}) == "answer 1"


def test_a_cache_of_a_graph_s_nodes() -> None:
    count = iter(range(9))
    graph = StateGraph(MessagesState)
    node: Any = RunnableLambda(lambda _: {"messages": [AIMessage(f"answer {next(count)}")]})
    graph.add_node("answer", node, cache_policy=CachePolicy())
    graph.add_edge(START, "answer")
    chain: Any = RunnableLambda(lambda value: {"messages": [("user", value["input"])]})
    cached = cache_of(chain | graph.compile(cache=NodeCache()))
    for _ in range(3):
        assert cached.invoke(QUESTION)["messages"][-1].content == "answer 0"
    assert cached.stats().hits == 2


LLAMA_INDEX: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "a bucket": lambda: {"rate_limiter": TokenBucketRateLimiter(requests_per_minute=10**6)},
    "a window": lambda: {"rate_limiter": SlidingWindowRateLimiter(requests_per_minute=10**6)},
    "callbacks": lambda: {
        "callback_manager": CallbackManager([TokenCountingHandler(tokenizer=str.split)])
    },
}


class Model(CustomLLM):
    """Says who it is."""

    number: int

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        return CompletionResponse(text=f"model {self.number}")

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        yield CompletionResponse(text=f"model {self.number}", delta=f"model {self.number}")


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("beside", LLAMA_INDEX)
def test_a_model_of_llama_index_s(beside: str, later: bool) -> None:
    model = Model(number=1, **LLAMA_INDEX[beside]())
    engine = RetrieverQueryEngine(Page(), response_synthesizer=get_response_synthesizer(llm=model))
    cached = llama_cached(engine)
    assert ask_llama(cached, later) == ask_llama(cached, later) == "model 1"
    assert cached.stats().hits == 1
    model.number = 2
    assert ask_llama(cached, later) == "model 2"


def test_a_limiter_that_many_wait_for() -> None:
    model = langchain_model(1, rate_limiter=InMemoryRateLimiter(requests_per_second=1e6))
    cached = cache_of(ChatPromptTemplate.from_template("{input}") | model)

    async def ask() -> None:
        await asyncio.gather(*(cached.ainvoke(f"question {number}") for number in range(3)))

    asyncio.run(ask())
    asyncio.run(ask())
    assert cached.stats().hits == 3
