"""langchain-tests' suites for the chat model; nothing overridden, nothing expected to fail.

The integration suite runs on the real engine, and against vLLM's own server.
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


@pytest.mark.engine
class TestIntegrationOnEngine(Integration):
    @pytest.fixture(autouse=True)
    def _take_engine(self, engine: RAGCacheEngine) -> None:
        self.params = {"engine": engine}


@pytest.mark.engine
class TestIntegrationOnServer(Integration):
    """vLLM's own server."""

    @pytest.fixture(autouse=True)
    def _take_server(self, vllm_server: str) -> None:
        self.params = {"base_url": vllm_server, "model": "tiny"}
