"""The pool of prefills while other requests leave it."""

from __future__ import annotations

import threading

from ragcache_integrations.speculation.pool import PrefillPool


def test_a_request_that_the_collector_ends_leaves_in_the_midst_of_anything() -> None:
    class Collecting(PrefillPool):
        """A pool in whose midst the collector runs, once."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_size" and value == 2:
                self.leave()

    pool = Collecting()
    assert pool.enter()
    entering = threading.Thread(target=pool.enter, daemon=True)
    entering.start()
    entering.join(30)
    assert not entering.is_alive()
    assert (len(pool), pool.departures) == (1, 1)
