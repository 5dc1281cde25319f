"""The cache that processes share in Redis."""

from ragcache_integrations.query_cache.redis.cache import (
    DocumentSource,
    RedisQueryCache,
    RedisServer,
    SharedCacheStats,
)

__all__ = ["DocumentSource", "RedisQueryCache", "RedisServer", "SharedCacheStats"]
