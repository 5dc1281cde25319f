from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from ragcache_integrations.core.single_flight import SingleFlight


@pytest.fixture
def workers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


class Shop:
    """Makes a value when told to, and keeps it; notes how often it was made."""

    def __init__(self) -> None:
        self.value: str | None = None
        self.made = 0
        self.may_go_on = threading.Event()
        self.begun = threading.Event()
        self.error: BaseException | None = None

    def find(self) -> str | None:
        return self.value

    def make(self) -> str:
        self.made += 1
        self.begun.set()
        assert self.may_go_on.wait(20)
        return self.finish()

    async def amake(self) -> str:
        self.made += 1
        self.begun.set()
        while not self.may_go_on.is_set():  # noqa: ASYNC110 - set by other threads, too
            await asyncio.sleep(0.001)
        return self.finish()

    def finish(self) -> str:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.value = f"made {self.made}"
        return self.value


def waiting_for(flights: SingleFlight[str], count: int) -> None:
    """Wait until that many threads wait for the flight under way."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for flight in list(flights._flights.values()):
            # A thread that waits for a Future waits on its condition.
            result = flight.result
            if result is not None and len(result._condition._waiters) >= count:  # type: ignore[attr-defined]  # no public way to see it
                return
        time.sleep(0.001)
    raise TimeoutError


async def settled() -> None:
    """Let every coroutine come to where it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


class TestThreads:
    def test_many_ask_and_one_works(
        self, workers: ThreadPoolExecutor, threads: ThreadPoolExecutor
    ) -> None:
        shop, flights = Shop(), SingleFlight[str](workers)
        asked = [threads.submit(flights.do, "key", shop.find, shop.make) for _ in range(8)]
        waiting_for(flights, 7)
        shop.may_go_on.set()
        answers = [one.result(20) for one in asked]
        assert {value for value, _ in answers} == {"made 1"}
        assert sorted(role for _, role in answers) == ["joined"] * 7 + ["led"]
        assert flights.do("key", shop.find, shop.make) == ("made 1", "found")
        assert flights._flights == {}

    def test_other_keys_do_not_wait(
        self, workers: ThreadPoolExecutor, threads: ThreadPoolExecutor
    ) -> None:
        slow, quick, flights = Shop(), Shop(), SingleFlight[str](workers)
        first = threads.submit(flights.do, "slow", slow.find, slow.make)
        slow.begun.wait(20)
        quick.may_go_on.set()
        assert flights.do("quick", quick.find, quick.make) == ("made 1", "led")
        assert not first.done()
        slow.may_go_on.set()

    def test_who_finds_a_value_waits_for_nobody(self, workers: ThreadPoolExecutor) -> None:
        shop, flights = Shop(), SingleFlight[str](workers)
        shop.value = "there"
        with flights._lock:
            assert flights.do("key", shop.find, shop.make) == ("there", "found")

    def test_a_value_that_came_after_the_first_look_is_found(
        self, workers: ThreadPoolExecutor
    ) -> None:
        shop, flights = Shop(), SingleFlight[str](workers)
        shop.may_go_on.set()
        looks = 0

        def find() -> str | None:
            nonlocal looks
            looks += 1
            found = shop.value
            if looks == 1:  # another one makes it just now
                flights.do("key", shop.find, shop.make)
            return found

        assert flights.do("key", find, shop.make) == ("made 1", "found")
        assert (looks, shop.made) == (2, 1)
        assert flights.do("other key", lambda: None, lambda: "other") == ("other", "led")

    def test_one_look_is_enough_where_nothing_ended_meanwhile(
        self, workers: ThreadPoolExecutor
    ) -> None:
        looks: list[None] = []
        flights = SingleFlight[str](workers)
        assert flights.do("key", lambda: looks.append(None), lambda: "made") == ("made", "led")
        assert len(looks) == 1

    def test_an_error_goes_to_all_who_waited_and_the_next_tries_anew(
        self, workers: ThreadPoolExecutor, threads: ThreadPoolExecutor
    ) -> None:
        shop, flights = Shop(), SingleFlight[str](workers)
        shop.error = ConnectionError("gone")
        asked = [threads.submit(flights.do, "key", shop.find, shop.make) for _ in range(4)]
        waiting_for(flights, 3)
        shop.may_go_on.set()
        assert [str(one.exception(20)) for one in asked] == ["gone"] * 4
        assert shop.made == 1
        assert flights.do("key", shop.find, shop.make) == ("made 2", "led")

    def test_who_waited_for_an_interrupted_one_tries_anew(
        self, workers: ThreadPoolExecutor, threads: ThreadPoolExecutor
    ) -> None:
        shop, flights = Shop(), SingleFlight[str](workers)
        shop.error = KeyboardInterrupt()
        asked = [threads.submit(flights.do, "key", shop.find, shop.make) for _ in range(4)]
        waiting_for(flights, 3)
        shop.may_go_on.set()
        ends = [one.exception(20) or one.result() for one in asked]
        assert [type(end) for end in ends].count(KeyboardInterrupt) == 1
        assert [end[0] for end in ends if isinstance(end, tuple)] == ["made 2"] * 3
        assert shop.made == 2


