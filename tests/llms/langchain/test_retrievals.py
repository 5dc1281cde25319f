"""Chains that put their documents into a plain prompt: they are found, nothing else changes."""

from __future__ import annotations

import asyncio
import gc
import pickle
import textwrap
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from blockbuster import BlockBuster
from langchain_community.vectorstores import FAISS
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough

from ragcache_integrations.engine import PromptDocument, RAGCacheEngine
from ragcache_integrations.llms.langchain.models import ChatRAGCache, RAGCacheLLM
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from tests.llms.doubles import Recorder, StubServer
from tests.llms.installing import shown_by_each
from tests.llms.retrieving import TEXTS, TOPICS, Counted, documents_in, embedding
from tests.support.embeddings import LangChainEmbeddings

Retriever = Runnable[str, list[Document]]

FIRST = "What is said on topic 3 ?"
SECOND = "Who says something on topic 3 ?"


@pytest.fixture
def store() -> FAISS:
    return FAISS.from_texts(
        TEXTS, LangChainEmbeddings(embedding), ids=[f"t{n}" for n in range(TOPICS)]
    )


@pytest.fixture
def retriever(store: FAISS) -> Retriever:
    made: Retriever = store.as_retriever(search_kwargs={"k": 1})
    return made


@pytest.fixture
def counted(engine: RAGCacheEngine) -> Counted:
    assert engine.reset_cache()
    return Counted(engine)


def format_docs(docs: Sequence[Document]) -> str:
    return "\n\n".join(doc.page_content for doc in docs)


def chain_over(retriever: Retriever, model: Any) -> Runnable[str, str]:
    """The README's."""
    prompt = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")
    chain: Runnable[str, str] = (
        {"context": retriever | format_docs, "question": RunnablePassthrough()}
        | prompt
        | model
        | StrOutputParser()
    )
    return chain


def chat_on(engine: Any, **knobs: Any) -> ChatRAGCache:
    return ChatRAGCache(engine=engine, **{"max_tokens": 2, **knobs})


# The chain as it is, over the real engine


@pytest.mark.engine
@pytest.mark.parametrize("wrapped", [False, True], ids=["theirs", "ours"])
def test_the_usual_chain(
    engine: RAGCacheEngine, counted: Counted, store: FAISS, wrapped: bool
) -> None:
    ours = ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=0.1, guard=False)
    theirs = store.as_retriever(search_kwargs={"k": 1})
    chain = chain_over(ours if wrapped else theirs, chat_on(engine))
    chain.invoke(FIRST)
    assert (counted.documents, counted.hits) == (1, 0)
    chain.invoke(SECOND)
    assert (counted.documents, counted.hits) == (2, 1)
    assert ours.stats().hits == wrapped
    tree = engine.tree()
    assert tree is not None
    assert "t3" in {node.name for node in tree.nodes()}


@pytest.mark.engine
def test_switched_off_the_tree_stays_empty(
    engine: RAGCacheEngine, counted: Counted, retriever: Retriever
) -> None:
    chain = chain_over(retriever, chat_on(engine, find_documents=False))
    chain.invoke(FIRST)
    chain.invoke(SECOND)
    assert (counted.documents, counted.hits) == (0, 0)
    tree = engine.tree()
    assert tree is not None
    assert tree.roots == ()


@pytest.mark.engine
def test_the_answer_stays_the_same(engine: RAGCacheEngine, retriever: Retriever) -> None:
    """The document stands between line breaks, so that its tokens are the same either way."""
    with_it, without = (
        chain_over(retriever, chat_on(engine, find_documents=finds, max_tokens=16))
        for finds in (True, False)
    )
    assert with_it.invoke(FIRST) == without.invoke(FIRST)


@pytest.mark.engine
def test_text_in_text_out(engine: RAGCacheEngine, counted: Counted, retriever: Retriever) -> None:
    llm = RAGCacheLLM(engine=engine, max_tokens=2)
    prompt = PromptTemplate.from_template("Read this:\n{context}\nQuestion: {question}\n")
    filled = {"context": retriever | format_docs, "question": RunnablePassthrough()} | prompt
    for question in (FIRST, SECOND):
        (filled | llm).invoke(question)
    assert (counted.documents, counted.hits) == (2, 1)


