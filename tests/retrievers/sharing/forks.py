"""Forks while retrievers answer: ``python -m tests.retrievers.sharing.forks SCENE``."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any, cast

import faiss
import numpy as np

from ragcache_integrations.query_cache.cache import QueryCache
from ragcache_integrations.query_cache.redis.cache import RedisServer
from ragcache_integrations.query_cache.types import Candidate
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from tests.query_cache.redis.servers import redis_server
from tests.retrievers.cached.langchain.stores import Words, faiss_store, in_memory_store
from tests.retrievers.cached.llama_index.indexes import faiss_index
from tests.support.forking import Hammer, in_child

CHILDREN = 15


def fork_while(retriever: Any, ask: Any) -> None:
    """Fork again and again while two threads ask; every child asks, both ways."""
    ask("warm")
    with Hammer(lambda n: ask(f"text {n % 50}"), lambda n: ask(f"text {n % 30}~{n}")):
        for number in range(CHILDREN):

            def work(number: int = number) -> None:
                assert ask("text 1")
                assert ask(f"child {number}")
                assert asyncio.run(aask(retriever, f"async {number}"))
                assert retriever.stats()

            in_child(work)


async def aask(retriever: Any, question: str) -> Any:
    if isinstance(retriever, LlamaIndexRetriever):
        return await retriever.aretrieve(question)
    return await retriever.ainvoke(question)


def langchain() -> None:
    retriever = ApproximateCacheRetriever(vectorstore=in_memory_store(), tolerance=0.6)
    fork_while(retriever, retriever.invoke)


def with_faiss() -> None:
    retriever = ApproximateCacheRetriever(vectorstore=faiss_store(), tolerance=0.6)
    fork_while(retriever, retriever.invoke)
    in_child(lambda: same(faiss.omp_get_max_threads(), 1))


def llama_index() -> None:
    retriever = LlamaIndexRetriever(faiss_index(), tolerance=0.6)
    fork_while(retriever, retriever.retrieve)


def redis() -> None:
    with redis_server() as real:
        server = RedisServer(real.url, timeout=2.0, connect_timeout=2.0, change_timeout=5.0)
        retriever = ApproximateCacheRetriever(
            vectorstore=faiss_store(), tolerance=0.6, cache=server, tag="forks"
        )
        fork_while(retriever, retriever.invoke)
        retriever.invoke("text 1")
        link: Any = cast("Any", retriever)._core.caches.current._channel.link
        theirs = {id(client) for client in link._clients.values()}

        def work() -> None:
            assert not link._clients
            hits = retriever.stats().hits
            retriever.invoke("text 1")
            same(retriever.stats().hits, hits + 1)  # what is shared is used
            assert not theirs & {id(client) for client in link._clients.values()}

        in_child(work)


def flights() -> None:
    """The parent is in the middle of a search, and of an embedding, that ends after the child."""
    begun, go_on, in_parent = threading.Event(), threading.Event(), threading.get_ident()

    class Slow(Words):
        def embed_query(self, text: str) -> list[float]:
            if threading.get_ident() != in_parent:
                begun.set()
                go_on.wait()
            return super().embed_query(text)

    slow = in_memory_store()
    slow.embedding = Slow()
    retriever = ApproximateCacheRetriever(vectorstore=slow, tolerance=0.6)
    asking = threading.Thread(target=retriever.invoke, args=("text 1",))
    asking.start()
    begun.wait()
    try:
        in_child(lambda: retriever.invoke("text 1"))
    finally:
        go_on.set()
        asking.join()


def cache() -> None:
    rows = np.eye(64, dtype=np.float32)
    found: QueryCache[None] = QueryCache(
        64, 40, 0.5, metric="l2", vectors=lambda ids: rows[: len(ids)]
    )

    def insert(number: int) -> None:
        found.insert(rows[number % 64], [Candidate(f"{number % 90}", None) for _ in range(1)])

    def change(number: int) -> None:
        found.documents_removed([f"{number % 90}"])

    def work() -> None:
        for number in range(64):
            insert(number)
            hit = found.lookup(rows[number], 1)
            assert hit is not None
            same(hit.candidates[0].id, str(number))
        assert found.stats().entries <= 40

    with Hammer(insert, change, lambda n: found.lookup(rows[n % 64], 1)):
        for _ in range(CHILDREN):
            in_child(work)


def change() -> None:
    """A thread of the parent has changed the store, and not yet said so."""
    begun, go_on = threading.Event(), threading.Event()
    store = in_memory_store()

    class Late(type(store)):  # type: ignore[misc]
        def delete(self, ids: Any = None, **kwargs: Any) -> None:
            super().delete(ids, **kwargs)
            begun.set()
            go_on.wait()

    store.__class__ = Late
    retriever = ApproximateCacheRetriever(vectorstore=store, tolerance=0.6)
    (first, *_) = retriever.invoke("text 1")
    deleting = threading.Thread(target=store.delete, args=([first.id],))
    deleting.start()
    begun.wait()

    def work() -> None:
        assert first.id not in [document.id for document in retriever.invoke("text 1")]

    try:
        in_child(work)
    finally:
        go_on.set()
        deleting.join()


def same(one: object, other: object) -> None:
    assert one == other, (one, other)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.stdout.write("done\n")
