"""LangChain's documents as the query cache hands them out, and as they are saved."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document

from ragcache_integrations.core.saved_values import decode_value, encode_value
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.copying import copy_container, copy_model
from ragcache_integrations.retrievers.retrieval import QUERY_CACHE_METADATA, Note

__all__ = ["copy_document", "decode_document", "encode_document"]

_set = object.__setattr__


def copy_document(document: Document, _: float | None, note: Note | None) -> Document:
    """Return a document that the caller may change; it has no score to be set."""
    if type(document) is Document:
        # As pydantic copies it, in half the time; its metadata is its only container.
        copied = Document.__new__(Document)
        _set(
            copied, "__dict__", document.__dict__ | {"metadata": copy_container(document.metadata)}
        )
        _set(copied, "__pydantic_fields_set__", document.__pydantic_fields_set__.copy())
        _set(copied, "__pydantic_extra__", None)
        _set(copied, "__pydantic_private__", None)
    else:
        copied = copy_model(document)
    if note is not None:
        copied.metadata[QUERY_CACHE_METADATA] = dict(note)
    return copied


def encode_document(document: Document) -> dict[str, Any]:
    """Turn a document into what JSON can hold.

    Raises:
        ConfigurationError: It would not come back as it is.
    """
    if type(document) is not Document:
        kind = type(document).__name__
        msg = f"only a Document itself can be saved, not a {kind}: {document!r:.200}"
        raise ConfigurationError(msg)
    return {
        "id": document.id,
        "page_content": document.page_content,
        "metadata": encode_value(document.metadata, "metadata"),
    }


def decode_document(saved: dict[str, Any]) -> Document:
    """Turn that into the document again."""
    return Document(**saved | {"metadata": decode_value(saved["metadata"])})
