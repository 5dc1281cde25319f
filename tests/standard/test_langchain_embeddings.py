"""langchain-tests' standard suites for the default embeddings; nothing overridden."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from ragcache_integrations.embeddings.langchain import MiniLMEmbeddings


class TestUnit(EmbeddingsUnitTests):  # type: ignore[misc]  # untyped
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return MiniLMEmbeddings


class TestIntegration(EmbeddingsIntegrationTests):  # type: ignore[misc]  # untyped
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return MiniLMEmbeddings
