"""Watching objects: a toy store for what real ones cannot be told to do."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import logging
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.stores import changes as store_changes
from ragcache_integrations.retrievers.stores.changes import (
    Change,
    StoreMethods,
    unwatch,
    watch,
)

from .listening import Ear, removed, updated


class Shelf:
    """Holds names; its methods call each other, fail and wait as stores' may."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.other: Shelf | None = None
        self.later: list[asyncio.Task[None]] = []

    def add(self, *names: str) -> list[str]:
        self.names |= set(names)
        return list(names)

    def add_each(self, *names: str) -> list[str]:
        return [self.add(name)[0] for name in names]

    def add_to_both(self, *names: str) -> list[str]:
        assert self.other is not None
        self.other.add(*names)
        return self.add(*names)

    def add_some(self, *names: str) -> list[str]:
        self.add(*names)
        raise ConnectionError("gone")

    def add_anyway(self, *names: str) -> list[str]:
        try:
            return self.add_some(*names)
        except ConnectionError:
            return []

    def add_oddly(self, *names: str) -> Any:
        self.add(*names)
        return 5

    def update_something(self) -> None:
        self.names.add("something")

    def remove(self, *names: str) -> None:
        self.names -= set(names)

    def find(self, name: str) -> bool:
        return name in self.names

    def address(self) -> str:
        return "here"

    async def aadd(self, *names: str) -> list[str]:
        await asyncio.sleep(0)
        return self.add(*names)

    async def aadd_all(self, *names: str) -> list[str]:
        found = await asyncio.gather(*[self.aadd(name) for name in names])
        return [one for some in found for one in some]

    async def aadd_later(self, name: str, gate: asyncio.Event) -> list[str]:
        async def later() -> None:
            await gate.wait()
            self.add(name)

        self.later.append(asyncio.create_task(later()))
        return []

    async def aadd_slowly(self, name: str) -> list[str]:
        self.add(name)
        await asyncio.sleep(60)
        return [name]


def ids_of_result(_: Mapping[str, Any], result: Any) -> Sequence[str]:
    return list(result)


ADDING = ("add", "add_each", "add_to_both", "add_oddly", "add_anyway")
SHELF = StoreMethods(
    base="none",
    updates={
        name: ids_of_result for one in ADDING for name in (one, f"a{one}", "aadd_all", "aadd_later")
    },
    removes={"remove": lambda arguments, _: arguments["names"]},
)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def ear(shelf: Shelf) -> Ear:
    ear = Ear()
    watch(shelf, SHELF, ear)
    return ear


