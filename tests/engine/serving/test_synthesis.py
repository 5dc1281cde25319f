"""Synthesis and per-query configuration over a server, which counts what it was asked."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.schema import NodeWithScore, TextNode

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.adaptive import Synthesised
from ragcache_integrations.engine import RAGCacheEngine

from .starting import MODEL, Server

pytestmark = pytest.mark.engine

QUESTION = "Who purrs?"
TEXTS = ["Cats purr. " * 9, "Dogs bark. " * 7, "Cows moo. " * 8]
DOCUMENTS = [Document(text, id=f"s{number}") for number, text in enumerate(TEXTS)]
NODES = [
    NodeWithScore(node=TextNode(text=text, id_=f"s{number}")) for number, text in enumerate(TEXTS)
]
CALLS = {"stuff": 1, "map_reduce": 4, "map_rerank": 3}
KNOBS: dict[str, dict[str, Any]] = {"map_reduce": {"intermediate_length": 6}}
COUNTED = ("vllm:request_success_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")

every_method = pytest.mark.parametrize("method", list(CALLS))


def with_langchain(model: Any, method: str) -> tuple[str, Synthesised]:
    kinds = {
        "stuff": langchain.StuffSynthesis,
        "map_reduce": langchain.MapReduceSynthesis,
        "map_rerank": langchain.MapRerankSynthesis,
    }
    chain = kinds[method](llm=model, **KNOBS.get(method, {}))
    output = chain.invoke({"input_documents": DOCUMENTS, "question": QUESTION})
    streamed = "".join(
        piece.get("output_text", "")
        for piece in chain.stream({"input_documents": DOCUMENTS, "question": QUESTION})
    )
    assert streamed.strip() == output["output_text"].strip()
    result = output["synthesis"]
    assert isinstance(result, Synthesised)
    return output["output_text"], result


def with_llama_index(llm: Any, method: str) -> tuple[str, Synthesised]:
    kinds = {
        "stuff": llama_index.StuffSynthesis,
        "map_reduce": llama_index.MapReduceSynthesis,
        "map_rerank": llama_index.MapRerankSynthesis,
    }
    plain, streaming = (
        kinds[method](llm=llm, streaming=streaming, **KNOBS.get(method, {}))
        for streaming in (False, True)
    )
    response = plain.synthesize(QUESTION, NODES)
    streamed: Any = streaming.synthesize(QUESTION, NODES)
    assert "".join(streamed.response_gen).strip() == str(response).strip()
    assert response.metadata is not None
    result = response.metadata["synthesis"]
    assert isinstance(result, Synthesised)
    return str(response), result


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (with_langchain, langchain.ChatRAGCache),
        (with_langchain, langchain.RAGCacheLLM),
        (with_llama_index, llama_index.RAGCacheLLM),
    ],
    ids=["langchain chat", "langchain text", "llama_index"],
)
@every_method
def test_calls_and_tokens_are_the_servers(
    server: Server, engine: RAGCacheEngine, run: Any, kind: Any, method: str
) -> None:
    before = server.metrics()
    with kind(base_url=server.base_url, model=MODEL, max_tokens=6) as there:
        text, result = run(there, method)
    assert result.calls == CALLS[method]
    assert result.usage is not None
    # Each was asked twice, plain and as a stream.
    expected = (
        2 * result.calls,
        2 * result.usage.prompt_tokens,
        2 * result.usage.completion_tokens,
    )
    server.metrics_once(COUNTED[0], before[COUNTED[0]] + expected[0])
    after = server.metrics()
    assert tuple(after[name] - before[name] for name in COUNTED) == expected
    assert result.confidence_kind == "logprob"
    with kind(engine=engine, max_tokens=6) as here:
        assert run(here, method)[0] == text


def test_the_free_memory_is_the_servers(server: Server) -> None:
    found: Any = RunnableLambda(lambda question: DOCUMENTS)
    with langchain.ChatRAGCache(base_url=server.base_url, model=MODEL, max_tokens=6) as model:
        chain = langchain.AdaptiveRAG(retriever=found, llm=model, profiler="heuristic")
        explained = chain.invoke(QUESTION)["explain"]
    assert explained.why == "fits"
    assert explained.load is not None
    assert explained.load.free_tokens > 0