@pytest.mark.parametrize("native", [False, True], ids=["thread", "coroutine"])
class TestCoroutines:
    async def test_many_ask_and_one_works(self, workers: ThreadPoolExecutor, native: bool) -> None:
        shop, flights = Shop(), SingleFlight[str](workers)
        asked = [asyncio.create_task(ask(flights, shop, native)) for _ in range(50)]
        await settled()
        shop.may_go_on.set()
        answers = await asyncio.gather(*asked)
        assert {value for value, _ in answers} == {"made 1"}
        assert sorted(role for _, role in answers) == ["joined"] * 49 + ["led"]
        assert await ask(flights, shop, native) == ("made 1", "found")

    async def test_an_error_goes_to_all_who_waited(
        self, workers: ThreadPoolExecutor, native: bool
    ) -> None:
        shop, flights = Shop(), SingleFlight[str](workers)
        shop.error = ConnectionError("gone")
        asked = [asyncio.create_task(ask(flights, shop, native)) for _ in range(5)]
        await settled()
        shop.may_go_on.set()
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(end) for end in ends] == ["gone"] * 5
        assert await ask(flights, shop, native) == ("made 2", "led")

    async def test_a_cancelled_leader_takes_nothing_from_the_others(
        self, workers: ThreadPoolExecutor, native: bool
    ) -> None:
        shop, flights = Shop(), SingleFlight[str](workers)
        leader, *others = [asyncio.create_task(ask(flights, shop, native)) for _ in range(5)]
        await settled()
        leader.cancel()
        others[0].cancel()
        await settled()
        assert leader.cancelled()
        assert others[0].cancelled()
        shop.may_go_on.set()
        assert await asyncio.gather(*others[1:]) == [("made 1", "joined")] * 3
        assert shop.made == 1

    async def test_an_error_of_cancellation_from_within_ends(
        self, workers: ThreadPoolExecutor, native: bool
    ) -> None:
        shop, flights = Shop(), SingleFlight[str](workers)
        shop.error = asyncio.CancelledError("by the store itself")
        shop.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(ask(flights, shop, native), 20)
        assert await ask(flights, shop, native) == ("made 2", "led")


async def ask(flights: SingleFlight[str], shop: Shop, native: bool) -> tuple[str, str]:
    return await flights.ado("key", shop.find, shop.make, shop.amake if native else None)


async def test_when_the_last_is_cancelled_so_is_the_coroutine(workers: ThreadPoolExecutor) -> None:
    shop, flights = Shop(), SingleFlight[str](workers)
    asked = [asyncio.create_task(ask(flights, shop, native=True)) for _ in range(3)]
    await settled()
    (flight,) = flights._flights.values()
    for one in asked:
        one.cancel()
    await asyncio.wait(asked)
    await settled()
    assert flight.task is not None
    assert flight.task.cancelled()
    assert flights._flights == {}


