"""One engine and one retriever under many threads and tasks: nothing lost, nothing mixed up."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import psutil
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.langchain import ApproximateCacheRetriever, ChatRAGCache
from tests.support.embeddings import LangChainEmbeddings

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

TOPICS = 50
THREADS = 16
TASKS = 200
REQUESTS = 2000
GROWTH_MIB = 150


def embedding(text: str) -> list[float]:
    """The direction of the text's topic."""
    topic = int(text.split("topic ", 1)[1].split(maxsplit=1)[0].rstrip("?:"))
    return [float(number == topic) for number in range(TOPICS)]


@pytest.fixture
def store() -> FAISS:
    texts = [f"topic {number}: its one secret word is w{number}." for number in range(TOPICS)]
    embeddings = LangChainEmbeddings(embedding)
    index = faiss.IndexFlatL2(TOPICS)
    index.add(np.array(embeddings.embed_documents(texts), dtype=np.float32))
    documents = {str(n): Document(text, id=str(n)) for n, text in enumerate(texts)}
    return FAISS(embeddings, index, InMemoryDocstore(documents), {n: str(n) for n in range(TOPICS)})


@pytest.fixture
def retriever(store: FAISS) -> ApproximateCacheRetriever:
    return ApproximateCacheRetriever.from_vectorstore(store, k=2, tolerance=0.1, guard=False)


@pytest.fixture
def chat(engine: RAGCacheEngine) -> Iterator[ChatRAGCache]:
    with ChatRAGCache(engine=engine, max_tokens=24) as model:
        yield model


def resident_mib(engine: RAGCacheEngine) -> float:
    gc.collect()
    both = (psutil.Process(), psutil.Process(engine.pid))
    return sum(process.memory_info().rss for process in both) / 2**20


class Load:
    """Asks numbered requests, each of which has one answer that the grammar allows."""

    def __init__(self, engine: RAGCacheEngine, retriever: Runnable[str, Any], chat: Any) -> None:
        self.engine = engine
        self.retriever = retriever
        self.chat = chat
        self.prompt = ChatPromptTemplate.from_template("{context}\n\n{question}")
        self.served: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.errors: list[BaseException] = []
        self.memory: list[float] = []

    def question(self, number: int) -> str:
        return f"request {number} on topic {number % TOPICS} ?"

    def chain(self, number: int) -> Runnable[str, Any]:
        def fill(documents: list[Document]) -> dict[str, str]:
            return {"context": documents[0].page_content, "question": f"answer {number}"}

        model: Runnable[Any, Any] = self.chat.bind(choice=(f"answer {number}",))
        return self.retriever | fill | self.prompt | model

    def check(self, number: int, message: Any) -> None:
        self.served[number] += 1
        if message.content != f"answer {number}":
            self.wrong.append(f"{number}: {message!r}")
        if len(self.served) in {REQUESTS // 4, REQUESTS}:
            self.memory.append(resident_mib(self.engine))

    def ask(self, numbers: range) -> None:
        try:
            for number in numbers:
                self.check(number, self.chain(number).invoke(self.question(number)))
        except BaseException as error:
            self.errors.append(error)

    async def aask(self, numbers: range) -> None:
        for number in numbers:
            self.check(number, await self.chain(number).ainvoke(self.question(number)))

    async def ask_in_tasks(self, count: int) -> None:
        tasks = [self.aask(range(first, count, TASKS)) for first in range(TASKS)]
        await asyncio.gather(*tasks)


def test_2000_requests_from_16_threads_and_200_tasks(
    engine: RAGCacheEngine, chat: ChatRAGCache, retriever: ApproximateCacheRetriever
) -> None:
    load = Load(engine, retriever, chat)
    half = REQUESTS // 2
    threads = [
        threading.Thread(target=load.ask, args=(range(half + first, REQUESTS, THREADS),))
        for first in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    asyncio.run(load.ask_in_tasks(half))
    for thread in threads:
        thread.join()

    assert not load.errors
    assert not load.wrong
    assert load.served == Counter(range(REQUESTS))
    stats = retriever.stats()
    assert stats.requests == REQUESTS
    assert stats.store_calls <= TOPICS  # each topic once, however many asked at the same time
    assert not engine._process.exchange._pending
    assert engine.load().running_requests == 0
    assert load.memory[-1] - load.memory[0] < GROWTH_MIB
