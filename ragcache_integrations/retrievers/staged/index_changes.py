"""Which methods of our own index change its documents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ragcache_integrations.retrievers.stores import StoreMethods

__all__ = ["STAGED_INDEX_METHODS"]


def _ids(arguments: Mapping[str, Any], _: Any) -> Collection[str] | None:
    ids = arguments["ids"]
    return ids if isinstance(ids, list | tuple) else None  # what else there is may be used up


STAGED_INDEX_METHODS = StoreMethods(
    base="",
    updates=dict.fromkeys(("add", "aadd", "update", "aupdate"), _ids),
    removes=dict.fromkeys(("delete", "adelete"), _ids),
)
"""Those of :class:`~ragcache_integrations.vector_search.StagedIndex`."""
