"""What the numbers in a key's row of bookkeeping mean, for all kernels."""

from __future__ import annotations

__all__ = ["COLUMNS", "EXPIRES", "FREE", "PARTITION", "SEQUENCE", "SERVES"]

PARTITION = 0
"""Number of the cache key (namespace, filter) that the entry belongs to."""
SERVES = 1
"""The largest k that the entry answers."""
EXPIRES = 2
"""When the entry ends, in nanoseconds of the cache's clock."""
SEQUENCE = 3
"""Number of the insertion; tells one use of the slot from the next."""
COLUMNS = 4

FREE = -1
"""The partition of a slot without an entry."""
