"""Roles and content blocks that other providers' messages have."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.messages import ChatMessage as LangChainMessage
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ThinkingBlock

from ragcache_integrations.engine import Message
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.langchain.translation import chat_prompt
from ragcache_integrations.llms.llama_index.model import chat_prompt as llama_prompt


def test_developers_speak_as_the_system() -> None:
    developer = {"__openai_role__": "developer"}
    messages = chat_prompt(
        [
            LangChainMessage(content="Be brief.", role="developer"),
            SystemMessage("Be kind.", additional_kwargs=developer),
        ]
    ).messages
    assert messages == (Message("system", "Be brief."), Message("system", "Be kind."))
    said = ChatMessage("Be brief.", role=MessageRole.DEVELOPER)
    assert llama_prompt([said]).messages == (Message("system", "Be brief."),)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "reasoning", "reasoning": "hm", "extras": {"signature": "x"}},
        {"type": "reasoning", "summary": []},
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
    ],
)
def test_thoughts_are_left_out_in_langchain(block: dict[str, object]) -> None:
    answer = AIMessage([block, {"type": "text", "text": "Rome"}])
    assert chat_prompt([answer]).messages == (Message("assistant", "Rome"),)
    assert chat_prompt([HumanMessage("Where?"), AIMessage([block])]).messages[1].text == ""
    with pytest.raises(ConfigurationError, match="must hold text"):
        chat_prompt([HumanMessage([block])])


def test_thoughts_are_left_out_in_llama_index() -> None:
    blocks = [ThinkingBlock(content="hm"), TextBlock(text="Rome")]
    answer = ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks)
    assert llama_prompt([answer]).messages == (Message("assistant", "Rome"),)
    with pytest.raises(ConfigurationError, match="must hold text"):
        llama_prompt([ChatMessage(role=MessageRole.USER, blocks=blocks)])