class TestCalls:
    def test_what_came_and_went(self, shelf: Shelf, ear: Ear) -> None:
        assert shelf.add("one", "two") == ["one", "two"]
        assert ear.take() == updated("one", "two")
        shelf.remove("one")
        assert ear.take() == removed("one")
        assert shelf.names == {"two"}

    def test_it_is_told_when_it_is_done(self, shelf: Shelf) -> None:
        class Looking:
            seen: Any = None

            def documents_changed(self, change: Change) -> None:
                self.seen = set(shelf.names)

        looking = Looking()
        watch(shelf, SHELF, looking)
        shelf.add("one")
        assert looking.seen == {"one"}

    def test_calls_within_calls_are_told_once(self, shelf: Shelf, ear: Ear) -> None:
        shelf.add_each("one", "two")
        assert ear.take() == updated("one", "two")

    def test_a_call_of_another_store_is_told_to_its_own_listeners(
        self, shelf: Shelf, ear: Ear
    ) -> None:
        other, other_ear = Shelf(), Ear()
        watch(other, SHELF, other_ear)
        shelf.other = other
        shelf.add_to_both("one")
        assert ear.take() == other_ear.take() == updated("one")

    def test_methods_that_only_sound_so_or_not_are_left_alone(self, shelf: Shelf, ear: Ear) -> None:
        assert not shelf.find("one")
        assert shelf.address() == "here"
        assert ear.heard == []

    @pytest.mark.parametrize("change", ["update_something", "add_oddly"])
    def test_what_nobody_knows(self, shelf: Shelf, ear: Ear, change: str) -> None:
        getattr(shelf, change)()
        assert ear.take().unknown

    def test_after_an_exception_nobody_knows(self, shelf: Shelf, ear: Ear) -> None:
        with pytest.raises(ConnectionError):
            shelf.add_some("one")
        assert ear.take().unknown
        assert shelf.add_anyway("two") == []
        assert ear.take().unknown
        shelf.add("three")
        assert ear.take() == updated("three")

    def test_ids_that_are_no_strings(self, shelf: Shelf, ear: Ear) -> None:
        shelf.add(1)  # type: ignore[arg-type]  # the point
        assert ear.take().unknown

    async def test_coroutines(self, shelf: Shelf, ear: Ear) -> None:
        assert await shelf.aadd("one") == ["one"]
        assert ear.take() == updated("one")
        assert ear.threads != [threading.get_ident()]  # the event loop goes on
        await shelf.aadd_all("two", "three")
        assert ear.take() == updated("two", "three")

    async def test_a_task_that_outlives_the_call_that_started_it(
        self, shelf: Shelf, ear: Ear
    ) -> None:
        gate = asyncio.Event()
        await shelf.aadd_later("one", gate)
        assert ear.heard == []
        gate.set()
        await asyncio.gather(*shelf.later)
        assert ear.take() == updated("one")

    async def test_a_cancelled_call(self, shelf: Shelf, ear: Ear) -> None:
        task = asyncio.create_task(shelf.aadd_slowly("one"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ear.take().unknown

    async def test_a_call_that_is_cancelled_while_it_is_told(self, shelf: Shelf) -> None:
        begun, go_on = threading.Event(), threading.Event()

        class Slow(Ear):
            def documents_changed(self, change: Change) -> None:
                begun.set()
                assert go_on.wait(20)
                super().documents_changed(change)

        slow = Slow()
        watch(shelf, SHELF, slow)
        task = asyncio.create_task(shelf.aadd("one"))
        await asyncio.to_thread(begun.wait, 20)
        asyncio.get_running_loop().call_later(0.02, go_on.set)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.heard
        assert all(one == updated("one") for one in slow.heard)

    def test_threads_are_told_apart(self, shelf: Shelf, ear: Ear) -> None:
        names = [f"name {number}" for number in range(200)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(shelf.add_each, names))
        assert sorted(str(one.updated) for one in ear.heard) == sorted(
            str({name}) for name in names
        )

    def test_an_exception_of_a_listener_is_its_own(
        self, shelf: Shelf, ear: Ear, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Deaf:
            def documents_changed(self, change: Change) -> None:
                raise ValueError("what?")

        deaf = Deaf()
        watch(shelf, SHELF, deaf)
        with caplog.at_level(logging.ERROR):
            assert shelf.add("one") == ["one"]
        assert "not followed" in caplog.text
        assert ear.take() == updated("one")


class TestWatching:
    def test_the_object_looks_as_before(self, shelf: Shelf, ear: Ear) -> None:
        assert type(shelf) is Shelf
        assert {Shelf: "here"}[type(shelf)] == "here"
        assert vars(shelf).keys() == vars(Shelf()).keys()
        assert type(shelf).add.__doc__ == Shelf.add.__doc__
        assert Shelf().add("one") == ["one"]
        assert ear.heard == []

    def test_twice_is_once_and_several_hear(self, shelf: Shelf, ear: Ear) -> None:
        kind = type(shelf)
        watch(shelf, SHELF, ear)
        other = Ear()
        watch(shelf, SHELF, other)
        assert type(shelf) is kind
        shelf.add("one")
        assert ear.take() == other.take() == updated("one")

    def test_the_last_one_to_go_leaves_it_as_it_was(self, shelf: Shelf, ear: Ear) -> None:
        other = Ear()
        watch(shelf, SHELF, other)
        unwatch(shelf, ear)
        shelf.add("one")
        assert other.take() == updated("one")
        unwatch(shelf, other)
        unwatch(shelf, other)
        shelf.add("two")
        assert type(shelf) is Shelf
        assert ear.heard == other.heard == []

    def test_methods_that_are_overridden_are_told_once(self) -> None:
        class Marked(Shelf):
            def add(self, *names: str) -> list[str]:
                super().add(*(f"own {name}" for name in names))
                return list(names)

            async def aadd(self, *names: str) -> list[str]:
                await super().aadd(*names)
                return list(names)

        class Twice(Marked):
            def add(self, *names: str) -> list[str]:
                # The rest through the object again: another call of this very method.
                return super().add(names[0]) + (self.add(*names[1:]) if names[1:] else [])

        for kind in (Marked, Twice):
            store, ear, plain = kind(), Ear(), Ear()
            watch(store, SHELF, ear)
            shelf = Shelf()
            watch(shelf, SHELF, plain)
            store.add("one", "two")
            assert ear.take() == updated("one", "two")
            asyncio.run(store.aadd("three"))
            assert ear.take() == updated("three")
            shelf.add("four")
            assert plain.take() == updated("four")
            assert kind().add("five") == ["five"]
            assert not ear.heard

    def test_siblings_of_a_gathering_are_not_within_each_other(
        self, shelf: Shelf, ear: Ear
    ) -> None:
        async def both() -> None:
            await asyncio.gather(shelf.aadd("one"), shelf.aadd("two"))

        asyncio.run(both())
        assert sorted(str(one.updated) for one in ear.heard) == ["{'one'}", "{'two'}"]

    async def test_a_task_that_outlives_an_overriding_method(self) -> None:
        class Later(Shelf):
            def add(self, *names: str) -> list[str]:
                async def later() -> None:
                    await asyncio.sleep(0.01)
                    super(Later, self).add(*names)

                self.later.append(asyncio.create_task(later()))
                return []

        store, ear = Later(), Ear()
        watch(store, SHELF, ear)
        store.add("one")
        assert ear.heard == []
        await asyncio.gather(*store.later)
        assert ear.take() == updated("one")

    def test_a_method_that_was_patched_is_wrapped_at_the_next_watch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Patched(Shelf):
            def add(self, *names: str) -> list[str]:
                return super().add(*names)

        watch(Patched(), SHELF, Ear())
        whole = Patched.add

        @functools.wraps(whole)
        def add(self: Patched, *names: str) -> list[str]:
            return [*whole(self, *names), "more"]

        monkeypatch.setattr(Patched, "add", add)
        store, ear = Patched(), Ear()
        watch(store, SHELF, ear)
        assert store.add("one") == ["one", "more"]
        assert ear.take() == updated("one", "more")
        monkeypatch.undo()
        assert store.add("two") == ["two"]
        assert ear.take() == updated("two")

    def test_watchers_that_come_and_go_while_threads_add(self) -> None:
        class Busy(Shelf):
            pass

        stores = [Busy() for _ in range(8)]
        ears = [Ear() for _ in stores]
        names = [f"name {number}" for number in range(100)]

        def work(place: int) -> None:
            watch(stores[place], SHELF, ears[place])
            for name in names:
                other, passing = Busy(), Ear()
                watch(other, SHELF, passing)
                stores[place].add_each(name)
                other.add(name)
                assert passing.take() == updated(name)
                if len(name) % 2:
                    unwatch(other, passing)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        for ear in ears:
            assert [one.updated for one in ear.heard] == [{name} for name in names]
        kept = len(store_changes._watches)
        stores.clear()
        gc.collect()
        assert len(store_changes._watches) <= kept - 8

    def test_a_method_of_a_watched_class_is_wrapped_once(self, shelf: Shelf, ear: Ear) -> None:
        method = Shelf.add
        watch(Shelf(), SHELF, ear)
        assert Shelf.add is method
        assert pickle.loads(pickle.dumps(Shelf.add)) is method

    def test_it_keeps_no_listener_alive(self, shelf: Shelf) -> None:
        gone = Ear()
        heard = gone.heard
        watch(shelf, SHELF, gone)
        del gone
        gc.collect()
        shelf.add("one")
        assert heard == []

    @pytest.mark.parametrize(
        "copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
    )
    def test_a_copy_is_another_store(
        self, shelf: Shelf, ear: Ear, copied: Callable[[Shelf], Shelf]
    ) -> None:
        shelf.add("one")
        ear.heard.clear()
        twin = copied(shelf)
        assert type(twin) is Shelf
        twin.add("two")
        assert ear.heard == []
        own = Ear()
        watch(twin, SHELF, own)
        twin.add("three")
        assert own.take() == updated("three")
        assert ear.heard == []

    def test_an_object_that_cannot_be_watched(self) -> None:
        class Slots:
            __slots__ = ()

        for one in (Slots(), 5, object()):
            with pytest.raises(ConfigurationError, match="cannot be noticed"):
                watch(one, SHELF, Ear())
