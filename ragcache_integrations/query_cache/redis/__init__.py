"""The cache that processes share in Redis."""

from .cache import (
    DocumentSource,
    RedisQueryCache,
    RedisServer,
    SharedCacheStats,
)
from .link import Link, UnreachableError
from .scripts import EVICT_OLDEST, Script
from .server import as_server, shared_settings
from .shards import Debts

__all__ = [
    "EVICT_OLDEST",
    "Debts",
    "DocumentSource",
    "Link",
    "RedisQueryCache",
    "RedisServer",
    "Script",
    "SharedCacheStats",
    "UnreachableError",
    "as_server",
    "shared_settings",
]
