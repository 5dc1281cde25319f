"""Which documents a chain has retrieved, by its callbacks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from typing_extensions import override

from ragcache_integrations.answers.documents import document_identity

__all__ = ["HeardDocuments", "identities_of"]


class HeardDocuments(BaseCallbackHandler):
    """Hears which documents a chain retrieves on its own."""

    run_inline = True

    def __init__(self) -> None:
        self._retrieving: set[UUID] = set()
        self._inner: set[UUID] = set()
        self._documents: list[list[Document]] = []

    @override
    def on_retriever_start(
        self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        if parent_run_id in self._retrieving:
            self._inner.add(run_id)
        self._retrieving.add(run_id)

    @override
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if run_id not in self._inner:
            self._documents.append(list(documents))

    def only(self, documents: frozenset[Any]) -> bool:
        """Whether these are what was retrieved, each time."""
        return bool(self._documents) and all(
            identities_of(retrieved) == documents for retrieved in self._documents
        )

    def told(self) -> str:
        """Say in words what was retrieved."""
        if not self._documents:
            return "nothing that its callbacks report"
        return " and ".join(f"{len(documents)} documents" for documents in self._documents)


def identities_of(documents: list[Document]) -> frozenset[Any] | None:
    """Return which documents these are; ``None`` where one can't be compared."""
    found = [
        document_identity(document.id, document.page_content, document.metadata)
        for document in documents
    ]
    return None if None in found else frozenset(found)
