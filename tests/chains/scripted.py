"""Searches whose stages a test writes down, and a look at what is left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexBaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import Field

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.resources import load_passages
from ragcache_integrations.retrievers.retrieval import DocumentStage

_PASSAGES = [passage.text for passage in load_passages()]

# Several blocks of the KV cache each.
TEXTS = {
    name: f"Document {name}. {' '.join(_PASSAGES[4 * number : 4 * number + 4])}"[:1200].strip()
    for number, name in enumerate("abcdefgh")
}
DOCUMENTS = {name: Document(text, id=name) for name, text in TEXTS.items()}
NODES = {name: TextNode(id_=name, text=text) for name, text in TEXTS.items()}


def documents(names: str) -> list[Document]:
    return [DOCUMENTS[name] for name in names]


def nodes(names: str) -> list[NodeWithScore]:
    return [NodeWithScore(node=NODES[name], score=1.0) for name in names]


def stages_of(plan: Sequence[str], found: Callable[[str], Any], wait: float) -> Generator[Any]:
    """Stages of a few letters each; ``!`` raises. Waiting stands for searching."""
    for number, names in enumerate(plan, 1):
        if wait:
            time.sleep(wait)
        if names == "!":
            msg = "the search broke"
            raise ConnectionError(msg)
        final = number == len(plan)
        yield DocumentStage(tuple(found(names)), number, number * wait, final=final)


async def astages_of(
    plan: Sequence[str], found: Callable[[str], Any], wait: float
) -> AsyncGenerator[Any]:
    search = stages_of(plan, found, 0.0)
    for stage in search:
        await asyncio.sleep(wait)
        yield stage


class Scripted(BaseRetriever):
    """A staged retriever of LangChain."""

    plan: list[str]
    wait: float = 0.2
    intervals: list[float | None] = Field(default_factory=list)

    def stages(
        self, query: str, config: Any = None, *, interval: float | None = None
    ) -> Generator[Any]:
        self.intervals.append(interval)
        return stages_of(self.plan, documents, self.wait)

    def astages(
        self, query: str, config: Any = None, *, interval: float | None = None
    ) -> AsyncGenerator[Any]:
        self.intervals.append(interval)
        return astages_of(self.plan, documents, self.wait)

    def _get_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
        return documents(self.plan[-1])

    async def _aget_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
        return documents(self.plan[-1])


class Plain(BaseRetriever):
    """An ordinary one, which takes its time."""

    names: str
    wait: float = 0.0
    error: bool = False

    def _get_relevant_documents(self, query: str, **kwargs: Any) -> list[Document]:
        time.sleep(self.wait)
        if self.error:
            msg = "the search broke"
            raise ConnectionError(msg)
        return documents(self.names)


class ScriptedNodes(LlamaIndexBaseRetriever):
    """A staged retriever of LlamaIndex."""

    def __init__(self, plan: list[str], wait: float = 0.2) -> None:
        self.plan = plan
        self.wait = wait
        super().__init__()

    def stages(self, query: Any, *, interval: float | None = None) -> Generator[Any]:
        return stages_of(self.plan, nodes, self.wait)

    def astages(self, query: Any, *, interval: float | None = None) -> AsyncGenerator[Any]:
        return astages_of(self.plan, nodes, self.wait)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return nodes(self.plan[-1])


class PlainNodes(LlamaIndexBaseRetriever):
    """An ordinary one, which takes its time."""

    def __init__(self, names: str, wait: float = 0.0) -> None:
        self.names = names
        self.wait = wait
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        time.sleep(self.wait)
        return nodes(self.names)


def check_idle(engine: RAGCacheEngine) -> None:
    """Nothing that was begun is still under way, nor are its blocks held."""
    deadline = time.monotonic() + 20
    while True:
        load = engine.load()
        if load.running_requests == load.waiting_requests == 0:
            break
        assert time.monotonic() < deadline, load
        time.sleep(0.02)
    assert load.free_kv_tokens == load.total_kv_tokens


def events(report: Any) -> list[str]:
    return [event.what for event in report.events]
