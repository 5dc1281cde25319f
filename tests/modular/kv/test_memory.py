"""The buffers of keys and values that are used again."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ragcache_modular.kv import memory as module
from ragcache_modular.kv.memory import BufferPool


def test_a_buffer_that_the_collector_frees_is_given_back_in_the_midst_of_anything(
    monkeypatch: Any,
) -> None:
    pool = BufferPool(1, 1, 4, torch.float32, torch.device("cpu"))
    dropped, kept = [pool.borrow(10)], pool.borrow(5000)
    size = module._tokens_of

    def tokens_of(buffer: torch.Tensor) -> int:
        if dropped:  # the collector runs, once
            pool.give_back(dropped.pop())
        return size(buffer)

    monkeypatch.setattr(module, "_tokens_of", tokens_of)
    giving = threading.Thread(target=pool.give_back, args=(kept,), daemon=True)
    giving.start()
    giving.join(30)
    assert not giving.is_alive()
    assert pool.borrow(5000) is kept
