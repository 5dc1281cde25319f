"""What is learnt from one tenant's questions opens no tolerance for another tenant.

Ann's questions in other words have the same answers, so that a tolerance opens for her. Bob's have
other answers for other words. He asks as few as to prove nothing, and is never served a wrong one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.tools import StructuredTool
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.base.response.schema import Response
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations import llama_index as llama
from ragcache_integrations.langchain import (
    AnswerCache,
    ApproximateCacheRetriever,
    cached_tool,
)
from tests.answers.traffic import langchain_embeddings, llama_index_embeddings

WORDS = ("nice", "pretty", "lovely", "pleasant", "splendid")
"""The embeddings of such questions are near; without the guard, which tells these words apart."""

LEARNT = 25
"""Topics of which each tells the learner a few times what it is to know, at an error of 10 %."""

EQUAL = 3 * LEARNT
"""Hits of the same while a cache is taught: each topic's first question comes four times."""


def questions(who: str, first: int, last: int) -> Iterator[tuple[str, str]]:
    """A topic's question, and the same in other words."""
    for number in range(first, last):
        topic = f"{who}{number}"
        for word in WORDS[1:]:
            yield f"{topic} is it {WORDS[0]}", f"{topic} is it {word}"


def right(question: str) -> str:
    """Ann's answers are those of the topic; those of everybody else of each of the words."""
    topic, *_, word = question.split()
    return f"all of {topic}" if topic.startswith("ann") else f"{topic} {word}"


CALLS: list[str] = []


def answer(inputs: dict[str, Any]) -> str:
    CALLS.append(inputs["input"])
    return right(inputs["input"])


def page(_: Any) -> list[Document]:
    return [Document("All of them are in the guide.", id="1")]


def cache_of(**settings: Any) -> AnswerCache:
    CALLS.clear()
    return AnswerCache(
        chain=RunnableLambda(answer),
        retriever=RunnableLambda(page),
        documents_key="context",
        embeddings=langchain_embeddings(),
        capacity=10_000,
        **{"error": 0.1, "check_rate": 0.01, "guard": False, **settings},
    )


def teach(cached: Any, namespace: str, who: str = "ann", last: int = LEARNT) -> None:
    for one, other in questions(who, 0, last):
        cached.invoke(one, namespace=namespace)
        cached.invoke(other, namespace=namespace)


def answered(cached: Any, namespace: str, who: str) -> list[str]:
    """What a tenant asked last is answered with."""
    given = []
    for one, other in questions(who, 900, 903):
        cached.invoke(one, namespace=namespace)
        given.append(cached.invoke(other, namespace=namespace))
    return given


def expected(who: str) -> list[str]:
    return [right(other) for _, other in questions(who, 900, 903)]


@pytest.fixture
def taught() -> AnswerCache:
    """Ann has taught it."""
    cached = cache_of()
    teach(cached, "ann")
    return cached


def test_ann_herself_is_served_what_was_learnt(taught: AnswerCache) -> None:
    """The control: a cache that learns nothing would be right everywhere."""
    CALLS.clear()
    assert answered(taught, "ann", "ann") == expected("ann")
    near = [call for call in CALLS if not call.endswith(WORDS[0])]
    assert len(near) < 6, "near questions are served to her"


@pytest.mark.parametrize(
    "tenant",
    ["bob", "", "Ann", "ann ", " ann", "ann\x00", "ANN", "an", "anna", "\u0430nn", "ann/bob"],
)
def test_no_other_tenant_is_served_what_was_learnt(taught: AnswerCache, tenant: str) -> None:
    who = f"t{tenant.encode().hex()}x"
    assert answered(taught, tenant, who) == expected(who)


def test_who_names_no_namespace_is_served_nothing(taught: AnswerCache) -> None:
    for one, other in questions("nobody", 900, 903):
        taught.invoke(one)
        assert taught.invoke(other) == right(other)


@pytest.mark.parametrize("how", ["ainvoke", "stream", "astream", "batch"])
def test_in_each_way_to_ask(taught: AnswerCache, how: str) -> None:
    async def later(question: str) -> str:
        if how == "ainvoke":
            return str(await taught.ainvoke(question, namespace="bob"))
        return "".join([piece async for piece in taught.astream(question, namespace="bob")])

    for one, other in questions(how, 900, 903):
        for question in (one, other):
            if how in {"ainvoke", "astream"}:
                given = asyncio.run(later(question))
            elif how == "stream":
                given = "".join(taught.stream(question, namespace="bob"))
            else:
                given = taught.batch([question], namespace="bob")[0]
            assert given == right(question)


def test_what_explains_says_that_nothing_is_served(taught: AnswerCache) -> None:
    (one, other), *_ = questions("explained", 900, 901)
    taught.invoke(one, namespace="bob")
    assert not taught.explain(other, namespace="bob").hit


