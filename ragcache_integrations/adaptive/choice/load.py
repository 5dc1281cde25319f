"""Reads the free KV memory: from the engine, or from a server's ``/metrics``."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from ragcache_integrations.core.checks import check_int, or_none
from ragcache_integrations.engine.protocol import EngineLoad
from ragcache_integrations.errors import (
    ConfigurationError,
    ServerResponseError,
    ServerTimeoutError,
    ServerUnreachableError,
)

__all__ = ["EngineLoadSource", "LoadSource", "MemoryLoad", "MetricsLoadSource", "read_metrics"]

METRICS_SECONDS = 2.0
MAX_METRICS_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class MemoryLoad:
    """The use of the KV memory at one time.

    Attributes:
        free_tokens: KV memory that a new request could get, in tokens; cached tokens that no
            running request uses count as free.
        total_tokens: Size of the KV memory in tokens.
        running_requests: Number of requests being computed.
        waiting_requests: Number of requests in the queue.
    """

    free_tokens: int
    total_tokens: int
    running_requests: int = 0
    waiting_requests: int = 0

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        return not self.running_requests and not self.waiting_requests


class LoadSource(Protocol):
    """Reports the load. Every method may be called from any thread."""

    def read(self) -> MemoryLoad:
        """Read the load now.

        Raises:
            RAGCacheError: The engine or server is gone, or its answer cannot be read.
        """

    async def aread(self) -> MemoryLoad:
        """Async version of :meth:`read`."""


class Loaded(Protocol):
    """Reports its load, as :class:`~ragcache_integrations.engine.RAGCacheEngine` does."""

    def load(self) -> EngineLoad:
        """Return the load."""

    async def aload(self) -> EngineLoad:
        """Async version of :meth:`load`."""


class EngineLoadSource:
    """Reads the load of an engine that this process started.

    Args:
        engine: A :class:`~ragcache_integrations.engine.RAGCacheEngine`.

    Raises:
        ConfigurationError: ``engine`` reports no load.
    """

    def __init__(self, engine: Loaded) -> None:
        if not hasattr(engine, "load") or not hasattr(engine, "aload"):
            msg = f"engine must have a load(), as RAGCacheEngine has, got {type(engine).__name__}"
            raise ConfigurationError(msg)
        self._engine = engine

    def read(self) -> MemoryLoad:
        """Read the load now."""
        return _of_engine(self._engine.load())

    async def aread(self) -> MemoryLoad:
        """Async version of :meth:`read`."""
        return _of_engine(await self._engine.aload())


def _of_engine(load: EngineLoad) -> MemoryLoad:
    return MemoryLoad(
        load.free_kv_tokens, load.total_kv_tokens, load.running_requests, load.waiting_requests
    )


class MetricsLoadSource:
    """Reads the ``/metrics`` of a vLLM server, with any scheduler.

    ::

        load = MetricsLoadSource("http://localhost:8000/v1").read()
        print(load.free_tokens, load.waiting_requests)

    Args:
        base_url: The server's address, with or without the ``/v1`` of its API.
        total_kv_tokens: Size of its KV cache in tokens; ``None`` to read it from
            ``vllm:cache_config_info``.
        timeout: Seconds to wait for an answer.

    Raises:
        ConfigurationError: An argument cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        total_kv_tokens: int | None = None,
        timeout: float = METRICS_SECONDS,
    ) -> None:
        parts = urlsplit(base_url) if isinstance(base_url, str) else urlsplit("")
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            msg = f"the address must begin with http:// or https://, got {base_url!r}"
            raise ConfigurationError(msg)
        path = re.sub(r"/v1/?$", "", parts.path).rstrip("/")
        self.url = urlunsplit((parts.scheme, parts.netloc, f"{path}/metrics", "", ""))
        self._total = or_none(check_int)(
            "total_kv_tokens", total_kv_tokens, 1, unit="tokens", also="None"
        )
        self._timeout = timeout

    def read(self) -> MemoryLoad:
        """Read the load now.

        Raises:
            ServerUnreachableError: The server cannot be reached.
            ServerTimeoutError: The server did not answer in time.
            ServerResponseError: The answer lacks the metrics of a vLLM server.
        """
        try:
            # The scheme was checked: http or https.
            with urllib.request.urlopen(self.url, timeout=self._timeout) as answer:  # noqa: S310 - see above
                text = answer.read(MAX_METRICS_BYTES).decode(errors="replace")
        except urllib.error.HTTPError as error:
            raise ServerResponseError(f"{self.url} answered {error.code}", error.code) from error
        except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
            if isinstance(getattr(error, "reason", error), TimeoutError):
                msg = f"{self.url} did not answer in {self._timeout:g} s"
                raise ServerTimeoutError(msg) from error
            raise ServerUnreachableError(f"{self.url} cannot be read: {error}") from error
        try:
            return read_metrics(text, self._total)
        except ConfigurationError as error:
            raise ServerResponseError(f"{self.url}: {error}") from error

    async def aread(self) -> MemoryLoad:
        """Async version of :meth:`read`; reads in a thread."""
        return await asyncio.to_thread(self.read)


_SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[^\s]+)", re.MULTILINE
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second until vLLM 0.9
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
CACHE = "vllm:cache_config_info"


def read_metrics(text: str, total_kv_tokens: int | None = None) -> MemoryLoad:
    """Read the load from the metrics of a vLLM server.

    If the server has several engines (data parallelism) the memory is that of the engine with the
    most free, which gets the next request; requests are counted over all engines.

    Args:
        text: The metrics in Prometheus's text format.
        total_kv_tokens: Size of each engine's KV cache in tokens; ``None`` to read that, too.

    Raises:
        ConfigurationError: The metrics lack the usage or the size of the KV cache.
    """
    samples = list(_samples(text))
    usage = [value for name, _, value in samples if name in USAGE]
    total = total_kv_tokens
    if total is None:
        sizes = [
            int(labels["num_gpu_blocks"]) * int(labels["block_size"])
            for name, labels, _ in samples
            if name == CACHE
            and labels.get("num_gpu_blocks", "").isdigit()
            and labels.get("block_size", "").isdigit()
        ]
        total = min(sizes, default=None)
    if not usage or total is None:
        missing = USAGE[0] if not usage else f"{CACHE} with num_gpu_blocks and block_size"
        msg = f"the metrics lack {missing}; pass the size of the cache as total_kv_tokens="
        raise ConfigurationError(msg)
    used = min(max(min(usage), 0.0), 1.0)

    def count(metric: str) -> int:
        return int(sum(value for name, _, value in samples if name == metric))

    return MemoryLoad(int((1 - used) * total), total, count(RUNNING), count(WAITING))


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for match in _SAMPLE.finditer(text):
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if value == value:  # noqa: PLR0124 - not NaN
            yield match["name"], dict(_LABEL.findall(match["labels"] or "")), value