def invoke(chain: Runnable[str, str], questions: list[str]) -> None:
    for question in questions:
        chain.invoke(question)


def stream(chain: Runnable[str, str], questions: list[str]) -> None:
    for question in questions:
        assert list(chain.stream(question))


def batch(chain: Runnable[str, str], questions: list[str]) -> None:
    chain.batch(questions)


def ainvoke(chain: Runnable[str, str], questions: list[str]) -> None:
    async def ask() -> None:
        for question in questions:
            await chain.ainvoke(question)

    asyncio.run(ask())


def astream(chain: Runnable[str, str], questions: list[str]) -> None:
    async def ask() -> None:
        for question in questions:
            assert [chunk async for chunk in chain.astream(question)]

    asyncio.run(ask())


def abatch(chain: Runnable[str, str], questions: list[str]) -> None:
    asyncio.run(chain.abatch(questions))


def astream_events(chain: Runnable[str, str], questions: list[str]) -> None:
    async def ask() -> None:
        for question in questions:
            assert [event async for event in chain.astream_events(question)]

    asyncio.run(ask())


def from_fresh_threads(chain: Runnable[str, str], questions: list[str]) -> None:
    """Threads that inherit no context at all."""
    for question in questions:
        thread = threading.Thread(target=chain.invoke, args=(question,))
        thread.start()
        thread.join()


WAYS = [invoke, stream, batch, ainvoke, astream, abatch, astream_events, from_fresh_threads]


@pytest.mark.engine
@pytest.mark.parametrize("ask", WAYS)
def test_whichever_way_it_runs(
    engine: RAGCacheEngine,
    counted: Counted,
    retriever: Retriever,
    ask: Callable[[Runnable[str, str], list[str]], None],
) -> None:
    ask(chain_over(retriever, chat_on(engine)), [f"Who, on topic {n} ?" for n in range(3)])
    assert counted.documents == 3


@pytest.mark.engine
async def test_nothing_blocks_the_event_loop(
    engine: RAGCacheEngine, retriever: Retriever, no_blocking: BlockBuster
) -> None:
    before = Counted(engine)
    chain = chain_over(retriever, chat_on(engine))
    await asyncio.gather(*(chain.ainvoke(f"Who, on topic {n} ?") for n in range(4)))
    assert await asyncio.to_thread(lambda: before.documents) == 4


@pytest.mark.engine
def test_many_threads_and_loops_at_once(
    engine: RAGCacheEngine, counted: Counted, retriever: Retriever
) -> None:
    """Every prompt's document is found, whatever else is retrieved and asked meanwhile."""
    chain = chain_over(retriever, chat_on(engine, max_tokens=1))

    def ask(worker: int) -> None:
        questions = [f"Worker {worker}: what of topic {(worker + n) % TOPICS} ?" for n in range(6)]
        if worker % 2:
            invoke(chain, questions)
        else:
            abatch(chain, questions)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert counted.documents == 48


# What is marked, and what is not


@pytest.mark.engine
def test_documents_that_are_given_win(recorder: Recorder, retriever: Retriever) -> None:
    model = chat_on(recorder)
    (found,) = retriever.invoke(FIRST)
    part = found.page_content[100:400]
    model.invoke(f"{found.page_content} Why?", documents=[part])
    model.invoke([("user", [{"type": "text-plain", "text": "Cats purr."}, found.page_content])])
    model.invoke(f"{found.page_content} Who?", documents=["It is not there."])
    given, block, absent = recorder.prompts
    assert given.documents == (PromptDocument(part),)
    assert block.documents == (PromptDocument("Cats purr."),)
    assert absent.documents == ()


@pytest.mark.engine
def test_what_the_chain_rewrites_is_not_found(recorder: Recorder, retriever: Retriever) -> None:
    model = chat_on(recorder)
    (found,) = retriever.invoke(FIRST)
    text = found.page_content
    for rewritten in (text[:500], text.replace(" ", "\n"), text.lower()):
        model.invoke(f"{rewritten}\n\nWhy?")
    assert not any(prompt.documents for prompt in recorder.prompts)
    model.invoke(f"[1] {text}\n[2] {text}\n\nWhy?")
    assert [document.id for document in recorder.prompts[-1].documents] == ["t3", "t3"]


