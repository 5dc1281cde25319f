"""The loops over keys and documents, compiled (numba) or in NumPy.

The compiled ones are used if numba is installed, NumPy's otherwise.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

from .layout import COLUMNS, EXPIRES, FREE, PARTITION, SEQUENCE, SERVES, address

__all__ = ["COLUMNS", "EXPIRES", "FREE", "PARTITION", "SEQUENCE", "SERVES", "address", "kernels"]


logger = logging.getLogger(__name__)


@cache
def kernels() -> ModuleType:
    """Return the module of the kernels; imports numba the first time."""
    try:
        return import_module("ragcache_integrations.query_cache.kernels.compiled")
    except (ImportError, RuntimeError) as error:  # the latter: nowhere to keep compiled code
        logger.info("The query cache computes in NumPy, as numba cannot be used: %s", error)
        return import_module("ragcache_integrations.query_cache.kernels.plain")
