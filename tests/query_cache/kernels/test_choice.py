"""Which kernels are used, and what is compiled when."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np

from ragcache_integrations.query_cache import QueryCache
from ragcache_integrations.query_cache.kernels import compiled as _compiled
from tests.query_cache.reference import Store, candidates


class TestWhichKernels:
    def test_nothing_is_compiled_for_an_array_of_another_kind(self) -> None:
        """Whoever brings a list, a read-only array or a view waits for no compiler."""
        store = Store("l2", {str(n): np.array([n, 1, 0], np.float32) for n in range(5)})
        cache = QueryCache[str](3, 10, math.inf, vectors=store.read, rerank_factor=2)

        def use(query: Any) -> None:
            cache.insert(query, candidates(["0", "3"]))
            assert cache.lookup([*np.asarray(query)[:2], 0.5], 1) is not None
            assert cache.lookup(query, 1) is not None
            assert cache.explain(query, 1).hit
            assert cache.fetch_count(1, query) == 2
            assert cache.lookup_batch([query], 1) != [None]
            assert cache.delete(query)

        def compiled() -> dict[str, int]:
            kernels = {name: getattr(_compiled, name) for name in _compiled.__all__}
            return {
                name: len(kernel.signatures)
                for name, kernel in kernels.items()
                if hasattr(kernel, "signatures")
            }

        plain = np.array([1.0, 2.0, 0.5], dtype=np.float32)
        use(plain)
        before = compiled()
        read_only = plain.copy()
        read_only.flags.writeable = False
        for query in (
            read_only,
            np.array([1, 9, 2, 9, 0.5], dtype=np.float32)[::2],
            plain.astype(np.float64),
            plain.astype(np.float16),
            plain.astype(">f4"),
            plain.tolist(),
            np.frombuffer(b"\0" + plain.tobytes(), dtype=np.uint8)[1:].view(np.float32),
        ):
            use(query)
        batch = np.tile(plain, (4, 1))
        frozen = batch.copy()
        frozen.flags.writeable = False
        for queries in (batch[::2], batch.T.copy().T, frozen, batch.astype(np.float64)):
            cache.lookup_batch(queries, 1)
        assert compiled() == before

    def test_a_cache_works_where_numba_is_missing(self) -> None:
        """And where it is there, importing the package does not import it."""
        script = (
            "import sys\n"
            "import ragcache_integrations.query_cache as q\n"
            "assert 'numba' not in sys.modules\n"
            "sys.modules['numba'] = None\n"
            "cache = q.QueryCache(2, 10, 0.5)\n"
            "cache.insert([1, 0], [q.Candidate('a', 'text')])\n"
            "print(cache.lookup([1, 0.25], 1), cache._kernels.__name__)\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "distance=0.25" in done.stdout
        assert done.stdout.endswith("query_cache.kernels.plain\n")
