"""The Redis server of a shared query cache, and how patient its users are.

The module also checks the arguments of such a cache, and counts what it did as one process sees it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ragcache_integrations.core.checks import check_flag, check_int, check_number, or_none
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import QueryCacheStats

__all__ = ["RedisServer", "SharedCacheStats", "as_server", "shared_settings"]


@dataclass(frozen=True, slots=True)
class SharedCacheStats(QueryCacheStats):
    """What this process did with the shared cache.

    ``entries`` and ``vectors`` are 0: they are not counted. ``capacity`` is that of each cache
    key. ``expired`` and ``invalidated`` are entries that lookups came upon, ``evictions`` those
    that had to go for this process's insertions.

    Attributes:
        failed: Lookups that missed because Redis failed or did not answer in time.
        skipped: Lookups that missed without asking, because it had failed before.
        lost: Insertions and deletions that did not reach Redis.
        corrupt: Values in Redis, or answers of it, that are no entries.
        owed: Shards whose entries have to be cleared once Redis can be reached again.
    """

    failed: int = 0
    skipped: int = 0
    lost: int = 0
    corrupt: int = 0
    owed: int = 0


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
        raise ConfigurationError(
            "tag must name the embedding model and the store, the same in all processes that share "
            f"the cache and another in all others, got {arguments['tag']!r}"
        )
    if arguments["metric"] == "ip" and arguments["guarantee"] is not None:
        raise ConfigurationError(
            f"guarantee={arguments['guarantee']!r} cannot be given by a shared cache under "
            "metric='ip': no process knows the longest vector that another one adds"
        )
    return Settings(
        capacity=1,  # of a bucket there is bucket_capacity
        index="lsh",
        unit_vectors=False,  # no process knows what another one adds
        **arguments,
    )


_SCHEMES = ("redis", "rediss", "unix")
_CLUSTER_SHARDS = 16
_MOST_SHARDS = 1024


@dataclass(frozen=True, repr=False)
class RedisServer:
    """A Redis server, or a Redis Cluster.

    Caches take one in the place of a URL::

        RedisServer("redis://localhost:6379/0", timeout=0.05)

    Nothing is connected to before it is needed. Neither ``repr`` nor any message of this package
    shows the URL's user name and password.

    Attributes:
        url: Such as ``redis://user:password@host:6379/0``, ``rediss://…`` for TLS, or
            ``unix:///path``; as redis-py takes it.
        cluster: Whether it is a Redis Cluster; ``url`` names any of its nodes.
        shards: Into how many groups the buckets are cut. All that one group needs lies in one
            slot of a Redis Cluster; every group has its own list of the store's changes.
            ``None``: 16 for a cluster, 1 otherwise. Must be the same in all processes.
        timeout: Seconds to wait for the answer to a lookup or an insertion. After it a lookup
            misses. An operation is over after ``connect_timeout + timeout``,
            even if the server is still sending.
        connect_timeout: Seconds to wait for a new connection, for each address of the host.
        change_timeout: Seconds to wait when documents came or went, which must not get lost; for
            all shards together, and with ``connect_timeout``.
        failures: After this many failures in a row the server is not called for a while.
        retry_after: Seconds of that pause; then a single request tries again.
        prefix: What the names of all keys begin with.

    Raises:
        ConfigurationError: A setting is out of its range.
    """

    url: str
    _: KW_ONLY
    cluster: bool = False
    shards: int | None = None
    timeout: float = 0.02
    connect_timeout: float = 0.1
    change_timeout: float = 1.0
    failures: int = 3
    retry_after: float = 1.0
    prefix: str = "ragcache"

    def __post_init__(self) -> None:
        """Check each."""
        _check_url(self.url)
        check_flag("cluster", self.cluster)
        or_none(check_int)("shards", self.shards, 1, _MOST_SHARDS)
        check_int("failures", self.failures, 1)
        for name in ("timeout", "connect_timeout", "change_timeout", "retry_after"):
            check_number(name, getattr(self, name), 0, above=True, unit="seconds")
        if not isinstance(self.prefix, str) or set(self.prefix) & set("{}"):
            raise ConfigurationError(f"prefix must be a string without braces, got {self.prefix!r}")

    def __repr__(self) -> str:
        return f"RedisServer({self.where!r}, cluster={self.cluster})"

    @property
    def where(self) -> str:
        """The URL without user name, password and options."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}"

    @property
    def scheme(self) -> str:
        """How the URL begins: ``redis``, ``rediss`` or ``unix``."""
        return urlsplit(self.url).scheme

    @property
    def number_of_shards(self) -> int:
        """Into how many groups the buckets are cut."""
        if self.shards is None:
            return _CLUSTER_SHARDS if self.cluster else 1
        return self.shards

    def without_secrets(self, text: str) -> str:
        """Return a message about this server as it may be logged."""
        password = urlsplit(self.url).password
        return text.replace(password, "***") if password else text


def as_server(value: object) -> RedisServer:
    """Return a server given as such or by its URL.

    Raises:
        ConfigurationError: The value is neither.
    """
    if isinstance(value, RedisServer):
        return value
    if isinstance(value, str):
        try:
            return RedisServer(value)
        except ConfigurationError as error:  # which does not repeat the URL
            msg = f"cache must be a Redis URL or a RedisServer: {error}"
            raise ConfigurationError(msg) from None
    msg = f"cache must be a Redis URL or a RedisServer, got a {type(value).__name__}"
    raise ConfigurationError(msg)


def _check_url(url: object) -> None:
    """Refuse other URLs than a Redis server's, without repeating them: they may hold a password."""
    msg = "url must be a string"
    if isinstance(url, str):
        msg = f"url must begin with scheme of {', '.join(f'{scheme}://' for scheme in _SCHEMES)}"
        try:
            parts = urlsplit(url)
            _ = parts.port
            options = parse_qs(parts.query)
        except ValueError:
            msg = "url is malformed; a password in it must be percent-encoded"
        else:
            if parts.scheme in _SCHEMES and "decode_responses" not in options:
                return
            if "decode_responses" in options:
                msg = "url must not set decode_responses: embeddings are no text"
    raise ConfigurationError(msg)
