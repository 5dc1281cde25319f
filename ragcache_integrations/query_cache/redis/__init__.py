"""The cache that processes share in Redis."""

from .cache import (
    DocumentSource,
    RedisQueryCache,
    RedisServer,
    SharedCacheStats,
)
from .server import as_server
from .settings import shared_settings

__all__ = [
    "DocumentSource",
    "RedisQueryCache",
    "RedisServer",
    "SharedCacheStats",
    "as_server",
    "shared_settings",
]
