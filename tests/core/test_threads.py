from __future__ import annotations

import contextvars
import threading

import pytest

from ragcache_integrations.core.threads import map_in_threads

TENANT = contextvars.ContextVar("TENANT", default="nobody")
PATIENCE = 60.0


def test_results_have_the_order_of_the_items() -> None:
    second_ended = threading.Event()

    def call(number: int) -> tuple[int, str]:
        if number == 0:
            assert second_ended.wait(PATIENCE)
        if number == 1:
            second_ended.set()
        return number, TENANT.get()

    TENANT.set("alice")
    assert map_in_threads(call, range(5), 2) == [(number, "alice") for number in range(5)]


def test_after_a_failure_nobody_waits_and_nothing_begins() -> None:
    begun: list[int] = []
    end = threading.Event()

    def call(number: int) -> None:
        begun.append(number)
        if number == 0:
            msg = "gone"
            raise OSError(msg)
        end.wait(PATIENCE)

    with pytest.raises(OSError, match="gone"):
        map_in_threads(call, range(9), 2)
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("ragcache-map")]
    assert all(thread.daemon for thread in workers), "the process's end does not wait for them"
    end.set()
    for thread in workers:
        thread.join(PATIENCE)
    assert len(begun) <= 3
