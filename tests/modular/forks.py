"""Forks while modules are made: ``python -m tests.modular.forks``."""

from __future__ import annotations

import sys
import threading

from ragcache_modular.kv.store import ModuleStore
from tests.support.forking import Hammer, in_child

CHILDREN = 30


def lease(store: ModuleStore[int], number: int) -> int:
    with store.lease(number, f"module {number}", 10, 1, lambda: number) as value:
        return value


def from_threads() -> None:
    """Forks at any moment; a child uses what is there and makes the rest."""
    store: ModuleStore[int] = ModuleStore(100)

    def work() -> None:
        assert store.stats().pinned == 0
        for number in range(30):
            assert lease(store, number) == number
        stats = store.stats()
        assert stats.held_bytes == 10 * stats.modules == 100

    with Hammer(lambda n: lease(store, n % 20), lambda n: lease(store, n % 13)):
        for _ in range(CHILDREN):
            in_child(work)


def while_making() -> None:
    """A module that a thread of the parent is making, in all the room there is."""
    store: ModuleStore[int] = ModuleStore(10)
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> int:
        begun.set()
        go_on.wait()
        return 7

    def make() -> None:
        with store.lease(7, "seven", 10, 1, slowly):
            pass

    making = threading.Thread(target=make)
    making.start()
    begun.wait()

    def work() -> None:
        assert lease(store, 7) == 7
        assert lease(store, 8) == 8

    try:
        in_child(work)
    finally:
        go_on.set()
        making.join()
    assert store.holds(7)


def within_a_lease() -> None:
    """The thread that forks uses a module, and makes another one."""
    store: ModuleStore[int] = ModuleStore(10)

    def fail() -> int:
        in_child(work)
        raise LookupError

    def work() -> None:
        assert lease(store, 1) == 1

    with store.lease(1, "one", 10, 1, lambda: 1):
        in_child(work)
    try:
        with store.lease(2, "two", 10, 1, fail):
            pass
    except LookupError:
        pass
    assert store.stats().held_bytes == 0


if __name__ == "__main__":
    from_threads()
    while_making()
    within_a_lease()
    sys.stdout.write("done\n")
