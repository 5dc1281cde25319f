"""langchain-tests' suites for the chat model on the modular engine, which has no grammars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from ragcache_integrations.llms.langchain.models import ChatRAGCache

from . import test_langchain_chat_models as suites

DOCUMENT = "The same document, encoded before. " * 10


@pytest.fixture(scope="module", autouse=True)
def _one_model() -> Iterator[None]:
    """Held, so that not every test loads it again."""
    with ChatRAGCache(engine="modular"):
        yield


class TestUnitOnModularEngine(suites.TestUnitOnLazyEngine):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": "modular", "strategy": "cacheblend"}

    has_tool_calling = has_tool_choice = False  # it refuses tools, and says so

    @property
    def has_structured_output(self) -> bool:
        return False


class TestIntegrationOnModularEngine(suites.Integration):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": "modular", "max_tokens": 6}

    has_tool_calling = has_tool_choice = False  # it refuses tools, and says so

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return False

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = ChatRAGCache(engine="modular", max_tokens=4)
        prompt = f"{DOCUMENT}\n\nWhat is it?"
        if not stream:
            return model.invoke(prompt, documents=[DOCUMENT])
        first, *rest = model.stream(prompt, documents=[DOCUMENT])
        whole = sum(rest, start=first)
        assert isinstance(whole, AIMessage)
        return whole