def test_what_those_without_a_namespace_taught() -> None:
    cached = cache_of()
    teach(cached, "")
    assert answered(cached, "bob", "bob") == expected("bob")


def test_what_many_tenants_taught_together() -> None:
    """No tenant alone has shown enough; all together would have."""
    cached = cache_of()
    for number, (one, other) in enumerate(questions("ann", 0, LEARNT)):
        for question in (one, other):
            cached.invoke(question, namespace=f"tenant {number % 160}")
    assert answered(cached, "bob", "bob") == expected("bob")
    assert answered(cached, "tenant 7", "seven") == expected("seven")


def test_a_tenant_whose_answers_are_wrong_closes_no_other_s() -> None:
    cached = cache_of()
    teach(cached, "ann")
    teach(cached, "mallory", "mallory", 60)
    CALLS.clear()
    assert answered(cached, "ann", "ann") == expected("ann")
    near = [call for call in CALLS if not call.endswith(WORDS[0])]
    assert len(near) < 6


def test_a_tenant_who_taught_wrong_answers_is_served_none() -> None:
    cached = cache_of()
    teach(cached, "ann")
    for one, other in questions("mallory", 0, 20):
        for question in (one, other):
            assert cached.invoke(question, namespace="mallory") == right(question)


def test_tenants_who_ask_in_turn() -> None:
    cached = cache_of()
    pairs = zip(questions("ann", 0, LEARNT), questions("bob", 0, LEARNT), strict=True)
    wrong = 0
    for (one, other), (his, his_other) in pairs:
        cached.invoke(one, namespace="ann")
        cached.invoke(other, namespace="ann")
        cached.invoke(his, namespace="bob")
        wrong += cached.invoke(his_other, namespace="bob") != right(his_other)
    assert wrong == 0


def test_tenants_who_ask_at_the_same_time() -> None:
    cached = cache_of()

    def bob() -> int:
        wrong = 0
        for one, other in questions("bob", 0, LEARNT):
            cached.invoke(one, namespace="bob")
            wrong += cached.invoke(other, namespace="bob") != right(other)
        return wrong

    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(bob)
        pool.submit(teach, cached, "ann").result()
        assert asking.result() == 0


@pytest.mark.parametrize("how", ["saved", "copied"])
def test_what_was_learnt_elsewhere(taught: AnswerCache, how: str, tmp_path: Path) -> None:
    if how == "saved":
        taught.save(tmp_path / "answers.npz", tag="t")
        other = cache_of()
        other.load(tmp_path / "answers.npz", tag="t")
    else:
        other = copy.copy(taught)
    who = f"{how}x"
    assert answered(other, "bob", who) == expected(who)
    CALLS.clear()
    assert answered(other, "ann", "ann") == expected("ann")


def test_a_copy_of_another_namespace(taught: AnswerCache) -> None:
    try:
        other = taught.model_copy(update={"namespace": "bob"})
        given = []
        for one, near in questions("copy", 900, 903):
            other.invoke(one)
            given.append(other.invoke(near))
    except (ValueError, TypeError):
        return
    assert given == expected("copy")


def test_a_namespace_that_is_configurable(taught: AnswerCache) -> None:
    try:
        chain: Any = taught.configurable_fields(namespace=ConfigurableField(id="tenant"))
        run = {"configurable": {"tenant": "bob"}}
        given = []
        for one, near in questions("field", 900, 903):
            chain.invoke(one, run)
            given.append(chain.invoke(near, run))
    except (ValueError, TypeError):
        return
    assert given == expected("field")


def test_what_is_forgotten_of_one_tenant_is_not_learnt_by_another() -> None:
    cached = cache_of()
    teach(cached, "ann")
    cached.forget(namespace="ann")
    assert answered(cached, "bob", "bob") == expected("bob")


def test_a_tolerance_that_is_declared_holds_for_all() -> None:
    """Shared where declared: a number, or one to begin with, is no knowledge of a tenant."""
    cached = cache_of(tolerance=0.6)
    for tenant in ("ann", "bob"):
        CALLS.clear()
        for one, other in questions("ann", 900, 903):
            cached.invoke(one, namespace=tenant)
            assert cached.invoke(other, namespace=tenant) == right(other)
        assert not [call for call in CALLS if not call.endswith(WORDS[0])]


def test_two_tools_learn_apart() -> None:
    def look_up(query: str) -> str:
        return right(query)

    def tool() -> Any:
        plain = StructuredTool.from_function(look_up, name="look_up", description="d")
        return cached_tool(
            plain, query_argument="query", embeddings=langchain_embeddings(), error=0.1, guard=False
        )

    anns, bobs = tool(), tool()
    for one, other in questions("ann", 0, LEARNT):
        for question in (one, other):
            anns.invoke({"query": question})
    for one, other in questions("bob", 900, 903):
        bobs.invoke({"query": one})
        assert bobs.invoke({"query": other}) == right(other)


