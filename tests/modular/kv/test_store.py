from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.policies import POLICIES
from ragcache_modular.kv.store import ModuleStore


def use(store: ModuleStore[str], key: str, size: int = 10, seconds: float = 0.0) -> str:
    def make() -> str:
        time.sleep(seconds)
        return f"value of {key}"

    with store.lease(key, key, size, 1, make) as value:
        return value


def held(store: ModuleStore[str], keys: str) -> str:
    return "".join(key for key in keys if store.holds(key))


def test_a_value_is_made_once() -> None:
    store: ModuleStore[str] = ModuleStore(100)
    assert use(store, "a") == use(store, "a") == "value of a"
    stats = store.stats()
    assert (stats.hits, stats.misses, stats.modules, stats.held_bytes) == (1, 1, 1, 10)
    assert stats.pinned == 0


def test_lru_lets_the_longest_unused_go() -> None:
    store: ModuleStore[str] = ModuleStore(30, "lru")
    for key in "abcad":
        use(store, key)
    assert held(store, "abcd") == "acd"
    assert store.stats().evictions == 1


def test_lfu_lets_the_least_used_go_and_remembers_what_went() -> None:
    store: ModuleStore[str] = ModuleStore(30, "lfu")
    for key in "aaabbc":
        use(store, key)
    use(store, "d")
    assert held(store, "abcd") == "abd"
    use(store, "c")  # its second use counts, d has one
    assert held(store, "abcd") == "abc"


def test_gdsf_lets_age_win_over_frequency_in_the_end() -> None:
    store: ModuleStore[str] = ModuleStore(20, "gdsf")
    for key in "aaaa":
        use(store, key)
    for key in "bcdefg":
        use(store, key)
    assert not store.holds("a")


def test_pgdsf_keeps_what_is_dear_to_make() -> None:
    store: ModuleStore[str] = ModuleStore(20, "pgdsf")
    use(store, "dear", seconds=0.05)
    use(store, "cheap")
    use(store, "other")
    assert store.holds("dear")
    assert not store.holds("cheap")


def test_a_value_in_use_stays() -> None:
    store: ModuleStore[str] = ModuleStore(20, "lru")
    with store.lease("a", "a", 10, 1, lambda: "a"):
        for key in "bcd":
            use(store, key)
        assert held(store, "abcd") == "ad"
        store.clear()
        assert held(store, "abcd") == "a"
        assert store.stats().pinned == 1
    use(store, "e")
    use(store, "f")
    assert held(store, "aef") == "ef"


def test_who_finds_no_room_waits_until_there_is_some() -> None:
    store: ModuleStore[str] = ModuleStore(10)
    entered = threading.Event()

    def enter() -> None:
        use(store, "b")
        entered.set()

    with store.lease("a", "a", 10, 1, lambda: "a"):
        waiting = threading.Thread(target=enter)
        waiting.start()
        assert not entered.wait(0.05)
        assert held(store, "ab") == "a"
    assert entered.wait(10)
    waiting.join()
    assert held(store, "ab") == "b"


@pytest.mark.parametrize("key", ["a", "b"], ids=["made by another", "no room"])
def test_who_waits_may_give_up(key: str) -> None:
    store: ModuleStore[str] = ModuleStore(10)
    begun, go_on = threading.Event(), threading.Event()

    def make() -> str:
        begun.set()
        assert go_on.wait(10)
        return "a"

    def hold() -> None:
        with store.lease("a", "a", 10, 1, make):
            pass

    def never() -> str:
        msg = "it has neither room nor leave"
        raise AssertionError(msg)

    def give_up() -> None:
        raise TimeoutError

    maker = threading.Thread(target=hold)
    maker.start()
    assert begun.wait(10)
    with pytest.raises(TimeoutError), store.lease(key, key, 10, 1, never, give_up):
        pass
    go_on.set()
    maker.join()
    assert held(store, "ab") == "a"
    assert store.stats().pinned == 0


def test_clearing_forgets_what_went_too() -> None:
    store: ModuleStore[str] = ModuleStore(10, "lfu")
    for _ in range(3):
        use(store, "a")
    use(store, "b")
    assert store._gone
    store.clear()
    assert not store._gone
    assert held(store, "ab") == ""


