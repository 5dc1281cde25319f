"""Two processes share answers, while the documents change that both find."""

from __future__ import annotations

import multiprocessing

from tests.query_cache.redis.servers import redis_server

from .processes import OPERATIONS, TOPICS, run


def test_two_processes_share_hits_and_serve_no_changed_document() -> None:
    context = multiprocessing.get_context("spawn")
    results, together = context.Queue(), context.Barrier(2)
    versions = context.RawArray("q", len(TOPICS))
    with redis_server() as server:
        workers = [
            context.Process(target=run, args=(results, server.url, versions, together))
            for _ in range(2)
        ]
        for worker in workers:
            worker.start()
        reports = [results.get(timeout=200) for _ in workers]
        for worker in workers:
            worker.join()
    for report in reports:
        assert report["wrong"] == []
        assert report["failed"] == 0
        assert report["hits"] > OPERATIONS // 2
    # Each alone would have had to answer for every topic, content and tenant that it came upon.
    assert sum(report["insertions"] for report in reports) < 2 * len(TOPICS) * 4 * 2
