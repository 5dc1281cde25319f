"""One contract for every eviction policy, and what each does of its own."""

from __future__ import annotations

import pytest

from ragcache_integrations.query_cache.eviction import POLICIES, FIFOEviction, LRUEviction


@pytest.mark.parametrize("policy", POLICIES.values())
class TestContract:
    def test_the_first_inserted_goes_where_none_was_used(self, policy: type[FIFOEviction]) -> None:
        eviction = policy(3)
        for slot in (2, 0, 1):
            eviction.inserted(slot)
        assert eviction.victim() == 2

    def test_an_emptied_slot_starts_anew(self, policy: type[FIFOEviction]) -> None:
        eviction = policy(3)
        for slot in (0, 1, 2, 0):
            eviction.inserted(slot)
        assert eviction.victim() == 1


def test_fifo_ignores_use() -> None:
    eviction = FIFOEviction(2)
    eviction.inserted(0)
    eviction.inserted(1)
    eviction.used(0)
    assert eviction.victim() == 0


def test_lru_spares_what_was_used() -> None:
    eviction = LRUEviction(2)
    eviction.inserted(0)
    eviction.inserted(1)
    eviction.used(0)
    assert eviction.victim() == 1
