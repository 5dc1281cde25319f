"""Documents that come several times pass through, in their number and order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations.langchain import RAGPromptTemplate, RelevanceFilter, order_documents
from ragcache_integrations.llama_index import CacheFriendlyOrder
from ragcache_integrations.llama_index import RAGPromptTemplate as LlamaIndexTemplate
from ragcache_integrations.llama_index import RelevanceFilter as LlamaIndexFilter
from ragcache_integrations.prompts.order.settings import Order

ORDERS: tuple[Order, ...] = ("relevance", "reverse", "cached_first")
KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "max_displacement": st.none() | st.integers(0, 3),
        "pin_top": st.integers(0, 3),
        "uncached": st.sampled_from(["auto", "relevance", "popularity"]),
        "cache_tokens": st.none() | st.integers(1, 60),
    },
)

# Few ids and texts, so that ids come again with the same text and with another, and texts with no
# id, with the same and with another.
DOCUMENT = st.builds(
    Document,
    st.sampled_from(["one", "two", "two and more", "three"]),
    id=st.sampled_from([None, "a", "b", "c"]),
    metadata=st.fixed_dictionaries({"source": st.integers(0, 3)}),
)
POOL = st.lists(DOCUMENT, min_size=1, max_size=5)


@st.composite
def found(draw: st.DrawFn) -> list[Document]:
    """What a retriever gives: some of its documents are the very same object."""
    return draw(st.lists(st.sampled_from(draw(POOL)), max_size=7))


def as_nodes(documents: Sequence[Document]) -> list[NodeWithScore]:
    """The same for LlamaIndex; equal objects stay equal objects."""
    nodes = {
        id(document): NodeWithScore(
            node=TextNode(
                text=document.page_content,
                metadata=dict(document.metadata),
                **({"id_": document.id} if document.id else {}),
            ),
            score=0.5,
        )
        for document in documents
    }
    return [nodes[id(one)] for one in documents]


def objects(things: Sequence[object]) -> Counter[int]:
    return Counter(id(thing) for thing in things)


def key(document: Document) -> str:
    """What an order takes for the same document."""
    return document.id or f"text {document.page_content}"


def node_key(node: NodeWithScore) -> str:
    return node.node.node_id


def check(
    before: Sequence[Any], after: Sequence[Any], order: str, key: Callable[[Any], str]
) -> None:
    assert objects(before) == objects(after)
    if order == "relevance":
        assert [id(one) for one in before] == [id(one) for one in after]
        return
    expected = before if order == "cached_first" else before[::-1]
    for name in {key(one) for one in before}:
        assert [id(one) for one in expected if key(one) == name] == [
            id(one) for one in after if key(one) == name
        ]


@given(st.lists(found(), max_size=6), st.sampled_from(ORDERS), KNOBS)
def test_langchain_order(requests: list[list[Document]], order: Order, knobs: Any) -> None:
    step = order_documents(order, **({} if order == "reverse" else knobs))
    for documents in requests:
        check(documents, step.invoke(documents), order, key)
        check(documents, asyncio.run(step.ainvoke(documents)), order, key)
    for answers in (step.batch(list(requests)), asyncio.run(step.abatch(list(requests)))):
        for documents, ordered in zip(requests, answers, strict=True):
            check(documents, ordered, order, key)
    scheduled = step.schedule(requests)
    assert sorted(number for number, _ in scheduled) == list(range(len(requests)))
    for number, ordered in scheduled:
        check(requests[number], ordered, order, key)


@given(st.lists(found(), max_size=6), st.sampled_from(ORDERS), KNOBS)
def test_llama_index_order(requests: list[list[Document]], order: Order, knobs: Any) -> None:
    step = CacheFriendlyOrder(order=order, **({} if order == "reverse" else knobs))
    nodes = [as_nodes(documents) for documents in requests]
    for node in nodes:
        check(node, step.postprocess_nodes(node), order, node_key)
        check(node, asyncio.run(step.apostprocess_nodes(node)), order, node_key)
    for number, ordered in step.schedule(nodes):
        check(nodes[number], ordered, order, node_key)


# Relevance


class SaysNoToTwo(FakeListChatModel):
    """Calls documents irrelevant that mention two."""

    responses: list[str] = []  # noqa: RUF012 - a pydantic field

    def _call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        del args, kwargs
        return "no" if "two" in messages[-1].text else "yes"


@given(found())
def test_langchain_relevance(documents: list[Document]) -> None:
    step = RelevanceFilter(llm=SaysNoToTwo())
    kept = [id(document) for document in documents if "two" not in document.page_content]
    values = {"context": documents, "question": "why?"}
    for answer in (step.invoke(values), asyncio.run(step.ainvoke(values))):
        assert [id(one) for one in answer["context"]] == kept
    assert [id(one) for one in step.compress_documents(documents, "why?")] == kept


@given(found())
def test_langchain_relevance_in_one_prompt(documents: list[Document]) -> None:
    prompt = ChatPromptTemplate.from_template("{context}\n\n{question}")
    step = RelevanceFilter(llm=FakeListChatModel(responses=["[]"]), mode="shared", prompt=prompt)
    answer = step.invoke({"context": documents, "question": "why?"})
    assert [id(one) for one in answer["context"]] == [id(document) for document in documents]


@pytest.mark.parametrize("mode", ["parallel", "shared"])
@given(documents=found())
def test_llama_index_relevance(mode: str, documents: list[Document]) -> None:
    # The mock repeats the prompt, which says no to nothing when it is about one document. About all
    # of them it seems to: then a note follows, which is a node.
    step = LlamaIndexFilter(llm=MockLLM(), mode=mode)
    nodes = as_nodes(documents)
    for kept in (
        step.postprocess_nodes(nodes, QueryBundle("why?")),
        asyncio.run(step.apostprocess_nodes(nodes, QueryBundle("why?"))),
    ):
        assert [id(one) for one in kept[: len(nodes)]] == [id(node) for node in nodes]
        assert len(kept) - len(nodes) <= (mode == "shared")


# Templates


@given(found(), st.booleans())
def test_langchain_template(documents: list[Document], blocks: bool) -> None:
    prompt = RAGPromptTemplate(documents="{context}", query="{question}", document_blocks=blocks)
    message = prompt.invoke({"context": documents, "question": "why?"}).to_messages()[-1]
    texts = [one.page_content for one in documents]
    assert str(message.text) == "\n\n".join([*texts, "why?"]) or blocks
    laid_out = prompt.lay_out(context=documents, question="why?").documents
    assert [one.text for one in laid_out] == texts
    if blocks:
        ids = [one["id"] for one in message.content if one["type"] == "text-plain"]  # type: ignore[index]  # blocks are dicts
        assert [one for one, document in zip(ids, documents, strict=True) if document.id] == [
            document.id for document in documents if document.id
        ]


@given(found())
def test_llama_index_template(documents: list[Document]) -> None:
    prompt = LlamaIndexTemplate(documents="{context_str}", query="{query_str}")
    nodes = [
        TextNode(text=document.page_content, id_=document.id or "none") for document in documents
    ]
    text = prompt.format_messages(context_str=nodes, query_str="why?")[-1].content
    assert text == "\n\n".join([*(one.page_content for one in documents), "why?"])


def test_one_text_from_two_sources() -> None:
    again = Document("Refunds take 14 days.", metadata={"source": "b.pdf"})
    found = [Document("Refunds take 14 days."), Document("Shipping is free."), again, again]
    order = order_documents("cached_first")
    for _ in range(2):
        assert [id(one) for one in order.invoke(found)] == [id(one) for one in found]
