"""LlamaIndex's FunctionAgent with our LLM, over a server and over the engine."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.agent.workflow import AgentOutput, AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool, RetrieverTool

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llama_index import ApproximateCacheRetriever
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from tests.llms.agents.conversations import (
    ANSWER,
    CONVERSATIONS,
    SYSTEM,
    add,
    check_bodies,
    check_growth,
    check_prompts,
    clerk,
    count_words,
    embedding,
    found_documents,
    questions,
)
from tests.llms.doubles import Recorder, StubServer
from tests.llms.retrieving import TEXTS
from tests.llms.scripted import ScriptedModel
from tests.support.embeddings import LlamaIndexEmbeddings


@pytest.fixture
def tools() -> list[Any]:
    index = VectorStoreIndex.from_documents(
        [Document(text=text) for text in TEXTS],
        embed_model=LlamaIndexEmbeddings(embedding),
        transformations=[],
    )
    retriever = ApproximateCacheRetriever.from_index(index, k=1, tolerance=0.0)
    search = RetrieverTool.from_defaults(retriever, name="search", description="Looks topics up.")
    return [FunctionTool.from_defaults(add), FunctionTool.from_defaults(count_words), search]


# One call after each message of the user: noise would go on calling.
FORCED = {"initial_tool_choice": "required", "allow_parallel_tool_calls": False}


def agent(llm: RAGCacheLLM, tools: list[Any], **settings: Any) -> FunctionAgent:
    return FunctionAgent(tools=tools, llm=llm, system_prompt=SYSTEM, **settings)


async def converse(
    made: FunctionAgent, number: int
) -> tuple[list[AgentOutput], list[ToolCallResult], str, int]:
    """One conversation: the model's outputs, the tools' results, the last answer, its events."""
    memory = ChatMemoryBuffer.from_defaults(token_limit=100_000, tokenizer_fn=str.split)
    outputs: list[AgentOutput] = []
    found: list[ToolCallResult] = []
    streamed, answer = 0, ""
    for said in questions(number):
        handler = made.run(said, memory=memory)
        async for event in handler.stream_events():
            if isinstance(event, AgentOutput):
                outputs.append(event)
            elif isinstance(event, ToolCallResult):
                found.append(event)
            streamed += isinstance(event, AgentStream)
        answer = str(await handler)
    return outputs, found, answer, streamed


def cached_tokens(outputs: list[AgentOutput]) -> list[int]:
    usages = [output.raw["usage"] for output in outputs if isinstance(output.raw, dict)]
    return [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]


@pytest.mark.parametrize("streaming", [True, False])
async def test_over_a_server(stub: StubServer, tools: list[Any], streaming: bool) -> None:
    llm = RAGCacheLLM(base_url=stub.base_url, model="m", max_model_len=32768)
    made = agent(llm, tools, streaming=streaming)
    for number in range(CONVERSATIONS):
        stub.seen.clear()
        stub.reply = ScriptedModel(clerk)
        outputs, found, answer, streamed = await converse(made, number)
        assert answer == ANSWER
        assert not any(result.tool_output.is_error for result in found)
        names = sorted(result.tool_name for result in found)  # tools of one turn run at once
        assert names == ["add", "add", "count_words", "search", "search"]
        sums = {str(r.tool_output) for r in found if r.tool_name == "add"}
        assert sums == {str(2 * number + 1), str(number + 40)}
        assert len(stub.seen) == 6
        check_bodies([seen.body for seen in stub.seen])
        check_growth(cached_tokens(outputs))
        assert (streamed > 10) is streaming
        assert all(seen.body.get("stream", False) is streaming for seen in stub.seen)


@pytest.mark.engine
@pytest.mark.parametrize("streaming", [True, False])
async def test_over_the_engine(engine: RAGCacheEngine, tools: list[Any], streaming: bool) -> None:
    for number in range(CONVERSATIONS):
        namespace = f"{streaming} {number}"
        llm = RAGCacheLLM(engine=engine, namespace=namespace)
        made = agent(llm, tools, streaming=streaming, **FORCED)
        outputs, found, _, _ = await converse(made, number)
        assert len(found) >= 3
        assert not any(result.tool_output.is_error for result in found)
        cached = cached_tokens(outputs)
        assert len(cached) == 6
        check_growth(cached)


@pytest.mark.engine
async def test_what_the_retriever_brings_is_a_document(
    recorder: Recorder, tools: list[Any]
) -> None:
    llm = RAGCacheLLM(engine=recorder)
    made = agent(llm, tools[-1:], streaming=False, **FORCED)
    await converse(made, 5)
    check_prompts(recorder.prompts)
    assert all(found_documents(prompt) for prompt in recorder.prompts[1:])
    counts = [len(prompt.documents) for prompt in recorder.prompts]
    assert counts == sorted(counts)


async def test_an_agent_refuses_a_model_that_calls_no_tools(stub: StubServer) -> None:
    llm = RAGCacheLLM(base_url=stub.base_url, model="m", is_function_calling_model=False)
    assert not llm.metadata.is_function_calling_model
    with pytest.raises(ValueError, match="LLM must be a FunctionCallingLLM"):
        await agent(llm, [FunctionTool.from_defaults(add)]).run("?")
    assert [seen.path for seen in stub.seen] == ["/v1/models"]  # for the context window
    assert llm.chat([ChatMessage("?")]).message.content