@pytest.mark.parametrize("where", ["configurable", "an argument"])
def test_one_tool_of_two_users(where: str) -> None:
    """Who asks is in the key of a tool's results, and so is what was learnt of them."""

    def look_up(query: str, user: str = "") -> str:
        return right(query)

    plain = StructuredTool.from_function(look_up, name="look_up", description="d")
    tool = cached_tool(
        plain, query_argument="query", embeddings=langchain_embeddings(), error=0.1, guard=False
    )

    def ask(question: str, user: str) -> Any:
        if where == "configurable":
            return tool.invoke({"query": question}, {"configurable": {"user": user}})
        return tool.invoke({"query": question, "user": user})

    for one, other in questions("ann", 0, LEARNT):
        ask(one, "ann")
        ask(other, "ann")
    for one, other in questions("bob", 900, 903):
        ask(one, "bob")
        assert ask(other, "bob") == right(other)


@pytest.mark.parametrize("face", ["answers", "documents of a wrapped retriever"])
def test_users_whom_the_configuration_names(face: str) -> None:
    """Values of ``configurable`` separate what is served, and so what is learnt."""
    cached: Any = cache_of() if face == "answers" else wrapped()

    def ask(question: str, user: str) -> str:
        given = cached.invoke(question, {"configurable": {"user": user}})
        return str(given if face == "answers" else given[0].page_content)

    for one, other in questions("ann", 0, LEARNT):
        ask(one, "ann")
        ask(other, "ann")
    assert cached.stats().hits > EQUAL, "she is served what was learnt"
    for one, other in questions("bob", 900, 903):
        ask(one, "bob")
        assert ask(other, "bob") == (right(other) if face == "answers" else document(other))


# LlamaIndex.


class LlamaPage(LlamaRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="guide", id_="1"), score=1.0)]


