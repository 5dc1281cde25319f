"""Where things lie in Redis.

The names of all keys hold a fingerprint of the settings on which answers depend: the format, the
dimension, the metric, the hyperplanes themselves, whether the search is exact, and ``tag``, which
names embedding model and store. Processes that differ in one of them do not see each other's
entries. Cache keys (namespaces, filters) and embeddings are in names as hashes only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.entries import hyperplanes
from ragcache_integrations.query_cache.files import encode_key
from ragcache_integrations.query_cache.settings import Settings

__all__ = ["Names"]

Vectors = NDArray[np.float32]

_FORMAT = 2
"""Raised with every change that an older version would misread."""


class Names:
    """Names of keys.

    Args:
        settings: The arguments of the cache, checked.
        prefix: Beginning of all names.
        shards: Into how many groups the buckets are cut.

    Attributes:
        planes: The hyperplanes, shape (L, dim).
        fingerprint: Hash of the settings, 16 hexadecimal digits.
        shards: Number of groups of buckets.
    """

    def __init__(self, settings: Settings, prefix: str, shards: int) -> None:
        self.planes = hyperplanes(settings.num_hyperplanes, settings.dim, settings.seed)
        agreed = (
            _FORMAT,
            settings.dim,
            settings.metric,
            settings.num_hyperplanes,
            settings.exact_search,
            settings.tag,
            shards,
        )
        digest = hashlib.blake2b(json.dumps(agreed).encode(), digest_size=8)
        digest.update(self.planes.astype("<f4").tobytes())
        self.fingerprint = digest.hexdigest()
        self.shards = shards
        self._prefix = prefix
        self.partition = lru_cache(1024, typed=True)(_partition)

    def shard_of(self, bucket: int) -> int:
        """Return the group that a bucket belongs to."""
        return bucket % self.shards

    def of_shard(self, shard: int) -> list[str]:
        """Return the two keys of a group; they, and its buckets, lie in one slot."""
        return [f"{self._tag(shard)}:state", f"{self._tag(shard)}:changes"]

    def of_bucket(self, bucket: int, partition: str) -> str:
        """Return the key of a bucket of a cache key's entries."""
        return f"{self._tag(self.shard_of(bucket))}:{partition}:{bucket}"

    @staticmethod
    def of_entry(key: Vectors) -> bytes:
        """Return an entry's id; the same for embeddings that are equal, of which -0 and 0 are."""
        return hashlib.blake2b((key + np.float32(0)).tobytes(), digest_size=16).digest()

    def _tag(self, shard: int) -> str:
        """Return how names begin, with what Redis Cluster takes the slot from in braces."""
        return f"{self._prefix}:{{{self.fingerprint}:{shard}}}"


def _partition(key: Hashable) -> str:
    """Return a hash of a cache key, the same in every process.

    Raises:
        ConfigurationError: The key holds a value that has no meaning in another process.
    """
    encoded = json.dumps(encode_key(key), sort_keys=True)
    return hashlib.blake2b(encoded.encode(), digest_size=12).hexdigest()