class Scripted(BaseRetriever):
    """Returns what it is told to, or raises it."""

    found: Any

    def _get_relevant_documents(self, query: str, **kwargs: Any) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.engine
def test_odd_documents_change_nothing(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    model = chat_on(recorder)
    text = TEXTS[0]
    unchecked: dict[str, Any] = {"page_content": [text], "id": {}}
    odd = Document.model_construct(**unchecked)
    for found in ([odd], [text, 3], None, text, iter([Document(text)]), []):
        assert Scripted(found=found).invoke("?") is found
        assert asyncio.run(Scripted(found=found).ainvoke("?")) is found
    with pytest.raises(KeyError, match="no such index"):
        Scripted(found=KeyError("no such index")).invoke("?")
    model.invoke(f"{text} Why?")
    assert not recorder.prompts[-1].documents
    assert not caplog.records
    Scripted(found=[odd, Document(text)]).invoke("?")
    model.invoke(f"{text} Why?")
    assert recorder.prompts[-1].documents == (PromptDocument(text),)
    assert not caplog.records


@pytest.mark.engine
def test_equal_ids_of_two_stores(recorder: Recorder) -> None:
    model = chat_on(recorder)
    stores = [Scripted(found=[Document(text, id="0")]) for text in TEXTS[:2]]
    model.invoke("\n\n".join(format_docs(store.invoke("?")) for store in stores))
    assert recorder.prompts[-1].documents == (
        PromptDocument(TEXTS[0], "0"),
        PromptDocument(TEXTS[1]),
    )


# The hook


def handlers_in(callbacks: Any = None) -> list[str]:
    manager = CallbackManager.configure(inheritable_callbacks=callbacks)
    return [type(handler).__name__ for handler in manager.handlers]


def test_it_is_installed_once(stub: StubServer, retriever: Retriever) -> None:
    for _ in range(3):
        ChatRAGCache().close()
        RAGCacheLLM().close()
    assert handlers_in() == ["_RetrievalHandler"]
    assert handlers_in([BaseCallbackHandler()]) == ["BaseCallbackHandler", "_RetrievalHandler"]
    child = CallbackManager.configure().on_chain_start({}, {}).get_child()
    assert [type(handler).__name__ for handler in child.handlers] == ["_RetrievalHandler"]
    assert handlers_in(child) == ["_RetrievalHandler"]


INSTALLERS = {
    "": 0,
    "ChatRAGCache(find_documents=False)": 0,
    "ChatRAGCache(base_url='http://127.0.0.1:1/v1', model='m')": 1,
    "ChatRAGCache(base_url='http://a/v1', model='m', find_documents=False)": 0,
    "ChatRAGCache()": 1,
    "RAGCacheLLM()": 1,
    "pickle.loads(stored)": 1,
    "(ChatRAGCache(), RAGCacheLLM())": 1,
}


def test_who_installs_it() -> None:
    """Each in a process of its own: once installed it stays."""
    script = f"""
        import pickle
        from langchain_core.callbacks import CallbackManager
        from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM

        stored = {pickle.dumps(ChatRAGCache())!r}
    """
    shown = "len(CallbackManager.configure().handlers)"
    assert shown_by_each(textwrap.dedent(script), INSTALLERS, shown) == INSTALLERS


def test_another_server_is_sent_plain_text(stub: StubServer, retriever: Retriever) -> None:
    with ChatRAGCache(base_url=stub.base_url, model="m") as model:
        chain_over(retriever, model).invoke(FIRST)
    (seen,) = stub.seen
    assert seen.body["messages"] == [
        {"role": "user", "content": f"{TEXTS[3]}\n\nQuestion: {FIRST}"}
    ]


class Tracked(Document):
    """A document that can be watched."""


def test_documents_are_not_kept_alive() -> None:
    ChatRAGCache().close()
    document = Tracked(page_content=TEXTS[0], metadata={"large": "x" * 1000})
    watched = weakref.ref(document)
    found = [document]
    del document
    assert Scripted(found=found).invoke("?") is found
    assert documents_in(TEXTS[0]) == [TEXTS[0]]
    del found
    gc.collect()
    assert watched() is None