def test_larger_than_the_store_is_refused_before_it_is_made() -> None:
    store: ModuleStore[str] = ModuleStore(10)

    def never() -> str:
        raise AssertionError

    with (
        pytest.raises(ConfigurationError, match="'m' takes 11 bytes, the whole store has 10"),
        store.lease("m", "m", 11, 1, never),
    ):
        pass
    assert store.stats().misses == 0


def test_a_failure_reaches_its_maker_and_the_next_one_tries() -> None:
    store: ModuleStore[str] = ModuleStore(10)
    making, go = threading.Event(), threading.Event()
    outcomes: list[object] = []

    def fail() -> str:
        making.set()
        go.wait(10)
        raise OSError

    def first() -> None:
        try:
            with store.lease("a", "a", 10, 1, fail):
                outcomes.append("entered")
        except OSError as error:
            outcomes.append(error)

    maker = threading.Thread(target=first)
    maker.start()
    making.wait(10)
    second = threading.Thread(target=lambda: outcomes.append(use(store, "a")))
    second.start()
    go.set()
    maker.join()
    second.join()
    assert sorted(map(str, outcomes)) == ["", "value of a"]
    assert store.stats().held_bytes == 10


@pytest.mark.parametrize("policy", POLICIES)
@given(
    capacity=st.integers(5, 40),
    uses=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 5)), max_size=60),
)
def test_it_never_holds_more_than_it_may(
    policy: str, capacity: int, uses: list[tuple[str, int]]
) -> None:
    store: ModuleStore[str] = ModuleStore(capacity, policy)
    sizes = dict(reversed(uses))  # a key's size never changes
    for key, _ in uses:
        use(store, key, sizes[key])
        stats = store.stats()
        assert store.holds(key)
        assert stats.held_bytes == sum(sizes[siz] for siz in set(sizes) if store.holds(siz))
        assert stats.held_bytes <= capacity
        assert stats.modules == stats.misses - stats.evictions


def test_many_threads_break_nothing() -> None:  # noqa: C901 - one world with its threads
    """Little room, values of many sizes, failures in between, and clearing."""
    store: ModuleStore[list[str]] = ModuleStore(60)
    sizes = {chr(ord("a") + number): 5 + 3 * number for number in range(12)}
    using: Counter[str] = Counter()
    making: Counter[str] = Counter()
    lock = threading.Lock()
    wrong: list[str] = []

    def maker(key: str, *, fails: bool) -> Callable[[], list[str]]:
        def make() -> list[str]:
            with lock:
                making[key] += 1
                if making[key] > 1 or using[key]:
                    wrong.append(f"{key} is made while it is there")
            time.sleep(0.0005)
            with lock:
                making[key] -= 1
            if fails:
                raise OSError
            return [key]

        return make

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(150):
            key = dice.choice(list(sizes))
            make = maker(key, fails=dice.random() < 0.1)
            try:
                with store.lease(key, key, sizes[key], 1, make) as value:
                    with lock:
                        using[key] += 1
                        in_use = sum(sizes[one] for one, users in using.items() if users)
                    if in_use > 60:
                        wrong.append(f"{in_use} bytes in use")
                    time.sleep(0.0002)
                    if value != [key] or not store.holds(key):
                        wrong.append(f"{key} went while in use")
                    with lock:
                        using[key] -= 1
            except OSError:
                pass
            if dice.random() < 0.02:
                store.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    stats = store.stats()
    assert stats.pinned == 0
    assert stats.held_bytes == sum(size for key, size in sizes.items() if store.holds(key)) <= 60


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, None, "1"])
def test_room_must_be_a_number_of_bytes(capacity: object) -> None:
    with pytest.raises(ConfigurationError, match="whole number"):
        ModuleStore(capacity)  # type: ignore[arg-type] # that is the test


def test_policies_are_those_of_the_tree() -> None:
    with pytest.raises(ConfigurationError, match="pgdsf, gdsf, lru, lfu"):
        ModuleStore(1, "fifo")
