"""Document order in the two frameworks: they translate, the core decides."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine, SamplingOptions
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import order_documents
from ragcache_integrations.llama_index import CacheFriendlyOrder
from ragcache_integrations.prompts.order.knobs import OrderKnobs
from ragcache_integrations.prompts.order.settings import OrderSettings
from ragcache_integrations.resources import load_passages

MAKE: list[Callable[..., OrderKnobs]] = [order_documents, CacheFriendlyOrder]


def documents(names: str) -> list[Document]:
    return [Document(id=name, page_content=f"text {name}") for name in names]


def nodes(names: str) -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(id_=name, text=f"text {name}"), score=1 - place / 10)
        for place, name in enumerate(names)
    ]


def names(found: Sequence[Document]) -> str:
    return "".join(one.id or "?" for one in found)


def node_names(found: Sequence[NodeWithScore]) -> str:
    return "".join(one.node.node_id for one in found)


# What holds for both


def test_knobs_have_the_cores_names() -> None:
    assert OrderKnobs.model_fields.keys() - OrderSettings.model_fields.keys() == {
        "namespace",
        "shared_state",
    }


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"ordre": "reverse"}, "unknown argument 'ordre': allowed are .*max_displacement"),
        ({"namespace": 1}, "namespace: .*got 1"),
        ({"engine": 1}, "engine must be a RAGCacheEngine, got int"),
    ],
)
def test_a_wrong_knob_is_refused(
    make: Callable[..., OrderKnobs], knobs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**knobs)


@pytest.mark.parametrize("make", MAKE)
def test_copies(make: Callable[..., OrderKnobs]) -> None:
    order = make(order="cached_first")
    order._core.arrange(("a", "b"))
    for same in (order.model_copy(), copy.copy(order), order.model_copy(update={"pin_top": 1})):
        assert same.stats() == order.stats()
        same._core.arrange(("a", "b"))
        assert same.stats() == order.stats()
    assert order.model_copy(update={"pin_top": 1})._core._settings.pin_top == 1
    for deep in (order.model_copy(deep=True), copy.deepcopy(order)):
        before = order.stats()
        assert deep.stats() == before
        deep._core.arrange(("a", "b"))
        assert order.stats() == before != deep.stats()
    assert order.model_copy(update={"cache_tokens": 5}).stats().requests == 0
    with pytest.raises(ConfigurationError, match="pin_top"):
        order.model_copy(update={"pin_top": -1})
    with pytest.raises(ConfigurationError, match="unknown argument 'pintop'"):
        order.model_copy(update={"pintop": 1})


@pytest.mark.parametrize("make", MAKE)
def test_what_is_set_afterwards_is_refused_with_the_way_to_do_it(
    make: Callable[..., OrderKnobs],
) -> None:
    order = make(order="cached_first")
    with pytest.raises(ConfigurationError, match=r"model_copy\(update={'pin_top': ...}\)"):
        order.pin_top = 2
    with pytest.raises(ConfigurationError, match="did you mean 'pin_top'"):
        order.pintop = 2
    assert order.pin_top == 0
    assert "shared_state" not in repr(order)
    assert "shared_state" not in order.model_dump()


def test_langchain_configurable_fields_keep_what_is_known() -> None:
    order = order_documents("cached_first").configurable_fields(
        pin_top=ConfigurableField("pins"),
        namespace=ConfigurableField("tenant"),
        order=ConfigurableField("order"),
    )
    order.invoke(documents("abc"))
    assert names(order.invoke(documents("xcba"))) == "abcx"
    for tenant in ("one", "two"):
        other = order.with_config(configurable={"tenant": tenant})
        assert names(other.invoke(documents("cba"))) == "cba"
        assert names(other.invoke(documents("bac"))) == "cba"
    pinned = order.with_config(configurable={"pins": 1})
    assert names(pinned.invoke(documents("xcba"))) == "xcba"
    assert names(order.invoke(documents("cba"), {"configurable": {"order": "reverse"}})) == "abc"
    with pytest.raises(ConfigurationError, match="pin_top"):
        order.invoke(documents("ab"), {"configurable": {"pins": -1}})
    assert order.default.stats().requests == 7  # type: ignore[attr-defined] # OrderDocuments
    assert order_documents("cached_first").stats().requests == 0


async def test_langchain_configurable_fields_async() -> None:
    order = order_documents("cached_first").configurable_fields(pin_top=ConfigurableField("pins"))
    await order.ainvoke(documents("abc"))
    found = await order.ainvoke(documents("xcba"), {"configurable": {"pins": 0}})
    assert names(found) == "abcx"


def test_llama_index_a_query_engine_takes_it() -> None:
    index = VectorStoreIndex([TextNode(text="a b c")], embed_model=MockEmbedding(8))
    order = CacheFriendlyOrder(order="cached_first")
    engine = RetrieverQueryEngine.from_args(
        index.as_retriever(), llm=MockLLM(), node_postprocessors=[order]
    )
    assert "a b c" in str(engine.query("why?"))
    assert order.stats().requests == 1
    assert order.callback_manager is engine.callback_manager


@pytest.mark.parametrize("make", MAKE)
def test_it_can_be_sent_to_another_process(make: Callable[..., OrderKnobs]) -> None:
    sent = pickle.loads(pickle.dumps(make(order="cached_first", pin_top=1)))
    assert (sent.order, sent.pin_top, sent.stats().requests) == ("cached_first", 1, 0)


# LangChain


def test_langchain_documents_come_out_as_they_came_in() -> None:
    order = order_documents("cached_first")
    order.invoke(documents("abc"))
    given = documents("cxba")
    before = [one.model_copy(deep=True) for one in given]
    found = order.invoke(given)
    assert names(found) == "abcx"
    assert given == before
    assert {id(one) for one in found} == {id(one) for one in given}


async def test_langchain_every_way_of_calling() -> None:
    order = order_documents("cached_first")
    order.invoke(documents("abc"))
    assert names(await order.ainvoke(documents("cba"))) == "abc"
    assert [names(one) for one in order.stream(documents("cba"))] == ["abc"]
    assert [names(one) for one in order.batch([documents("cba"), documents("da")])] == ["abc", "ad"]
    assert [names(one) for one in await order.abatch([documents("cba")])] == ["abc"]
    assert order.batch([]) == []


def test_langchain_a_chains_batch_looks_ahead() -> None:
    chain = RunnableLambda(documents) | order_documents("cached_first")
    assert [names(one) for one in chain.batch(["xa", "ya", "za"])] == ["ax", "ay", "az"]


def test_langchain_in_a_chain() -> None:
    chain = {
        "context": RunnableLambda(documents) | order_documents("reverse") | names,
        "question": RunnablePassthrough(),
    } | RunnableLambda(str)
    assert chain.invoke("abc") == "{'context': 'cba', 'question': 'abc'}"


async def test_langchain_schedule() -> None:
    requests = [documents(one) for one in ("xab", "cde", "yab")]
    expected = [(0, "abx"), (2, "aby"), (1, "cde")]
    scheduled = order_documents("cached_first").schedule(requests)
    assert [(number, names(one)) for number, one in scheduled] == expected
    scheduled = await order_documents("cached_first").aschedule(requests)
    assert [(number, names(one)) for number, one in scheduled] == expected


def test_langchain_documents_without_ids_go_by_their_text() -> None:
    order = order_documents("cached_first")
    order.invoke([Document("one"), Document("two")])
    found = order.invoke([Document("three"), Document("two"), Document("one")])
    assert [one.page_content for one in found] == ["one", "two", "three"]


def test_langchain_bad_documents_are_refused() -> None:
    order = order_documents("cached_first")
    with pytest.raises(
        ConfigurationError, match="only LangChain Documents can be ordered, got str"
    ):
        order.invoke(["a"])  # type: ignore[list-item]  # the point
    with pytest.raises(ConfigurationError, match="got str"):
        order.batch([documents("ab"), ["a"]])  # type: ignore[list-item]  # the point
    good, bad = order.batch(
        [documents("ab"), ["a"]],  # type: ignore[list-item]  # the point
        return_exceptions=True,
    )
    assert names(good) == "ab"
    assert isinstance(bad, ConfigurationError)


def test_langchain_namespaces_share_nothing() -> None:
    one = order_documents("cached_first", namespace="one")
    one.invoke(documents("abc"))
    assert one.stats().requests == 1
    assert one._core.arrange(tuple("cba")) == (0, 1, 2)


def test_langchain_a_report_reaches_the_core() -> None:
    order = order_documents("cached_first")
    with pytest.raises(ConfigurationError, match="at least 0 and at most 2"):
        order.report(documents("ab"), 3)
    order.report(documents("ab"), 2)


# LlamaIndex


async def test_llama_index_nodes_come_out_as_they_came_in() -> None:
    order = CacheFriendlyOrder(order="cached_first")
    order.postprocess_nodes(nodes("abc"))
    given = nodes("cxba")
    before = [(one.score, one.node.get_content()) for one in given]
    for found in (
        order.postprocess_nodes(given, query_bundle=QueryBundle("why?")),
        await order.apostprocess_nodes(given),
    ):
        assert node_names(found) == "abcx"
        assert {id(one) for one in found} == {id(one) for one in given}
    assert [(one.score, one.node.get_content()) for one in given] == before
    order.clear()
    assert order.stats().paths == 0


async def test_llama_index_schedule() -> None:
    requests = [nodes(one) for one in ("xab", "cde", "yab")]
    expected = [(0, "abx"), (2, "aby"), (1, "cde")]
    scheduled = CacheFriendlyOrder(order="cached_first").schedule(requests)
    assert [(number, node_names(one)) for number, one in scheduled] == expected
    scheduled = await CacheFriendlyOrder(order="cached_first").aschedule(requests)
    assert [(number, node_names(one)) for number, one in scheduled] == expected


def test_llama_index_bad_nodes_are_refused() -> None:
    order = CacheFriendlyOrder(order="cached_first")
    with pytest.raises(ConfigurationError, match="at least 0 and at most 2"):
        order.report(nodes("ab"), 3)


def test_llama_index_serialisation() -> None:
    order = CacheFriendlyOrder(order="cached_first", pin_top=2)
    assert CacheFriendlyOrder.from_dict(order.to_dict()).to_dict() == order.to_dict()


# With the real engine


@pytest.mark.engine
async def test_the_engine_finds_what_was_put_first_and_tells_what_it_has(
    engine: RAGCacheEngine,
) -> None:
    """Real cached tokens: what the order expects is there, and relevance finds nothing."""
    engine.reset_cache()
    order = order_documents("cached_first", engine=engine, refresh_seconds=1e6, namespace="order")
    passages = {passage.id: passage.text for passage in load_passages()[:6]}
    ids = list(passages)

    def ask(found: Sequence[Document]) -> tuple[int, list[int]]:
        prompt = Prompt.rag(
            "why?", [PromptDocument(one.page_content, one.id or "") for one in found]
        )
        answer = engine.generate(prompt, SamplingOptions(max_tokens=1), namespace="order")
        ends = [span.end for span in engine.render(prompt).documents]
        return answer.usage.cached_tokens, ends

    def retrieve(*wanted: int) -> list[Document]:
        return [Document(id=ids[one], page_content=passages[ids[one]]) for one in wanted]

    ask(order.invoke(retrieve(0, 1, 2)))
    assert ask(retrieve(4, 3, 1))[0] < engine.block_size * 2
    await order.arefresh()
    again = order.invoke(retrieve(3, 2, 1, 0))
    assert [one.id for one in again] == [ids[0], ids[1], ids[2], ids[3]]
    cached, ends = ask(again)
    assert cached >= ends[2] // engine.block_size * engine.block_size > 0

    # What the engine lost, the order forgets after two looks; what others sent, it learns.
    engine.reset_cache()
    ask(retrieve(5, 4))
    order.refresh()
    order.refresh()
    found = order.invoke(retrieve(0, 1, 4, 5))
    assert [one.id for one in found] == [ids[5], ids[4], ids[0], ids[1]]
