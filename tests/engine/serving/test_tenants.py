from __future__ import annotations

import random

import pytest

from ragcache_integrations.engine.serving.middleware import TenantLimit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def serve(limit: TenantLimit, salt: str, account: bytes = b"") -> int | None:
    seconds = limit.admit(salt, account)
    if seconds is None:
        limit.settle(salt, served=True)
    return seconds


def test_new_tenants_wait_and_known_ones_do_not() -> None:
    clock = Clock()
    limit = TenantLimit(2, clock=clock)
    assert serve(limit, "a") is None
    clock.now = 20.0
    assert serve(limit, "b") is None
    assert serve(limit, "c") == 40
    assert serve(limit, "c") == 40
    assert serve(limit, "a") is None
    clock.now = 59.5
    assert serve(limit, "c") == 1
    clock.now = 60.0
    assert serve(limit, "c") is None
    assert serve(limit, "d") == 20
    assert serve(limit, "c") is None


def test_the_longest_unseen_is_forgotten() -> None:
    clock = Clock()
    limit = TenantLimit(3, known=2, clock=clock)
    for tenant in ("a", "b", "a", "c"):
        assert serve(limit, tenant) is None
    assert serve(limit, "a") is None
    assert serve(limit, "b") == 60


def test_no_limit() -> None:
    limit = TenantLimit(0)
    assert all(serve(limit, str(number)) is None for number in range(1000))
    assert not limit._known


def test_what_was_refused_does_not_count() -> None:
    limit = TenantLimit(2, clock=Clock())
    for number in range(100):
        assert limit.admit(str(number)) is None
        limit.settle(str(number), served=False)
    assert serve(limit, "a") is None
    assert serve(limit, "b") is None
    assert serve(limit, "c") == 60
    assert not limit._pending


def test_it_counts_while_it_is_under_way() -> None:
    limit = TenantLimit(2, clock=Clock())
    assert [limit.admit(salt) for salt in "aabbc"] == [None, None, None, None, 60]
    limit.settle("a", served=False)
    assert limit.admit("c") == 60  # another one of its requests may be served
    limit.settle("a", served=False)
    assert limit.admit("c") is None


@pytest.mark.parametrize("served_first", [True, False])
def test_a_refused_request_does_not_cover_one_that_is_served(*, served_first: bool) -> None:
    limit = TenantLimit(1, clock=Clock())
    assert limit.admit("a") is limit.admit("a") is None
    limit.settle("a", served=served_first)
    limit.settle("a", served=not served_first)
    assert limit.admit("b") == 60
    assert limit.admit("a") is None


def test_a_request_that_takes_minutes() -> None:
    clock = Clock()
    limit = TenantLimit(1, clock=clock)
    assert limit.admit("a") is None
    clock.now = 60.0
    assert serve(limit, "b") is None
    limit.settle("a", served=False)
    assert serve(limit, "c") == 60


def test_each_key_has_its_own_minute() -> None:
    limit = TenantLimit(1, clock=Clock())
    assert serve(limit, "a", b"key") is None
    assert serve(limit, "b", b"key") == 60
    assert serve(limit, "b", b"another key") is None
    assert serve(limit, "b", b"key") is None  # known by now


def test_threads_of_salts_leave_nothing_behind() -> None:
    """Any order of admitting and settling counts exactly the salts that were served."""
    draw = random.Random(0)
    for _ in range(200):
        limit = TenantLimit(3, clock=Clock())
        open_requests: list[str] = []
        served: set[str] = set()
        for _ in range(60):
            if open_requests and draw.random() < 0.5:
                salt = open_requests.pop(draw.randrange(len(open_requests)))
                good = draw.random() < 0.3
                limit.settle(salt, served=good)
                served |= {salt} if good else set()
            elif limit.admit(salt := draw.choice("abcdefgh")) is None:
                open_requests.append(salt)
            assert len(limit._entered[b""]) == len(served | set(open_requests)) <= 3
        for salt in open_requests:
            limit.settle(salt, served=False)
        assert set(limit._pending) == set()
        assert len(limit._known) == len(limit._entered[b""]) == len(served)
