"""Which documents are the same: by id, text, metadata and what else a model is shown of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ragcache_integrations.core.texts import content_id
from ragcache_integrations.retrievers.keys import freeze_arguments
from ragcache_integrations.retrievers.retrieval import QUERY_CACHE_METADATA

__all__ = ["document_identity"]

_VOLATILE = {
    *(QUERY_CACHE_METADATA, "score", "_score", "relevance_score", "similarity", "similarity_score"),
    *("distance", "_distance", "_relevance_distance", "rank", "rerank_score", "query_similarity"),
}
"""Names under which stores and re-rankers note how near a document is to the question."""


def document_identity(
    name: str | None,
    text: str,
    metadata: Mapping[str, Any],
    more: Mapping[str, Any] | None = None,
) -> tuple[str, Hashable] | None:
    """Return a document's id, and what changes when its text or metadata does.

    Args:
        name: Its id; ``None`` where it has none.
        text: Its text.
        metadata: Its metadata, as a prompt may hold it.
        more: What else a model may be shown of it, such as an image.

    Returns:
        ``None`` where the metadata hold what can't be compared.
    """
    text_id = content_id(text)
    held: dict[str, Any] = {key: metadata[key] for key in metadata if key not in _VOLATILE}
    if more:
        held = {"metadata": held, "more": more}
    frozen = freeze_arguments(held)
    return None if frozen.opaque else (name or text_id, (text_id, frozen.key))
