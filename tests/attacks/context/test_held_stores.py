"""A Store of LangGraph's that a step names itself keeps its results out, as the run's does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langgraph.store.memory import InMemoryStore

from ragcache_integrations.langchain import (
    AnswerCache,
    ApproximateCacheRetriever,
    cached_node,
    cached_tool,
)
from tests.answers.traffic import langchain_embeddings
from tests.attacks.context.steps import QUESTION, Step, one_node, plain_tool, put

STORE = InMemoryStore()


def user_in(store: Any) -> str:
    return f"dear {store.get(('users',), 'current').value['user']}"


def by_global(_: str) -> str:
    return user_in(STORE)


def by_two_functions(text: str) -> str:
    return by_global(text)


def by_default(_: str, store: Any = STORE) -> str:
    return user_in(store)


def in_closure() -> Step:
    store, held = STORE, {"store": STORE}
    return lambda _: user_in(store) or user_in(held["store"])


def in_dict() -> Step:
    held = {"stores": [STORE]}
    return lambda _: user_in(held["stores"][0])


@dataclass
class Holder:
    store: Any

    def answer(self, _: str) -> str:
        return user_in(self.store)


STEPS: list[Step] = [
    *(by_global, by_two_functions, by_default, in_closure(), in_dict(), Holder(STORE).answer),
    partial(lambda store, _: user_in(store), STORE),
]


def in_answers(step: Step, **knobs: Any) -> Callable[[], str]:
    found: Any = RunnableLambda(lambda _: [Document("the same", id="1")])
    chain = RunnableLambda(step)
    cached = AnswerCache(
        chain=chain, retriever=found, documents_key="context", tolerance=0, **knobs
    )
    return lambda: str(cached.invoke(QUESTION))


def in_tool(step: Step, **knobs: Any) -> Callable[[], str]:
    cached = cached_tool(plain_tool(step), query_argument="query", **knobs)
    return lambda: str(cached.invoke({"query": QUESTION}))


def in_node(step: Step, **knobs: Any) -> Callable[[], str]:
    node = cached_node(
        RunnableLambda(lambda state: {"found": step(state["question"])}),
        reads=["question"],
        **knobs,
    )
    graph = one_node(node, STORE)
    return lambda: str(graph.invoke({"question": QUESTION})["found"])


def in_retriever(step: Step, **knobs: Any) -> Callable[[], str]:
    wrapped: Any = RunnableLambda(lambda text: [Document(step(text), id="1")])
    cached = ApproximateCacheRetriever.from_retriever(
        wrapped, langchain_embeddings(), tolerance=0, **knobs
    )
    return lambda: cached.invoke(QUESTION)[0].page_content


FORMS = [in_answers, in_tool, in_node, in_retriever]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("form", FORMS)
def test_no_user_gets_what_the_store_said_for_another(form: Any, step: Step) -> None:
    ask = form(step)
    for user in ("ann", "bob"):
        put(user, STORE)
        assert ask() == f"dear {user}"


@pytest.mark.parametrize("form", FORMS)
def test_a_store_of_which_no_result_depends_is_ignored(form: Any) -> None:
    ask = form(by_global, ignores=["store"])
    put("ann", STORE)
    first = ask()
    put("bob", STORE)
    assert ask() == first == "dear ann"


def test_the_store_of_a_graph_within_is_its_own() -> None:
    inner = one_node(lambda state: {"found": state["question"]}, STORE)
    node = cached_node(inner, reads=["question"])
    for _ in range(2):
        node.invoke({"question": QUESTION})
    assert node.stats().hits == 1
