"""What best fit reads: the free memory, the cached chunks, the cost of prefills."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.knowledge_tree.prefill_cost import load_profile

from .best_fit import BestFit
from .cached_chunks import HasTree
from .load import (
    EngineLoadSource,
    LoadSource,
    MemoryLoad,
    MetricsLoadSource,
)
from .polling import Latest, Seen

__all__ = ["LoadReader", "Resources", "resources_of"]

logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
"""Time before a source that failed is read again, so that not every question waits for it."""


@dataclass(frozen=True)
class Resources:
    """What best fit reads.

    Attributes:
        load: Reports the free memory; ``None`` if it is unknown.
        tree: Has the tree of cached chunks; ``None`` if it is unknown.
        best_fit: Chooses configurations, by measured or estimated prefill times.
    """

    load: LoadSource | None = None
    tree: HasTree | None = None
    best_fit: BestFit = field(default_factory=BestFit)


def resources_of(backend: object, load: LoadSource | None = None) -> Resources:
    """Return what best fit can read of a model. May read the file of a measured cost model.

    Args:
        backend: A :class:`~ragcache_integrations.engine.RAGCacheEngine`; a server with a
            ``base_url``, whose ``/metrics`` are read; or any other object, of which nothing is
            known.
        load: Reports the free memory in place of the backend; ``None`` for the backend.
    """
    known: Any = backend
    tree: HasTree | None = None
    prefill = None
    if hasattr(known, "aload"):
        load = load or EngineLoadSource(known)
        tree = known if hasattr(known, "atree") else None
        model = getattr(known, "model", None)
        if isinstance(model, str) and model:
            prefill = load_profile(model, device_name())
    elif load is None and isinstance(getattr(known, "base_url", None), str):
        load = MetricsLoadSource(known.base_url)
    return Resources(load, tree, BestFit(prefill) if prefill else BestFit())


class LoadReader:
    """Reads a load source; if that fails, it warns once and tries again after a while.

    Args:
        source: The source; ``None`` if the load is unknown.
    """

    def __init__(self, source: LoadSource | None) -> None:
        self._source = source
        self._latest = Latest(self._ask, "ragcache-load")
        self._not_before = 0.0
        self._gone = False

    def read(self) -> Seen[MemoryLoad] | None:
        """Read the load, which may be some time old; ``None`` if it is unknown."""
        return _known(self._latest.get()) if self._may_ask() else None

    async def aread(self) -> Seen[MemoryLoad] | None:
        """Async version of :meth:`read`."""
        return _known(await self._latest.aget()) if self._may_ask() else None

    def now(self) -> MemoryLoad | None:
        """Read the load now, however long that takes; ``None`` if it is unknown."""
        return self._ask() if self._may_ask() else None

    def _may_ask(self) -> bool:
        return self._source is not None and time.monotonic() >= self._not_before

    def _ask(self) -> MemoryLoad | None:
        assert self._source is not None  # noqa: S101 - for type checkers: see _may_ask
        try:
            load = self._source.read()
        except Exception as error:  # noqa: BLE001 - no question fails for want of it
            self._not_before = time.monotonic() + RETRY_SECONDS
            level = logging.INFO if self._gone else logging.WARNING
            self._gone = True
            logger.log(
                level,
                "the free memory is unknown, so the median of what suits a question is used: %s",
                f"{type(error).__name__}: {error}",
            )
            return None
        self._gone = False
        return load


def _known(seen: Seen[MemoryLoad | None]) -> Seen[MemoryLoad] | None:
    return None if seen.value is None else Seen(seen.value, seen.began, seen.ended)