async def test_work_in_a_thread_outlives_its_cancelled_callers(workers: ThreadPoolExecutor) -> None:
    shop, flights = Shop(), SingleFlight[str](workers)
    only = asyncio.create_task(ask(flights, shop, native=False))
    await settled()
    only.cancel()
    await asyncio.wait([only])
    later = asyncio.create_task(ask(flights, shop, native=False))
    await settled()
    shop.may_go_on.set()
    assert await later == ("made 1", "joined")


async def test_threads_and_coroutines_share_work_in_a_thread(
    workers: ThreadPoolExecutor, threads: ThreadPoolExecutor
) -> None:
    shop, flights = Shop(), SingleFlight[str](workers)
    first = asyncio.create_task(ask(flights, shop, native=False))
    await settled()
    blocking = [threads.submit(flights.do, "key", shop.find, shop.make) for _ in range(4)]
    await asyncio.to_thread(waiting_for, flights, 4)
    native = asyncio.create_task(ask(flights, shop, native=True))
    await settled()
    shop.may_go_on.set()
    assert await first == ("made 1", "led")
    assert await native == ("made 1", "joined")
    assert [one.result(20) for one in blocking] == [("made 1", "joined")] * 4


async def test_a_thread_never_waits_for_a_coroutine(workers: ThreadPoolExecutor) -> None:
    """Here it is the loop's own thread: waiting would be for ever."""
    shop, flights = Shop(), SingleFlight[str](workers)
    coroutine = asyncio.create_task(ask(flights, shop, native=True))
    await settled()
    shop.may_go_on.set()
    assert flights.do("key", shop.find, shop.make) == ("made 2", "led")
    await coroutine


def in_new_loop(run: Callable[[], None]) -> None:
    done: Future[None] = Future()

    def target() -> None:
        try:
            run()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=target, daemon=True).start()
    done.result(20)


@pytest.mark.parametrize("native", [False, True], ids=["thread", "coroutine"])
def test_a_loop_closed_under_its_coroutines_harms_no_other(
    workers: ThreadPoolExecutor, native: bool
) -> None:
    shop, flights = Shop(), SingleFlight[str](workers)
    doomed = asyncio.new_event_loop()
    waiting = [doomed.create_task(ask(flights, shop, native)) for _ in range(3)]
    doomed.run_until_complete(settled())
    doomed.close()
    shop.may_go_on.set()
    answer: tuple[str, str] | None = None

    def survive() -> None:
        nonlocal answer
        answer = asyncio.run(ask(flights, shop, native))

    in_new_loop(survive)
    assert answer is not None
    assert answer[0].startswith("made")
    assert flights.do("key", shop.find, shop.make)[1] == "found"
    assert flights._flights == {}
    # asyncio logs that the tasks never ended; nothing else may come of it.
    del waiting, doomed
    gc.collect()


def test_a_hammer_of_threads_and_loops_makes_each_value_once(workers: ThreadPoolExecutor) -> None:
    flights, lock = SingleFlight[int](workers), threading.Lock()
    values: dict[int, int] = {}
    made: list[int] = []

    def make(key: int) -> int:
        time.sleep(0.0005)
        with lock:
            made.append(key)
            values[key] = -key
        return -key

    def blocking() -> None:
        for key in range(60):
            assert flights.do(key, partial(values.get, key), partial(make, key))[0] == -key

    async def one(key: int) -> None:
        answer, _ = await flights.ado(key, partial(values.get, key), partial(make, key))
        assert answer == -key

    async def many() -> None:
        await asyncio.gather(*[one(key) for key in range(60) for _ in range(3)])

    with ThreadPoolExecutor(8) as pool:
        ends = [pool.submit(blocking) for _ in range(5)]
        ends += [pool.submit(asyncio.run, many()) for _ in range(3)]
        for end in ends:
            end.result(60)
    assert sorted(made) == list(range(60))
