"""Query engines that put their nodes into a plain prompt: they are found, nothing else changes."""

from __future__ import annotations

import asyncio
import gc
import textwrap
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llama_index.core.instrumentation as instrument
import pytest
from blockbuster import BlockBuster
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import (
    ImageNode,
    MetadataMode,
    NodeWithScore,
    QueryBundle,
    TextNode,
)

from ragcache_integrations.core.texts import content_id
from ragcache_integrations.engine import PromptDocument, RAGCacheEngine
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_integrations.retrievers.cached.llama_index.retriever import ApproximateCacheRetriever
from tests.llms.doubles import Recorder, StubServer
from tests.llms.installing import shown_by_each
from tests.llms.retrieving import TEXTS, TOPICS, Counted, documents_in, embedding
from tests.support.embeddings import LlamaIndexEmbeddings

FIRST = "What is said on topic 3 ?"
SECOND = "Who says something on topic 3 ?"


@pytest.fixture
def nodes() -> list[TextNode]:
    return [TextNode(text=text, id_=f"t{n}") for n, text in enumerate(TEXTS)]


@pytest.fixture
def index(nodes: list[TextNode]) -> VectorStoreIndex:
    return VectorStoreIndex(nodes, embed_model=LlamaIndexEmbeddings(embedding))


@pytest.fixture
def counted(engine: RAGCacheEngine) -> Counted:
    assert engine.reset_cache()
    return Counted(engine)


def llm_on(engine: Any, **knobs: Any) -> RAGCacheLLM:
    return RAGCacheLLM(engine=engine, **{"max_tokens": 2, **knobs})


def over(index: VectorStoreIndex, llm: RAGCacheLLM, **arguments: Any) -> RetrieverQueryEngine:
    retriever = index.as_retriever(similarity_top_k=1)
    return RetrieverQueryEngine.from_args(retriever, llm=llm, **arguments)


# The query engine as it is, over the real engine


@pytest.mark.engine
@pytest.mark.parametrize("wrapped", [False, True], ids=["theirs", "ours"])
def test_the_usual_query_engine(
    engine: RAGCacheEngine, counted: Counted, index: VectorStoreIndex, wrapped: bool
) -> None:
    ours = ApproximateCacheRetriever.from_index(index, k=1, tolerance=0.1, guard=False)
    theirs = index.as_retriever(similarity_top_k=1)
    retriever = ours if wrapped else theirs
    query_engine = RetrieverQueryEngine.from_args(retriever, llm=llm_on(engine))
    query_engine.query(FIRST)
    assert (counted.documents, counted.hits) == (1, 0)
    query_engine.query(SECOND)
    assert (counted.documents, counted.hits) == (2, 1)
    assert ours.stats().hits == wrapped
    tree = engine.tree()
    assert tree is not None
    assert "t3" in {node.name for node in tree.nodes()}


@pytest.mark.engine
def test_switched_off_the_tree_stays_empty(
    engine: RAGCacheEngine, counted: Counted, index: VectorStoreIndex
) -> None:
    query_engine = over(index, llm_on(engine, find_documents=False))
    query_engine.query(FIRST)
    query_engine.query(SECOND)
    assert (counted.documents, counted.hits) == (0, 0)
    tree = engine.tree()
    assert tree is not None
    assert tree.roots == ()


@pytest.mark.engine
@pytest.mark.parametrize(
    "mode", [ResponseMode.COMPACT, ResponseMode.REFINE, ResponseMode.TREE_SUMMARIZE]
)
def test_every_synthesizer_and_its_async_twin(
    engine: RAGCacheEngine, counted: Counted, index: VectorStoreIndex, mode: ResponseMode
) -> None:
    query_engine = over(index, llm_on(engine), response_mode=mode)
    query_engine.query(FIRST)
    asyncio.run(query_engine.aquery(SECOND))
    assert (counted.documents, counted.hits) == (2, 1)


@pytest.mark.engine
def test_streams_and_chats(
    engine: RAGCacheEngine, counted: Counted, index: VectorStoreIndex
) -> None:
    llm = llm_on(engine)
    assert str(over(index, llm, streaming=True).query(FIRST))
    retriever = index.as_retriever(similarity_top_k=1)
    memory = ChatMemoryBuffer.from_defaults(token_limit=2000)  # the default one leaves a database
    chat = ContextChatEngine.from_defaults(retriever=retriever, llm=llm, memory=memory)
    assert chat.chat(SECOND).response
    assert counted.documents == 2


@pytest.mark.engine
async def test_nothing_blocks_the_event_loop(
    engine: RAGCacheEngine, index: VectorStoreIndex, no_blocking: BlockBuster
) -> None:
    before = Counted(engine)
    query_engine = over(index, llm_on(engine))
    await asyncio.gather(*(query_engine.aquery(f"Who, on topic {n} ?") for n in range(4)))
    assert await asyncio.to_thread(lambda: before.documents) == 4


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_many_threads_at_once(
    engine: RAGCacheEngine, counted: Counted, index: VectorStoreIndex
) -> None:
    """Every prompt's document is found, whatever else is retrieved and asked meanwhile."""
    query_engine = over(index, llm_on(engine, max_tokens=1))

    def ask(worker: int) -> None:
        for n in range(5):
            query_engine.query(f"Worker {worker}: what of topic {(worker + n) % TOPICS} ?")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert counted.documents == 40


# What is marked, and what is not


