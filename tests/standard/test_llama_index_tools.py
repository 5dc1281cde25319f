"""What LlamaIndex expects of an LLM that calls functions, as a suite of our own: it ships none.

:class:`FunctionCallingContract` is run on the engine, whose grammar forces calls, and on a server
whose model follows a script.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.base.llms.types import MessageRole, ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.program.function_program import FunctionCallingProgram
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel, Field

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import StructuredOutputError
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from tests.llms.conftest import stub as stub  # noqa: PLC0414 - a fixture
from tests.llms.doubles import StubServer
from tests.llms.scripted import helpful, scripted


class Cat(BaseModel):
    """A cat."""

    age: int = Field(ge=0, le=30)
    purrs: bool


def weigh(grams: int, exact: bool) -> str:
    """Weigh something."""
    return f"{grams} g, {'exactly' if exact else 'about'}"


TOOL = FunctionTool.from_defaults(weigh)
ASKED = "How heavy is the cat?"


class FunctionCallingContract:
    """Subclasses say what the LLM runs on."""

    @pytest.fixture
    def llm(self) -> RAGCacheLLM:
        raise NotImplementedError

    async def _every_way(self, llm: RAGCacheLLM, **call: Any) -> list[ChatResponse]:
        responses = [
            await asyncio.to_thread(lambda: llm.chat_with_tools([TOOL], ASKED, **call)),
            await llm.achat_with_tools([TOOL], ASKED, **call),
            await asyncio.to_thread(
                lambda: list(llm.stream_chat_with_tools([TOOL], ASKED, **call))[-1]
            ),
        ]
        async for response in await llm.astream_chat_with_tools([TOOL], ASKED, **call):
            last = response
        return [*responses, last]

    def test_it_is_one(self, llm: RAGCacheLLM) -> None:
        assert isinstance(llm, FunctionCallingLLM)
        assert llm.metadata.is_function_calling_model

    async def test_every_way_selects_a_tool(self, llm: RAGCacheLLM) -> None:
        for response in await self._every_way(llm, tool_required=True):
            assert response.message.role is MessageRole.ASSISTANT
            (selected,) = llm.get_tool_calls_from_response(response)
            assert selected.tool_name == "weigh"
            assert selected.tool_id
            assert TOOL.call(**selected.tool_kwargs).is_error is False
            (block,) = [b for b in response.message.blocks if isinstance(b, ToolCallBlock)]
            assert block.tool_kwargs == selected.tool_kwargs

    async def test_a_tool_by_its_name(self, llm: RAGCacheLLM) -> None:
        for response in await self._every_way(llm, tool_choice="weigh"):
            (selected,) = llm.get_tool_calls_from_response(response)
            assert selected.tool_name == "weigh"

    async def test_an_answer_without_calls(self, llm: RAGCacheLLM) -> None:
        for response in await self._every_way(llm, tool_choice="none"):
            assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
            with pytest.raises(StructuredOutputError):
                llm.get_tool_calls_from_response(response)

    async def test_histories_are_read_again(self, llm: RAGCacheLLM) -> None:
        for response in await self._every_way(llm, tool_required=True):
            (selected,) = llm.get_tool_calls_from_response(response)
            result = ChatMessage(
                role="tool",
                content=weigh(**selected.tool_kwargs),
                additional_kwargs={"tool_call_id": selected.tool_id},
            )
            history = [ChatMessage(ASKED), response.message, result]
            dumped = [ChatMessage.model_validate(m.model_dump(mode="json")) for m in history]
            for turn in (history, dumped):  # as memories store them, too
                answer = await llm.achat_with_tools([TOOL], chat_history=turn, tool_choice="none")
                assert answer.message.content

    def test_predict_and_call(self, llm: RAGCacheLLM) -> None:
        response = llm.predict_and_call([TOOL], ASKED, tool_required=True)
        assert str(response).endswith(("exactly", "about"))

    async def test_function_calling_programs(self, llm: RAGCacheLLM) -> None:
        program = FunctionCallingProgram.from_defaults(
            output_cls=Cat, llm=llm, prompt_template_str="A cat of {age}."
        )
        assert isinstance(await program.acall(age="3"), Cat)


@pytest.mark.engine
class TestOnEngine(FunctionCallingContract):
    @pytest.fixture
    def llm(self, engine: RAGCacheEngine) -> RAGCacheLLM:
        return RAGCacheLLM(engine=engine, max_tokens=64)


class TestOnScript(FunctionCallingContract):
    @pytest.fixture
    def llm(self, stub: StubServer) -> RAGCacheLLM:
        return RAGCacheLLM(base_url=scripted(stub, helpful), model="m", max_model_len=4096)
