"""LangChain's documents as the query cache hands them out, and as they are saved."""

from __future__ import annotations

import json
from typing import Any

from langchain_core.documents import Document

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.copying import copy_model
from ragcache_integrations.retrievers.retrieval import QUERY_CACHE_METADATA, Note

__all__ = ["copy_document", "decode_document", "encode_document"]


def copy_document(document: Document, _: float | None, note: Note | None) -> Document:
    """Return a document that the caller may change; it has no score to be set."""
    copied = copy_model(document)
    if note is not None:
        copied.metadata[QUERY_CACHE_METADATA] = dict(note)
    return copied


def encode_document(document: Document) -> dict[str, Any]:
    """Turn a document into what JSON can hold.

    Raises:
        ConfigurationError: It would not come back as it is.
    """
    fields = {"id", "page_content", "metadata"}
    saved = {name: getattr(document, name) for name in fields}
    try:
        same = decode_document(json.loads(json.dumps(saved))) == document
    except TypeError:
        same = False
    if not same or type(document) is not Document:
        kind = type(document).__name__
        msg = f"a {kind} that JSON cannot hold cannot be saved: {document!r}"
        raise ConfigurationError(msg)
    return saved


def decode_document(saved: dict[str, Any]) -> Document:
    """Turn that into the document again."""
    return Document(**saved)
