"""Looking at what is busy: once for all, and without waiting for it for long."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ragcache_integrations.adaptive.resources import Latest


class Shown:
    """Counts how often it is looked at; shows nothing while it is busy."""

    def __init__(self) -> None:
        self.looks = 0
        self.free = threading.Event()
        self.free.set()

    def __call__(self) -> int:
        self.looks += 1
        number = self.looks
        self.free.wait(20)
        return number


def test_every_look_is_new_where_there_is_time() -> None:
    latest = Latest(Shown(), "test", patience=20)
    assert [latest.get().value for _ in range(3)] == [1, 2, 3]
    assert asyncio.run(latest.aget()).value == 4
    one, other = latest.get(), latest.get()
    assert one.began <= one.ended <= other.began <= other.ended


def test_nobody_looks_again_so_soon() -> None:
    latest = Latest(Shown(), "test", again_after=1000, patience=20)
    assert [latest.get().value for _ in range(3)] == [1, 1, 1]


def test_what_was_seen_last_will_do_while_it_is_busy() -> None:
    shown = Shown()
    latest = Latest(shown, "test", fresh=1000)
    latest.get()
    shown.free.clear()
    seen = [latest.get(), asyncio.run(latest.aget())]  # its loop ends before the look does
    assert [one.value for one in seen] == [1, 1]
    assert shown.looks == 2
    shown.free.set()


def test_what_is_too_old_will_not_do() -> None:
    shown = Shown()
    latest = Latest(shown, "test", patience=0.0, fresh=0.0)
    latest.get()
    shown.free.clear()
    timer = threading.Timer(0.05, shown.free.set)
    timer.start()
    assert latest.get().value == 2
    timer.join()


def test_many_want_to_know_and_one_looks() -> None:
    shown = Shown()
    shown.free.clear()
    latest = Latest(shown, "test")

    async def look() -> list[int]:
        looking = [asyncio.ensure_future(latest.aget()) for _ in range(8)]
        await asyncio.sleep(0)
        looking.pop().cancel()  # whoever gives up leaves the others alone
        shown.free.set()
        return [(await one).value for one in looking]

    assert asyncio.run(look()) == [1] * 7


def test_threads_and_loops_share_their_looks() -> None:
    shown = Shown()
    latest = Latest(shown, "test", patience=20)
    seen: list[int] = []

    def look() -> None:
        for _ in range(50):
            seen.append(latest.get().value)
            seen.append(asyncio.run(latest.aget()).value)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == 800
    assert set(seen) <= set(range(1, shown.looks + 1))


def test_a_defect_is_not_kept_from_whoever_waits() -> None:
    def broken() -> int:
        msg = "broken"
        raise LookupError(msg)

    latest = Latest(broken, "test")
    with pytest.raises(LookupError, match="broken"):
        latest.get()
    with pytest.raises(LookupError, match="broken"):
        asyncio.run(latest.aget())
