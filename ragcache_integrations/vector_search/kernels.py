"""Whether graphs can be searched in slices: numba compiles what does so."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

__all__ = ["graph_kernels"]

logger = logging.getLogger(__name__)


@cache
def graph_kernels() -> ModuleType | None:
    """Return the module of the kernels, ``None`` without numba; imports numba the first time."""
    try:
        return import_module("ragcache_integrations.vector_search._graph")
    except (ImportError, RuntimeError) as error:  # the latter: nowhere to keep compiled code
        logger.warning(
            "HNSW searches have a single stage, as numba cannot be used: %s. "
            "pip install 'ragcache-integrations[numba]'",
            error,
        )
        return None
