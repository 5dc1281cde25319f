"""Synthesis as LlamaIndex response synthesizers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LogProb
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.llms import MockLLM
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode

from ragcache_integrations.adaptive import Synthesised
from ragcache_integrations.chains.synthesis.llama_index import (
    SYNTHESIS_METADATA,
    BaseSynthesis,
    MapReduceSynthesis,
    MapRerankSynthesis,
    StuffSynthesis,
)
from ragcache_integrations.core.generation import Usage
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from tests.chains.scripted import PlainNodes, nodes

QUESTION = "what do they say"
CALLS = {"stuff": 1, "map_reduce": 4, "map_rerank": 3}
every_kind = pytest.mark.parametrize(
    "kind", [StuffSynthesis, MapReduceSynthesis, MapRerankSynthesis]
)


def ask(kind: Callable[..., BaseSynthesis], llm: Any) -> list[tuple[str, Any]]:
    """Text and metadata of the response, in every way there is."""

    async def awaited(streaming: bool) -> tuple[str, Any]:
        response = await kind(llm=llm, streaming=streaming).asynthesize(QUESTION, nodes("abc"))
        if isinstance(response, AsyncStreamingResponse):
            text = "".join([piece async for piece in response.response_gen])
            return text, response.metadata
        return str(response), response.metadata

    told = []
    for streaming in (False, True):
        response = kind(llm=llm, streaming=streaming).synthesize(QUESTION, nodes("abc"))
        assert isinstance(response, StreamingResponse) == streaming
        text = (
            "".join(response.response_gen)
            if isinstance(response, StreamingResponse)
            else str(response)
        )
        told += [(text, response.metadata), asyncio.run(awaited(streaming))]
    return told


@every_kind
@pytest.mark.parametrize("chat", [False, True])
def test_with_a_mock_llm(kind: type[BaseSynthesis], chat: bool) -> None:
    for text, metadata in ask(kind, MockLLM(max_tokens=3, is_chat_model=chat)):
        assert text.split() == ["text"] * 3
        result = metadata[SYNTHESIS_METADATA]
        assert isinstance(result, Synthesised)
        assert result.calls == CALLS[kind.method]
        assert {citation.id for citation in result.citations} <= {"a", "b", "c"}
        assert result.citations
        assert {"a", "b", "c"} <= set(metadata)


class Sure(MockLLM):
    """Surer of one node than of the others."""

    logprobs: bool | None = None
    seen: list[dict[str, Any]] = []  # noqa: RUF012 - a field, which pydantic copies

    @llm_chat_callback()
    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        self.seen.append(kwargs)
        sure = "Document b." in messages[-1].content
        return ChatResponse(
            message=ChatMessage(role="assistant", content="b" if sure else "x"),
            logprobs=[[LogProb(token="b", logprob=-0.1 if sure else -2.0)]],
            raw={"usage": {"prompt_tokens": 10, "completion_tokens": 1}},
        )


def test_map_rerank_takes_the_surest_by_the_llms_logprobs() -> None:
    llm = Sure(max_tokens=None, is_chat_model=True)
    response = MapRerankSynthesis(llm=llm).synthesize(QUESTION, nodes("abc"))
    assert str(response) == "b"
    result = (response.metadata or {})[SYNTHESIS_METADATA]
    assert [citation.id for citation in result.citations] == ["b"]
    assert (result.confidence, result.confidence_kind) == (-0.1, "logprob")
    assert result.usage == Usage(30, 3, 0)
    assert llm.seen == [{"logprobs": True}] * 3


@pytest.mark.engine
@every_kind
def test_with_our_llm(engine: RAGCacheEngine, kind: type[BaseSynthesis]) -> None:
    llm = RAGCacheLLM(engine=engine, max_tokens=6, find_documents=False)
    short: Any = {"intermediate_length": 6} if kind is MapReduceSynthesis else {}
    with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
        told = ask(partial(kind, **short), llm)
    assert len({text.strip() for text, _ in told}) == 1
    for _, metadata in told:
        result = metadata[SYNTHESIS_METADATA]
        assert result.calls == CALLS[kind.method]
        assert result.usage is not None
        assert result.confidence_kind == "logprob"


@pytest.mark.engine
def test_our_llm_is_told_the_nodes(engine: RAGCacheEngine) -> None:
    engine.reset_cache()
    llm = RAGCacheLLM(engine=engine, max_tokens=2, find_documents=False)
    MapRerankSynthesis(llm=llm).synthesize(QUESTION, nodes("def"))
    tree = engine.tree()
    assert tree is not None
    assert {"d", "e", "f"} <= {node.name for node in tree.nodes()}


@pytest.mark.parametrize("kind", [StuffSynthesis, MapReduceSynthesis])
def test_nodes_of_one_text_keep_their_ids(kind: type[BaseSynthesis]) -> None:
    twins = [
        NodeWithScore(node=TextNode(id_=name, text=text))
        for name, text in (("a", "alike"), ("b", "other"), ("c", "alike"))
    ]
    synthesis = kind(llm=MockLLM(max_tokens=3))
    answers = [
        synthesis.synthesize(QUESTION, twins),
        asyncio.run(synthesis.asynthesize(QUESTION, twins)),
    ]
    for response in answers:
        assert response.metadata is not None
        result = response.metadata[SYNTHESIS_METADATA]
        assert [citation.id for citation in result.citations] == ["a", "b", "c"]


def test_in_a_query_engine() -> None:
    engine = RetrieverQueryEngine(
        retriever=PlainNodes("abc"),
        response_synthesizer=StuffSynthesis(llm=MockLLM(max_tokens=2)),
    )
    response: Any = engine.query(QUESTION)
    assert str(response) == "text text"
    assert [node.node_id for node in response.source_nodes] == ["a", "b", "c"]


# Prompts


@every_kind
def test_prompts_can_be_read_and_changed(kind: type[BaseSynthesis]) -> None:
    synthesizer = kind(llm=MockLLM())  # says what it is asked
    names = set(synthesizer.get_prompts())
    assert "system" in names
    for name in names - {"system"}:
        assert "{query_str}" in synthesizer.get_prompts()[name].get_template()
        synthesizer.update_prompts({name: PromptTemplate(f"{name} of {{query_str}}")})
    synthesizer.update_prompts({"system": PromptTemplate("Be brief.")})
    response = str(synthesizer.synthesize(QUESTION, nodes("a")))
    assert "Be brief." in response
    assert f"of {QUESTION}" in response


def test_a_prompt_that_does_not_exist() -> None:
    synthesizer = StuffSynthesis(llm=MockLLM())
    with pytest.raises(ConfigurationError, match="unknown prompt 'reduce': allowed are answer,"):
        synthesizer.update_prompts({"reduce": PromptTemplate("{query_str}")})
    with pytest.raises(ConfigurationError, match="answer must hold"):
        synthesizer.update_prompts({"answer": PromptTemplate("Answer!")})


# Edges


@every_kind
def test_without_nodes_nobody_is_asked(kind: type[BaseSynthesis]) -> None:
    synthesizer = kind(llm=MockLLM(max_tokens=3), empty_response="nothing there")
    assert str(synthesizer.synthesize(QUESTION, [])) == "nothing there"
    assert str(asyncio.run(synthesizer.asynthesize(QUESTION, []))) == "nothing there"
    assert synthesizer.get_response(QUESTION, []) == "nothing there"


def test_texts_without_nodes() -> None:
    synthesizer = MapReduceSynthesis(llm=MockLLM(max_tokens=2), intermediate_length=5)
    assert synthesizer.get_response(QUESTION, ["one", "two"]) == "text text"


def test_long_nodes_are_cut_to_the_window() -> None:
    synthesizer = StuffSynthesis(llm=MockLLM(max_tokens=8), context_window=200)
    response = synthesizer.synthesize(QUESTION, nodes("abc"))
    assert (response.metadata or {})[SYNTHESIS_METADATA].shortened == (0,)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_chunk": 3}, "unknown argument 'num_chunk': allowed are .*num_chunks"),
        ({"intermediate_length": 30}, "unknown argument 'intermediate_length'"),
        ({"prompts": "Answer!"}, "prompts must be SynthesisPrompts"),
    ],
)
def test_wrong_knobs(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StuffSynthesis(llm=MockLLM(), **knobs)


def test_an_llm_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="llm must be one of LlamaIndex's LLMs, got str"):
        StuffSynthesis(llm="gpt")  # type: ignore[arg-type]  # what users may pass
