"""Tools through ``ragcache serve``: the parser is found, and answers of both frameworks agree."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from llama_index.core.tools import FunctionTool

from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.llama_index import RAGCacheLLM

from .starting import MODEL, Server

pytestmark = pytest.mark.engine

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": NUMBER, "b": NUMBER},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


def test_free_and_forced_calls(server: Server) -> None:
    status, said = server.chat("Two and forty?", tools=[ADD], max_tokens=64)
    assert status == 200, said
    call = {"tools": [ADD], "tool_choice": "required", "parallel_tool_calls": False}
    status, said = server.chat("Two?", **call, max_tokens=128)
    assert status == 200, said
    for call in said["choices"][0]["message"]["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        jsonschema.validate(arguments, ADD["function"]["parameters"])


def test_a_schema_without_a_grammar_is_the_requests_fault(server: Server) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "no such type"}}, "required": ["a"]}
    definition = {"type": "function", "function": {"name": "f", "parameters": odd, "strict": True}}
    status, said = server.chat("?", tools=[definition], tool_choice="required", max_tokens=8)
    assert status == 400, said
    assert server.chat("?", max_tokens=2)[0] == 200


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("streaming", [True, False])
def test_langchain_through_our_server(server: Server, streaming: bool) -> None:
    model = ChatRAGCache(base_url=server.base_url, model=MODEL, streaming=streaming)
    calling = model.bind_tools([tool(add)], tool_choice="add", parallel_tool_calls=False)
    turn: list[Any] = [HumanMessage("What is two plus forty, and why do you think so? " * 4)]
    cached = []
    for _ in range(3):
        said = calling.invoke(turn)
        (call,) = said.tool_calls
        assert call["name"] == "add"
        turn += [said, tool(add).invoke(call), HumanMessage("And again, please, with others.")]
        assert said.usage_metadata is not None
        cached.append(said.usage_metadata["input_token_details"]["cache_read"])
    assert cached[1:] == sorted(set(cached[1:]))
    assert cached[1] > 0


async def test_llama_index_through_our_server(server: Server) -> None:
    llm = RAGCacheLLM(base_url=server.base_url, model=MODEL)
    assert llm.metadata.is_function_calling_model
    tools = [FunctionTool.from_defaults(add)]
    response = await llm.achat_with_tools(tools, "Two and forty?", tool_required=True)
    (call,) = llm.get_tool_calls_from_response(response)
    assert set(call.tool_kwargs) == {"a", "b"}
    await llm.aclose()
