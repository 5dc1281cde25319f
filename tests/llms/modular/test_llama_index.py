"""LlamaIndex's class on the modular engine: one argument away from the exact one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import llama_index.core.instrumentation as instrument
import pytest
from blockbuster import BlockBuster
from llama_index.core import VectorStoreIndex
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode
from pydantic import BaseModel, Field

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_integrations.retrievers.cached.llama_index.retriever import ApproximateCacheRetriever
from ragcache_modular import ModularEngine
from tests.llms.retrieving import TEXTS, embedding
from tests.support.embeddings import LlamaIndexEmbeddings

from .engines import CONTEXT, DOCUMENTS, NAMES, QUESTION, made

ASKED = f"{CONTEXT}\n\n{QUESTION}"


class Raws(BaseEventHandler):
    """What models told of their answers."""

    seen: list[dict[str, Any]] = Field(default_factory=list)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        if isinstance(event, LLMChatEndEvent) and event.response is not None:
            self.seen.append(event.response.raw or {})


@pytest.fixture(scope="module")
def shared() -> Iterator[ModularEngine]:
    with made() as engine:
        yield engine


@pytest.fixture
def raws() -> Iterator[Raws]:
    dispatcher: Any = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
    handler = Raws()
    dispatcher.add_event_handler(handler)
    yield handler
    dispatcher.event_handlers.remove(handler)


def llm_on(engine: Any, **knobs: Any) -> RAGCacheLLM:
    return RAGCacheLLM(engine=engine, **{"max_tokens": 4, **knobs})


def test_a_query_engine_switches_by_one_argument(shared: ModularEngine, raws: Raws) -> None:
    nodes = [TextNode(text=text[:600], id_=f"t{n}") for n, text in enumerate(TEXTS)]
    index = VectorStoreIndex(nodes, embed_model=LlamaIndexEmbeddings(embedding))
    retriever = ApproximateCacheRetriever.from_index(index, k=2, tolerance=0.1)
    for name in NAMES:
        llm = llm_on(shared, strategy=name)
        RetrieverQueryEngine.from_args(retriever, llm=llm).query("What is said on topic 3 ?")
    assert [raw["strategy"] for raw in raws.seen] == list(NAMES)
    shares = {raw["strategy"]: raw["recomputed_share"] for raw in raws.seen}
    assert shares["prompt_cache"] == 0 < shares["epic"] < shares["cacheblend"] < shares["exact"]
    assert shares["exact"] == 1
    cached = [raw["usage"]["prompt_tokens_details"]["cached_tokens"] for raw in raws.seen]
    assert cached[0] > 200
    assert cached[-1] == 0


async def test_every_way_tells_the_same(shared: ModularEngine, no_blocking: BlockBuster) -> None:
    llm = llm_on(shared, strategy="cacheblend")
    first = await asyncio.to_thread(llm.complete, ASKED, documents=DOCUMENTS)
    messages = [ChatMessage(role="user", content=ASKED)]
    streamed = await asyncio.to_thread(
        lambda: list(llm.stream_complete(ASKED, documents=DOCUMENTS))
    )
    last = [one async for one in await llm.astream_chat(messages, documents=DOCUMENTS)][-1]
    for raw, text in (
        ((one := await llm.acomplete(ASKED, documents=DOCUMENTS)).raw, one.text),
        ((two := await llm.achat(messages, documents=DOCUMENTS)).raw, two.message.content),
        (streamed[-1].raw, streamed[-1].text),
        (last.raw, last.message.content),
    ):
        assert raw == first.raw
        assert text == first.text
    assert first.raw is not None
    assert first.raw["strategy"] == "cacheblend"
    assert 0 < first.raw["recomputed_share"] < 1
    assert all("strategy" not in (one.raw or {}) for one in streamed[:-1])


def test_what_it_says_of_itself(shared: ModularEngine) -> None:
    metadata = llm_on(shared).metadata
    assert metadata.is_chat_model
    assert metadata.context_window == shared.max_model_len


class Answer(BaseModel):
    """What a grammar would be needed for."""

    text: str


def test_grammars_are_refused(shared: ModularEngine) -> None:
    with pytest.raises(ConfigurationError, match="need a grammar"):
        llm_on(shared).structured_predict(Answer, PromptTemplate("Say something."))
