"""The cache that processes share in Redis."""

from .cache import (
    DocumentSource,
    RedisQueryCache,
    RedisServer,
    SharedCacheStats,
)
from .debts import Debts
from .link import Link, UnreachableError
from .scripts import EVICT_OLDEST, Script
from .server import as_server
from .settings import shared_settings

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
