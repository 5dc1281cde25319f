"""Synthesis against vLLM's own OpenAI server, in both frameworks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.schema import NodeWithScore, TextNode

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.adaptive import Synthesised
from ragcache_integrations.chains.synthesis.llama_index import SYNTHESIS_METADATA
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.resources import load_passages

pytestmark = pytest.mark.engine

TEXTS = [passage.text for passage in load_passages()[:3]]
QUESTION = "who got the first nobel prize in physics"
KNOBS: dict[str, Any] = {
    "model": "tiny",
    "tokenizer": str(default_model_path()),
    "max_model_len": 2048,
    "max_tokens": 6,
}
CALLS = {"stuff": 1, "map_reduce": 4, "map_rerank": 3}


def check(result: Synthesised, text: str) -> None:
    assert result.calls == CALLS[result.method] == len(result.steps)
    assert result.text == text.strip()
    assert result.confidence_kind == "logprob"
    assert result.confidence is not None
    assert result.confidence < 0
    assert result.usage is not None
    assert all(step.usage is not None and step.usage.completion_tokens for step in result.steps)


@pytest.mark.parametrize("chain_type", CALLS)
def test_langchain(vllm_server: str, chain_type: Any) -> None:
    short = {"intermediate_length": 6} if chain_type == "map_reduce" else {}
    given = {"context": TEXTS, "question": QUESTION}
    with langchain.ChatRAGCache(base_url=vllm_server, **KNOBS) as model:
        chain = langchain.synthesis_chain(model, chain_type, **short)
        for output in (chain.invoke(given), asyncio.run(chain.ainvoke(given))):
            check(output["synthesis"], output["output_text"])


@pytest.mark.parametrize("chain_type", CALLS)
def test_llama_index(vllm_server: str, chain_type: str) -> None:
    kind: Any = {
        "stuff": llama_index.StuffSynthesis,
        "map_reduce": llama_index.MapReduceSynthesis,
        "map_rerank": llama_index.MapRerankSynthesis,
    }[chain_type]
    short = {"intermediate_length": 6} if chain_type == "map_reduce" else {}
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    with llama_index.RAGCacheLLM(base_url=vllm_server, **KNOBS) as llm:
        synthesizer = kind(llm=llm, **short)
        for response in (
            synthesizer.synthesize(QUESTION, nodes),
            asyncio.run(synthesizer.asynthesize(QUESTION, nodes)),
        ):
            check(response.metadata[SYNTHESIS_METADATA], str(response))