class Engine(RetrieverQueryEngine):
    def synthesize(self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
        return Response(right(query_bundle.query_str), source_nodes=nodes)

    async def asynthesize(
        self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
    ) -> Any:
        return self.synthesize(query_bundle, nodes)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("namespace", ["ann", "bob"])
def test_two_caches_of_one_engine_learn_apart(namespace: str, later: bool) -> None:
    engine = Engine(LlamaPage(), response_synthesizer=get_response_synthesizer(llm=MockLLM()))

    def cache(namespace: str) -> llama.AnswerCache:
        return llama.AnswerCache(
            engine,
            embed_model=llama_index_embeddings(),
            error=0.1,
            guard=False,
            namespace=namespace,
        )

    anns, bobs = cache("ann"), cache(namespace)
    for one, other in questions("ann", 0, LEARNT):
        anns.query(one)
        anns.query(other)
    assert anns.stats().hits > EQUAL, "she is served what was learnt"
    for one, other in questions("bob", 900, 903):
        bobs.query(one)
        given = asyncio.run(bobs.aquery(other)) if later else bobs.query(other)
        assert str(given) == right(other)


# The query cache: Ann's topics have a document each, Bob's one for each of the words.


def texts() -> list[str]:
    alone = [f"ann{number}" for number in [*range(LEARNT), *range(900, 903)]]
    others = ("bob", "two", "three", "four", "mallory")
    each = [
        f"{who}{number} is it {word}"
        for who in others
        for number in [*range(LEARNT), *range(900, 903)]
        for word in WORDS
    ]
    return alone + each


def store_of() -> InMemoryVectorStore:
    store = InMemoryVectorStore(langchain_embeddings())
    store.add_texts(texts(), ids=texts())
    return store


def retriever_of(**settings: Any) -> ApproximateCacheRetriever:
    made: dict[str, Any] = {
        "k": 1,
        "tolerance": "auto",
        "rerank_factor": 1,
        "max_violation": 0.1,
        "capacity": 10_000,
        "guard": False,
    }
    return ApproximateCacheRetriever.from_vectorstore(store_of(), **made | settings)


def wrapped() -> ApproximateCacheRetriever:
    """A retriever that is wrapped, of which the cache can't know what it reads."""
    return ApproximateCacheRetriever.from_retriever(
        RunnableLambda(lambda question: [Document(document(question), id=document(question))]),
        langchain_embeddings(),
        k=1,
        tolerance="auto",
        rerank_factor=1,
        max_violation=0.1,
        capacity=10_000,
        guard=False,
    )


def document(question: str) -> str:
    topic = question.split(maxsplit=1)[0]
    return topic if topic.startswith("ann") else question


def teach_documents(retriever: Any, namespace: str, who: str = "ann", last: int = LEARNT) -> None:
    for one, other in questions(who, 0, last):
        retriever.invoke(one, namespace=namespace)
        retriever.invoke(other, namespace=namespace)


Find = Callable[[str], list[Document]]


def found(find: Find, who: str) -> list[str]:
    given = []
    for one, other in questions(who, 900, 903):
        find(one)
        given += [each.page_content for each in find(other)]
    return given


def wanted(who: str) -> list[str]:
    return [document(other) for _, other in questions(who, 900, 903)]


@pytest.fixture
def knowing() -> ApproximateCacheRetriever:
    retriever = retriever_of()
    teach_documents(retriever, "ann")
    return retriever


def test_ann_is_found_what_was_learnt(knowing: ApproximateCacheRetriever) -> None:
    before = knowing.stats().hits
    assert found(lambda question: knowing.invoke(question, namespace="ann"), "ann") == wanted("ann")
    assert knowing.stats().hits - before > 9, "her equal questions alone are nine hits"


@pytest.mark.parametrize(("tenant", "who"), [("bob", "bob"), ("", "two"), ("Ann", "three")])
def test_no_other_tenant_is_found_what_was_learnt(
    knowing: ApproximateCacheRetriever, tenant: str, who: str
) -> None:
    assert found(lambda question: knowing.invoke(question, namespace=tenant), who) == wanted(who)


def test_coroutines_of_another_tenant(knowing: ApproximateCacheRetriever) -> None:
    def find(question: str) -> list[Document]:
        return asyncio.run(knowing.ainvoke(question, namespace="four"))

    assert found(find, "four") == wanted("four")


@pytest.mark.parametrize("how", ["a copy", "a field", "copy.copy"])
def test_retrievers_that_share_a_cache(how: str) -> None:
    retriever = retriever_of(namespace="ann")
    for one, other in questions("ann", 0, LEARNT):
        retriever.invoke(one)
        retriever.invoke(other)
    if how == "a copy":
        find: Find = retriever.model_copy(update={"namespace": "bob"}).invoke
    elif how == "a field":
        chain: Any = retriever.configurable_fields(namespace=ConfigurableField(id="tenant"))
        find = chain.with_config(configurable={"tenant": "bob"}).invoke
    else:
        shared = copy.copy(retriever)

        def find(question: str) -> list[Document]:
            return shared.invoke(question, namespace="bob")

    assert found(find, "bob") == wanted("bob")


def test_what_many_tenants_taught_a_retriever_together() -> None:
    retriever = retriever_of()
    for number, (one, other) in enumerate(questions("ann", 0, LEARNT)):
        for question in (one, other):
            retriever.invoke(question, namespace=f"tenant {number % 160}")
    assert found(lambda each: retriever.invoke(each, namespace="bob"), "bob") == wanted("bob")


def test_documents_of_tenants_who_ask_in_turn() -> None:
    retriever, wrong, his = retriever_of(), 0, list(questions("bob", 0, LEARNT))
    for number, (one, other) in enumerate(questions("ann", 0, LEARNT)):
        retriever.invoke(one, namespace="ann")
        retriever.invoke(other, namespace="ann")
        if number % 4 == 3:  # he asks less, and so proves less
            first, second = his[number // 4]
            retriever.invoke(first, namespace="bob")
            given = retriever.invoke(second, namespace="bob")[0].page_content
            wrong += given != document(second)
    assert wrong == 0


def test_mallory_closes_no_other_s_documents() -> None:
    retriever = retriever_of()
    teach_documents(retriever, "ann")
    teach_documents(retriever, "mallory", "mallory")
    before = retriever.stats().hits
    assert found(lambda each: retriever.invoke(each, namespace="ann"), "ann") == wanted("ann")
    assert retriever.stats().hits - before > 9, "her equal questions alone are nine hits"


@pytest.mark.parametrize("tenants", [("ann", "ann"), ("ann", "bob")])
def test_two_retrievers_of_llama_index_learn_apart(tenants: tuple[str, str]) -> None:
    nodes = [TextNode(text=text, id_=text) for text in texts()]
    index = VectorStoreIndex(nodes, embed_model=llama_index_embeddings())
    made: dict[str, Any] = {
        "k": 1, "tolerance": "auto", "rerank_factor": 1, "max_violation": 0.1, "guard": False
    }  # fmt: skip
    anns, bobs = (
        llama.ApproximateCacheRetriever.from_index(index, namespace=each, **made)
        for each in tenants
    )
    for one, other in questions("ann", 0, LEARNT):
        anns.retrieve(one)
        anns.retrieve(other)
    assert anns.stats().hits > EQUAL
    for one, other in questions("bob", 900, 903):
        bobs.retrieve(one)
        assert bobs.retrieve(other)[0].text == document(other)
