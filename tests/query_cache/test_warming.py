from __future__ import annotations

import subprocess
import sys

import numpy as np

from ragcache_integrations.query_cache import Candidate, QueryCache, kernels
from ragcache_integrations.query_cache.warming import start_warm_up, warm_up


def test_once_in_a_process_and_in_the_background() -> None:
    thread = start_warm_up()
    assert start_warm_up() is thread
    assert thread.daemon
    thread.join()


def test_what_a_question_needs_is_compiled_by_it() -> None:
    warm_up()
    compiled = kernels.kernels()
    signatures = {
        name: len(getattr(compiled, name).signatures)
        for name in ("nearest", "rank", "prepare", "neighbours")
    }
    cache = QueryCache[str](8, 4, 1.0, vectors=lambda ids: np.eye(8, dtype=np.float32)[: len(ids)])
    cache.insert(np.eye(8)[0], [Candidate("a", "a"), Candidate("b", "b")])
    assert cache.lookup(np.eye(8)[0] + 0.1, 1) is not None
    assert signatures == {name: len(getattr(compiled, name).signatures) for name in signatures}


def test_a_process_ends_while_it_is_under_way() -> None:
    code = "from ragcache_integrations.query_cache.warming import start_warm_up; start_warm_up()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=300, check=True
    )
    assert done.stderr == b""
