"""What a question says besides its words, by a class or attributes of its own, is compared, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle

from ragcache_integrations.langchain import AnswerCache, ApproximateCacheRetriever
from ragcache_integrations.llama_index import AnswerCache as LlamaAnswerCache
from ragcache_integrations.llama_index import ApproximateCacheRetriever as LlamaCacheRetriever
from tests.answers.traffic import langchain_embeddings, llama_index_embeddings
from tests.attacks.context.steps import QUESTION, LlamaFound, Says


class Words(str):
    """A text with attributes."""

    __slots__ = ("user",)

    user: str


class Items(dict[str, Any]):
    """A dict with attributes."""

    user: str


class Turn(HumanMessage):
    user: str


@dataclass
class OfUser(QueryBundle):
    user: str = "nobody"


class OfMethod(QueryBundle):
    """Says by its own code who asks."""

    def of(self, user: str) -> OfMethod:
        self._user = user
        return self

    @property
    def user(self) -> str:
        return self._user


def words(user: str) -> Words:
    made = Words(QUESTION)
    made.user = user
    return made


def items(user: str) -> Items:
    made = Items(question=QUESTION)
    made.user = user
    return made


def bundle(user: str) -> QueryBundle:
    made = QueryBundle(QUESTION)
    made.user = user  # type: ignore[attr-defined] # the point
    return made


def of_words(user: str) -> QueryBundle:
    return QueryBundle(words(user))


def user_of(value: Any) -> str:
    for part in (value, getattr(value, "query_str", None)):
        user = getattr(part, "user", None)
        if user is not None:
            return f"dear {user}"
    if isinstance(value, dict) and "chat_history" in value:
        return user_of(value["chat_history"][0])
    return user_of(value["question"]) if isinstance(value, dict) else "dear nobody"


LANGCHAIN: list[Callable[[str], Any]] = [
    words,
    items,
    lambda user: {"question": words(user)},
    lambda user: {
        "question": QUESTION,
        "chat_history": [Turn(content="hello", user=user), AIMessage("h")],
    },
]
BUNDLES: list[Callable[[str], QueryBundle]] = [
    lambda user: OfUser(QUESTION, user=user),
    lambda user: OfMethod(QUESTION).of(user),
    bundle,
    of_words,
]


@pytest.mark.parametrize("ask", LANGCHAIN)
async def test_langchain_s_inputs(ask: Callable[[str], Any]) -> None:
    found: Any = RunnableLambda(lambda _: [Document("the same", id="1")])
    cached = AnswerCache(
        chain=RunnableLambda(user_of), retriever=found, context_key="chat_history", tolerance=0
    )
    for user in ("ann", "bob"):
        assert cached.invoke(ask(user)) == await cached.ainvoke(ask(user)) == f"dear {user}"


def test_texts_for_a_retriever_of_langchain() -> None:
    found: Any = RunnableLambda(lambda text: [Document(user_of(text), id="1")])
    cached = ApproximateCacheRetriever.from_retriever(found, langchain_embeddings(), tolerance=0)
    for user in ("ann", "bob"):
        assert cached.invoke(words(user))[0].page_content == f"dear {user}"
    assert [cached.invoke(QUESTION)[0].page_content for _ in range(2)] == ["dear nobody"] * 2
    assert cached.stats().hits == 1


@pytest.mark.parametrize("ask", BUNDLES)
def test_llama_index_s_questions(ask: Callable[[str], QueryBundle]) -> None:
    class Found(LlamaFound):
        def _retrieve(self, query_bundle: QueryBundle) -> Any:
            nodes = super()._retrieve(query_bundle)
            nodes[0].node.set_content(user_of(query_bundle))
            return nodes

    class Answers(Says):
        def synthesize(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            response: Any = super().synthesize(query, *args, **kwargs)
            response.response = user_of(query)
            return response

    retriever = LlamaCacheRetriever.from_retriever(
        Found(lambda _: ""), embed_model=llama_index_embeddings(), tolerance=0
    )
    engine = RetrieverQueryEngine(LlamaFound(lambda _: "s"), response_synthesizer=Answers(str))
    cached = LlamaAnswerCache(engine, tolerance=0)
    for user in ("ann", "bob"):
        assert retriever.retrieve(ask(user))[0].text == f"dear {user}"
        assert str(cached.query(ask(user))) == f"dear {user}"


@pytest.mark.parametrize("ask", [BUNDLES[0], BUNDLES[2]])
def test_what_is_plain_data_is_compared(ask: Callable[[str], QueryBundle]) -> None:
    retriever = LlamaCacheRetriever.from_retriever(
        LlamaFound(lambda _: "s"), embed_model=llama_index_embeddings(), tolerance=0
    )
    for user in ("ann", "bob", "ann"):
        retriever.retrieve(ask(user))
    assert retriever.stats().hits == 1
