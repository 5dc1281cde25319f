"""Ways to ask a cache, in both frameworks: every attack goes through all of them.

Each answer and each document names the question that it was made for, so that what belongs to
another question can be told from what is right.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import BaseRetriever as LlamaIndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations import langchain, llama_index

DATA = Path(__file__).parent / "data"
LANGCHAIN_EMBEDDINGS = langchain.MiniLMEmbeddings()
LLAMA_INDEX_EMBEDDINGS = llama_index.MiniLMEmbeddings()
LANGUAGES = ("en", "de", "fr", "es", "it", "pt")

Ask = Callable[[str], str]


class Pair(NamedTuple):
    """Two questions, and why they differ or are the same."""

    one: str
    other: str
    why: str = ""


def minimal_pairs(language: str | None = None) -> list[Pair]:
    """Return pairs of questions with different right answers, of one language or of all six."""
    rows = json.loads((DATA / "minimal_pairs.json").read_text(encoding="utf-8"))
    return [
        Pair(row["one"], row["other"], row["why"])
        for row in rows
        if language in (None, row["language"])
    ]


def paraphrases() -> list[Pair]:
    """Return pairs of English questions with the same right answer that were served before."""
    data = json.loads((DATA / "paraphrases.json").read_text(encoding="utf-8"))
    return [Pair(row["one"], row["other"]) for row in data["pairs"]]


def check_refusal(error: ValueError) -> None:
    """Assert that a cache refuses in words what it can't know to be right."""
    assert len(str(error).split()) > 4, "a refusal is a sentence"


def right_answer(question: str) -> str:
    """Return what the chain and the engine answer."""
    return f"answer to {question}"


class _OnePage(LlamaIndexRetriever):
    """Finds one page for every question."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="the page", id_="1"), score=1.0)]


class _Echo(BaseSynthesizer):
    """Answers with the question, at once or in pieces."""

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None: ...

    def get_response(self, query_str: str, text_chunks: Sequence[str], **_: Any) -> Any:
        if self._streaming:
            return (piece for piece in ("answer to ", query_str))
        return right_answer(query_str)

    async def aget_response(self, query_str: str, text_chunks: Sequence[str], **_: Any) -> Any:
        if not self._streaming:
            return right_answer(query_str)

        async def pieces() -> AsyncIterator[str]:
            for piece in ("answer to ", query_str):
                yield piece

        return pieces()


def langchain_cache(**knobs: Any) -> langchain.AnswerCache:
    """Make a cache of answers in front of one page for all questions, in LangChain."""

    def answer(inputs: dict[str, Any]) -> Iterator[str]:
        yield "answer to "
        yield inputs["input"]

    async def aanswer(inputs: dict[str, Any]) -> AsyncIterator[str]:
        for piece in answer(inputs):
            yield piece

    knobs = {"embeddings": LANGCHAIN_EMBEDDINGS, **knobs}
    return langchain.AnswerCache(
        chain=RunnableLambda(answer, afunc=aanswer),
        retriever=RunnableLambda(lambda question: [Document("the page", id="1")]),
        documents_key="context",
        **knobs,
    )


def llama_index_cache(*, streaming: bool = False, **knobs: Any) -> llama_index.AnswerCache:
    """Make a cache of answers in front of one page for all questions, in LlamaIndex."""
    engine = RetrieverQueryEngine(
        retriever=_OnePage(),
        response_synthesizer=_Echo(llm=MockLLM(), streaming=streaming),
    )
    return llama_index.AnswerCache(engine, **{"embed_model": LLAMA_INDEX_EMBEDDINGS, **knobs})


def _invoke(**knobs: Any) -> Ask:
    return langchain_cache(**knobs).invoke


def _ainvoke(**knobs: Any) -> Ask:
    cached = langchain_cache(**knobs)
    return lambda question: asyncio.run(cached.ainvoke(question))


def _stream(**knobs: Any) -> Ask:
    cached = langchain_cache(**knobs)
    return lambda question: "".join(cached.stream(question))


def _astream(**knobs: Any) -> Ask:
    cached = langchain_cache(**knobs)

    async def ask(question: str) -> str:
        return "".join([piece async for piece in cached.astream(question)])

    return lambda question: asyncio.run(ask(question))


def _query(**knobs: Any) -> Ask:
    cached = llama_index_cache(**knobs)
    return lambda question: str(cached.query(question))


def _aquery(**knobs: Any) -> Ask:
    cached = llama_index_cache(**knobs)

    async def ask(question: str) -> str:
        return str(await cached.aquery(question))

    return lambda question: asyncio.run(ask(question))


def _query_stream(**knobs: Any) -> Ask:
    cached = llama_index_cache(streaming=True, **knobs)
    return lambda question: "".join(cast("StreamingResponse", cached.query(question)).response_gen)


def _aquery_stream(**knobs: Any) -> Ask:
    cached = llama_index_cache(streaming=True, **knobs)

    async def ask(question: str) -> str:
        response = cast("AsyncStreamingResponse", await cached.aquery(question))
        return "".join([piece async for piece in response.async_response_gen()])

    return lambda question: asyncio.run(ask(question))


ANSWER_FACES: dict[str, Callable[..., Ask]] = {
    "langchain invoke": _invoke,
    "langchain ainvoke": _ainvoke,
    "langchain stream": _stream,
    "langchain astream": _astream,
    "llama_index query": _query,
    "llama_index aquery": _aquery,
    "llama_index stream": _query_stream,
    "llama_index astream": _aquery_stream,
}
"""Make a cache with knobs in front of one page for all questions; return how to ask it."""


class _LangChainWords(LangChainRetriever):
    """Finds another document for every question, as a search for exact words does."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(f"about {query}", id=query)]


