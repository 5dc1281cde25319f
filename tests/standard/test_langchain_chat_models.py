"""langchain-tests' suites for the chat model; nothing overridden, nothing expected to fail.

The integration suite runs on the real engine, and against vLLM's own server. Its tests of tool
calling want certain arguments, which random weights don't give: all of them run against a server
whose model follows a script, and those that any model must pass on the engine, too.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from tests.llms.conftest import stub as stub  # noqa: PLC0414 - a fixture
from tests.llms.doubles import StubServer
from tests.llms.scripted import helpful, scripted


class TestUnitOnLazyEngine(ChatModelUnitTests):  # type: ignore[misc]  # an untyped package
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRAGCache

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"kv_cache_gib": 0.25, "dtype": "float32"}

    @property
    def supports_model_override(self) -> bool:
        return False  # an engine holds one model


class TestUnitOnServer(TestUnitOnLazyEngine):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"base_url": "http://127.0.0.1:1/v1", "model": "some-model"}


class Integration(ChatModelIntegrationTests):  # type: ignore[misc]  # as above
    params: dict[str, Any]

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRAGCache

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**self.params, "max_tokens": 128}

    @property
    def supports_model_override(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supported_usage_metadata_details(self) -> dict[Any, list[Any]]:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = ChatRAGCache(**self.params, max_tokens=4)
        prompt = "The same long prompt, warmed up first. " * 40
        model.invoke(prompt)
        if not stream:
            return model.invoke(prompt)
        first, *rest = model.stream(prompt)
        whole = sum(rest, start=first)
        assert isinstance(whole, AIMessage)
        return whole


class RandomWeights(Integration):
    @property
    def has_tool_calling(self) -> bool:
        return False  # see above


@pytest.mark.engine
class TestIntegrationOnEngine(RandomWeights):
    @pytest.fixture(autouse=True)
    def _take_engine(self, engine: RAGCacheEngine) -> None:
        self.params = {"engine": engine}


@pytest.mark.engine
class TestIntegrationOnServer(RandomWeights):
    """vLLM's own server."""

    @pytest.fixture(autouse=True)
    def _take_server(self, vllm_server: str) -> None:
        self.params = {"base_url": vllm_server, "model": "tiny"}


@pytest.mark.engine
class TestToolsOnEngine:
    """The suite's tests of tools that a grammar lets any model pass."""

    has_tool_calling = has_tool_choice = True
    test_tool_choice = ChatModelIntegrationTests.test_tool_choice
    test_tool_message_histories_string_content = (
        ChatModelIntegrationTests.test_tool_message_histories_string_content
    )
    test_tool_message_histories_list_content = (
        ChatModelIntegrationTests.test_tool_message_histories_list_content
    )
    test_tool_message_error_status = ChatModelIntegrationTests.test_tool_message_error_status
    test_structured_few_shot_examples = ChatModelIntegrationTests.test_structured_few_shot_examples
    my_adder_tool = ChatModelIntegrationTests.my_adder_tool

    @pytest.fixture
    def model(self, engine: RAGCacheEngine) -> ChatRAGCache:
        return ChatRAGCache(engine=engine)


class TestIntegrationOnScript(Integration):
    """A scripted server, whose model calls tools as it is asked to."""

    @pytest.fixture(autouse=True)
    def _take_server(self, stub: StubServer) -> None:
        self.params = {"base_url": scripted(stub, helpful), "model": "scripted"}
