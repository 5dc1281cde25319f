"""LangChain's side: InMemoryVectorStore and FakeListChatModel, and ours around the same store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.vectorstores import InMemoryVectorStore

from parts.overhead.backends import ANSWER, InstantBackend
from parts.overhead.contests import Contest
from parts.overhead.subtraction import Stopwatch
from ragcache_integrations.langchain import ApproximateCacheRetriever, ChatRAGCache

__all__ = ["llms", "retrievers"]


class _Known(Embeddings):
    """Gives embeddings that are known beforehand."""

    def __init__(self, vectors: Mapping[str, list[float]], stopwatch: Stopwatch) -> None:
        self._vectors = vectors
        # Timed on the object itself, so that both sides call the same class.
        self.embed_query = stopwatch.timed(self.embed_query)  # type: ignore[method-assign]
        self.aembed_query = stopwatch.atimed(self.aembed_query)  # type: ignore[method-assign,assignment]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self._vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self._vectors[text]

    async def aembed_query(self, text: str) -> list[float]:
        return self._vectors[text]


def retrievers(
    vectors: Mapping[str, list[float]],
    texts: Sequence[str],
    *,
    rerank_factor: int,
    asynchronous: bool,
) -> Contest:
    """Return ours and the framework's own retriever of the same store.

    Args:
        vectors: Embeddings of questions and of texts.
        texts: What the store holds.
        rerank_factor: How many times as many documents of a miss are kept for re-ranking.
        asynchronous: Ask by coroutines.
    """
    stopwatch = Stopwatch()
    store = InMemoryVectorStore(_Known(vectors, stopwatch))
    store.add_documents(
        [
            Document(text, id=f"d{number}", metadata={"source": f"{number}.md", "page": number})
            for number, text in enumerate(texts)
        ]
    )
    # What every search of this store ends in, by question or by vector, in a coroutine or not.
    search = stopwatch.timed(store._similarity_search_with_score_by_vector)  # noqa: SLF001 - see above
    # In its place, on this object alone.
    store._similarity_search_with_score_by_vector = search  # type: ignore[method-assign]  # noqa: SLF001
    plain = store.as_retriever()
    ours = ApproximateCacheRetriever.from_vectorstore(store, rerank_factor=rerank_factor)
    if asynchronous:
        return Contest(plain.ainvoke, ours.ainvoke, stopwatch)
    return Contest(plain.invoke, ours.invoke, stopwatch)


def llms(*, asynchronous: bool) -> Contest:
    """Return our chat model over a backend that answers at once, and a fake model."""
    plain = FakeListChatModel(responses=[ANSWER])
    ours = ChatRAGCache(engine=InstantBackend())
    if asynchronous:
        return Contest(
            lambda text: plain.ainvoke([HumanMessage(text)]),
            lambda text: ours.ainvoke([HumanMessage(text)]),
            Stopwatch(),
        )
    return Contest(
        lambda text: plain.invoke([HumanMessage(text)]),
        lambda text: ours.invoke([HumanMessage(text)]),
        Stopwatch(),
    )
