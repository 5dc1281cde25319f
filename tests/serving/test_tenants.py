from __future__ import annotations

from ragcache_integrations.engine.serving.tenants import TenantLimit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_new_tenants_wait_and_known_ones_do_not() -> None:
    clock = Clock()
    limit = TenantLimit(2, clock=clock)
    assert limit.admit("a") is None
    clock.now = 20.0
    assert limit.admit("b") is None
    assert limit.admit("c") == 40
    assert limit.admit("c") == 40
    assert limit.admit("a") is None
    clock.now = 59.5
    assert limit.admit("c") == 1
    clock.now = 60.0
    assert limit.admit("c") is None
    assert limit.admit("d") == 20
    assert limit.admit("c") is None


def test_the_longest_unseen_is_forgotten() -> None:
    clock = Clock()
    limit = TenantLimit(3, known=2, clock=clock)
    for tenant in ("a", "b", "a", "c"):
        assert limit.admit(tenant) is None
    assert limit.admit("a") is None
    assert limit.admit("b") == 60


def test_no_limit() -> None:
    limit = TenantLimit(0)
    assert all(limit.admit(str(number)) is None for number in range(1000))
    assert not limit._known
