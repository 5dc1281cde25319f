"""The arguments of a shared query cache, checked."""

from __future__ import annotations

from typing import Any

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.settings import Settings

__all__ = ["shared_settings"]


def shared_settings(**arguments: Any) -> Settings:
    """Return the settings of a shared cache, whose entries lie in the buckets of a hash.

    Args:
        **arguments: Those of
            :class:`~ragcache_integrations.query_cache.redis.cache.RedisQueryCache`.

    Raises:
        ConfigurationError: An argument is out of its range, or lacks what it needs.
    """
    if arguments["tolerance"] == "auto":
        msg = "tolerance must be a number for a shared cache, got 'auto': it is not learnt together"
        raise ConfigurationError(msg)
    if not isinstance(arguments["tag"], str) or not arguments["tag"]:
        msg = (
            "tag must name the embedding model and the store, the same in all processes that share "
            f"the cache and another in all others, got {arguments['tag']!r}"
        )
        raise ConfigurationError(msg)
    if arguments["metric"] == "ip" and arguments["guarantee"] is not None:
        msg = (
            f"guarantee={arguments['guarantee']!r} cannot be given by a shared cache under "
            "metric='ip': no process knows the longest vector that another one adds"
        )
        raise ConfigurationError(msg)
    return Settings(
        capacity=1,  # of a bucket there is bucket_capacity
        index="lsh",
        unit_vectors=False,  # no process knows what another one adds
        **arguments,
    )
