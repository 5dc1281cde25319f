"""Two processes share one cache under load, over a store that both change, with no wrong hit."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
import pytest

from .processes import COUNT, SharedStore, run
from .servers import DIM, RealRedis


@pytest.mark.parametrize("killed", [False, True])
def test_two_processes_share_it(own_redis: RealRedis, killed: bool) -> None:
    context = multiprocessing.get_context("spawn")
    lock, together, results = context.RLock(), context.Barrier(2), context.Queue()
    memory = context.RawArray("d", COUNT * (DIM + 1))
    store = SharedStore(memory, lock)
    store.rows[:, 0] = 1
    store.rows[:, 1:] = np.random.default_rng(0).normal(size=(COUNT, DIM))
    common = own_redis.url, memory, lock, together
    other = context.Process(target=run, args=(results, *common, 1, 0.5))
    other.start()
    own = threading.Thread(target=run, args=(results, *common, 2, 0.5))
    own.start()
    while killed and own.is_alive():
        own.join(0.3)
        own_redis.kill()
        own_redis.start()
    found = [results.get(timeout=200) for _ in range(2)]
    own.join()
    other.join()
    for result in found:
        assert result["wrong"] == []
        assert result["hits"] > (20 if killed else 100)
        assert result["proven"] > 0
        assert (result["failed"] > 0) == killed