class Scripted(BaseRetriever):
    """Returns what it is told to, or raises it."""

    def __init__(self, *found: TextNode | Exception) -> None:
        super().__init__()
        self.found = found

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        nodes = []
        for found in self.found:
            if isinstance(found, Exception):
                raise found
            nodes.append(NodeWithScore(node=found))
        return nodes


@pytest.mark.engine
def test_metadata_is_part_of_what_is_found(recorder: Recorder) -> None:
    """As synthesizers write a node: its metadata first, unless they are kept from the model."""
    node = TextNode(
        text=TEXTS[0],
        id_="t0",
        metadata={"page": 3, "secret": "x"},
        excluded_llm_metadata_keys=["secret"],
    )
    RetrieverQueryEngine.from_args(Scripted(node), llm=llm_on(recorder)).query("Why?")
    (prompt,) = recorder.prompts
    assert prompt.documents == (PromptDocument(f"page: 3\n\n{TEXTS[0]}", "t0"),)


@pytest.mark.engine
def test_a_node_is_found_without_its_metadata_too(recorder: Recorder) -> None:
    """As many a prompt is written by hand."""
    llm = llm_on(recorder)
    node = TextNode(text=TEXTS[0], id_="t0", metadata={"page": 3})
    (found,) = Scripted(node).retrieve("Why?")
    llm.complete(f"{found.get_content()}\n\nWhy?")
    llm.complete(f"{found.get_content(MetadataMode.LLM)}\n\nWhy?")
    bare, whole = recorder.prompts
    assert bare.documents == (PromptDocument(TEXTS[0], content_id(TEXTS[0])),)
    assert whole.documents == (PromptDocument(f"page: 3\n\n{TEXTS[0]}", "t0"),)


@pytest.mark.engine
def test_nodes_that_are_given_win(recorder: Recorder, index: VectorStoreIndex) -> None:
    llm = llm_on(recorder)
    (found,) = index.as_retriever(similarity_top_k=1).retrieve(FIRST)
    llm.complete(f"{TEXTS[3]} Why?", documents=[TEXTS[3][100:400]])
    assert recorder.prompts[-1].documents == (PromptDocument(TEXTS[3][100:400]),)
    llm.complete(f"{found.get_content()} Why?")
    assert recorder.prompts[-1].documents == (PromptDocument(TEXTS[3], "t3"),)


@pytest.mark.engine
def test_what_does_not_fit_the_window_is_cut_and_not_found(recorder: Recorder) -> None:
    long = TextNode(text="\n".join(f"Line {n} of it." for n in range(4000)), id_="long")
    llm = llm_on(recorder)
    RetrieverQueryEngine.from_args(Scripted(long), llm=llm).query("Why?")
    assert len(recorder.prompts) > 1
    assert not any(prompt.documents for prompt in recorder.prompts)


@pytest.mark.engine
def test_odd_nodes_and_errors_change_nothing(recorder: Recorder) -> None:
    llm = llm_on(recorder)
    picture = ImageNode(image_url="https://example.org/cat.png")
    assert len(Scripted(picture, TextNode(text=""), TextNode(text=TEXTS[0])).retrieve("?")) == 3
    with pytest.raises(KeyError, match="no such index"):
        Scripted(TextNode(text=TEXTS[1]), KeyError("no such index")).retrieve("?")
    llm.complete(f"{TEXTS[0]} {TEXTS[1]} Why?")
    assert [document.text for document in recorder.prompts[-1].documents] == [TEXTS[0]]


# The handler


def test_it_is_installed_once() -> None:
    for _ in range(3):
        RAGCacheLLM().close()
    root = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
    names = [handler.class_name() for handler in root.event_handlers]
    assert names.count("RAGCacheRetrievalHandler") == 1


INSTALLERS = {
    "": 0,
    "RAGCacheLLM(find_documents=False)": 0,
    "RAGCacheLLM(base_url='http://127.0.0.1:1/v1', model='m')": 1,
    "RAGCacheLLM(base_url='http://a/v1', model='m', find_documents=False)": 0,
    "RAGCacheLLM()": 1,
}


def test_who_installs_it() -> None:
    """Each in a process of its own: once installed it stays."""
    script = """
        from llama_index.core.instrumentation import get_dispatcher
        from ragcache_integrations.llama_index import RAGCacheLLM

        def count():
            names = [handler.class_name() for handler in get_dispatcher().event_handlers]
            return names.count("RAGCacheRetrievalHandler")
    """
    assert shown_by_each(textwrap.dedent(script), INSTALLERS, "count()") == INSTALLERS


def test_another_server_is_sent_plain_text(stub: StubServer, index: VectorStoreIndex) -> None:
    with RAGCacheLLM(base_url=stub.base_url, model="m", max_model_len=4096) as llm:
        over(index, llm).query(FIRST)
    (seen,) = (seen for seen in stub.seen if seen.body)
    assert TEXTS[3] in seen.body["messages"][-1]["content"]


class Tracked(TextNode):
    """A node that can be watched."""


def test_nodes_are_not_kept_alive() -> None:
    RAGCacheLLM().close()
    node = Tracked(text=TEXTS[0])
    watched = weakref.ref(node)
    retriever = Scripted(node)
    del node
    assert len(retriever.retrieve("?")) == 1
    assert documents_in(TEXTS[0]) == [TEXTS[0]]
    del retriever
    gc.collect()
    assert watched() is None
