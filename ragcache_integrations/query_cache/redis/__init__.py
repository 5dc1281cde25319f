"""The cache that processes share in Redis."""

from .cache import (
    DocumentSource,
    RedisQueryCache,
    RedisServer,
    SharedCacheStats,
)
from .link import Call, Channel, UnreachableError, check_reply
from .scripts import EVICT_OLDEST, Script
from .server import as_server, shared_settings

__all__ = [
    "EVICT_OLDEST",
    "Call",
    "Channel",
    "DocumentSource",
    "RedisQueryCache",
    "RedisServer",
    "Script",
    "SharedCacheStats",
    "UnreachableError",
    "as_server",
    "check_reply",
    "shared_settings",
]
