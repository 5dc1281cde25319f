"""langchain-tests' suites for the chat model; nothing overridden, nothing expected to fail.

The integration suite runs on the real engine.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llms.langchain import ChatRAGCache


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


@pytest.mark.engine
class TestIntegrationOnEngine(ChatModelIntegrationTests):  # type: ignore[misc]  # as above
    engine: RAGCacheEngine

    @pytest.fixture(autouse=True)
    def _take_engine(self, closing_engine: RAGCacheEngine) -> None:
        type(self).engine = closing_engine

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRAGCache

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": self.engine, "max_tokens": 128}

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
        model = ChatRAGCache(engine=self.engine, max_tokens=4)
        prompt = "The same long prompt, warmed up first. " * 40
        model.invoke(prompt)
        if not stream:
            return model.invoke(prompt)
        first, *rest = model.stream(prompt)
        whole = sum(rest, start=first)
        assert isinstance(whole, AIMessage)
        return whole