class _LlamaIndexWords(LlamaIndexRetriever):
    """Finds another node for every question, as a search for exact words does."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        question = query_bundle.query_str
        return [NodeWithScore(node=TextNode(text=f"about {question}", id_=question), score=1.0)]


def langchain_retriever(**knobs: Any) -> langchain.ApproximateCacheRetriever:
    """Make a query cache in front of a document for every question, in LangChain."""
    return langchain.ApproximateCacheRetriever.from_retriever(
        _LangChainWords(), embeddings=LANGCHAIN_EMBEDDINGS, **knobs
    )


def llama_index_retriever(**knobs: Any) -> llama_index.ApproximateCacheRetriever:
    """Make a query cache in front of a document for every question, in LlamaIndex."""
    return llama_index.ApproximateCacheRetriever.from_retriever(
        _LlamaIndexWords(), embed_model=LLAMA_INDEX_EMBEDDINGS, **knobs
    )


def _retriever_invoke(**knobs: Any) -> Ask:
    cached = langchain_retriever(**knobs)
    return lambda question: str(cached.invoke(question)[0].id)


def _retriever_ainvoke(**knobs: Any) -> Ask:
    cached = langchain_retriever(**knobs)
    return lambda question: str(asyncio.run(cached.ainvoke(question))[0].id)


def _retrieve(**knobs: Any) -> Ask:
    cached = llama_index_retriever(**knobs)
    return lambda question: cached.retrieve(question)[0].node.node_id


def _aretrieve(**knobs: Any) -> Ask:
    cached = llama_index_retriever(**knobs)

    async def ask(question: str) -> str:
        return (await cached.aretrieve(question))[0].node.node_id

    return lambda question: asyncio.run(ask(question))


RETRIEVER_FACES: dict[str, Callable[..., Ask]] = {
    "langchain invoke": _retriever_invoke,
    "langchain ainvoke": _retriever_ainvoke,
    "llama_index retrieve": _retrieve,
    "llama_index aretrieve": _aretrieve,
}
"""Make a query cache with knobs in front of a search that has a document for every question.

Asked a question, it returns the question whose document it found.
"""


def answered_for_another(
    make: Callable[..., Ask], pairs: Sequence[Pair], **knobs: Any
) -> list[Pair]:
    """Return the pairs whose second question got the first one's answer, each in a new cache."""
    served = []
    for pair in pairs:
        ask = make(**knobs)
        first, second = ask(pair.one), ask(pair.other)
        assert first == right_answer(pair.one)
        assert second in (first, right_answer(pair.other))
        if second == first:
            served.append(pair)
    return served


def found_for_another(make: Callable[..., Ask], pairs: Sequence[Pair], **knobs: Any) -> list[Pair]:
    """Return the pairs whose second question got the first one's document, each in a new cache."""
    served = []
    for pair in pairs:
        ask = make(**knobs)
        first, second = ask(pair.one), ask(pair.other)
        assert first == pair.one
        assert second in (pair.one, pair.other)
        if second == first:
            served.append(pair)
    return served
