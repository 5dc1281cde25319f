"""Where the free KV memory is read: the engine, a server's ``/metrics``, or nowhere."""

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

from ragcache_integrations.engine.generation import EngineLoad
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
    """How busy the memory is now.

    Attributes:
        free_tokens: KV memory that a new request could get, in tokens; what is cached but used by
            no running request counts as free.
        total_tokens: The whole KV memory.
        running_requests: Requests being computed.
        waiting_requests: Requests in the queue.
    """

    free_tokens: int
    total_tokens: int
    running_requests: int = 0
    waiting_requests: int = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.running_requests and not self.waiting_requests


class LoadSource(Protocol):
    """Tells the load. Every method may be called from any thread."""

    def read(self) -> MemoryLoad:
        """Read the load now.

        Raises:
            RAGCacheError: Whoever knows it is gone, or answers nonsense.
        """

    async def aread(self) -> MemoryLoad:
        """The async twin of :meth:`read`."""


class Loaded(Protocol):
    """What tells its load, as :class:`~ragcache_integrations.engine.RAGCacheEngine` does."""

    def load(self) -> EngineLoad:
        """Tell the load."""

    async def aload(self) -> EngineLoad:
        """Tell the load without blocking the event loop."""


class EngineLoadSource:
    """Asks an engine of this process.

    Args:
        engine: A :class:`~ragcache_integrations.engine.RAGCacheEngine`.
    """

    def __init__(self, engine: Loaded) -> None:
        if not hasattr(engine, "load") or not hasattr(engine, "aload"):
            msg = (
                f"engine must tell its load(), as RAGCacheEngine does, got {type(engine).__name__}"
            )
            raise ConfigurationError(msg)
        self._engine = engine

    def read(self) -> MemoryLoad:
        """Ask the engine."""
        return _of_engine(self._engine.load())

    async def aread(self) -> MemoryLoad:
        """Ask the engine without blocking the event loop."""
        return _of_engine(await self._engine.aload())


def _of_engine(load: EngineLoad) -> MemoryLoad:
    return MemoryLoad(
        load.free_kv_tokens, load.total_kv_tokens, load.running_requests, load.waiting_requests
    )


class MetricsLoadSource:
    """Reads the ``/metrics`` of a vLLM server, whichever scheduler it runs.

    Args:
        base_url: The server's address; the ``/v1`` of its API may be there.
        total_kv_tokens: Room of its KV cache, in tokens; ``None`` to read it from
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
        if total_kv_tokens is not None and (
            isinstance(total_kv_tokens, bool)
            or not isinstance(total_kv_tokens, int)
            or total_kv_tokens < 1
        ):
            msg = f"total_kv_tokens must be at least 1, got {total_kv_tokens!r}"
            raise ConfigurationError(msg)
        path = re.sub(r"/v1/?$", "", parts.path).rstrip("/")
        self.url = urlunsplit((parts.scheme, parts.netloc, f"{path}/metrics", "", ""))
        self._total = total_kv_tokens
        self._timeout = timeout

    def read(self) -> MemoryLoad:
        """Ask the server.

        Raises:
            ServerUnreachableError: It is not there.
            ServerTimeoutError: It did not answer in time.
            ServerResponseError: Its answer lacks what a vLLM server says.
        """
        try:
            # The scheme was checked: http or https.
            with urllib.request.urlopen(self.url, timeout=self._timeout) as answer:  # noqa: S310 - see above
                text = answer.read(MAX_METRICS_BYTES).decode(errors="replace")
        except urllib.error.HTTPError as error:
            msg = f"{self.url} answered {error.code}"
            raise ServerResponseError(msg, error.code) from error
        except TimeoutError as error:
            msg = f"{self.url} did not answer in {self._timeout:g} s"
            raise ServerTimeoutError(msg) from error
        except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
            if isinstance(getattr(error, "reason", None), TimeoutError):
                msg = f"{self.url} did not answer in {self._timeout:g} s"
                raise ServerTimeoutError(msg) from error
            msg = f"{self.url} cannot be read: {error}"
            raise ServerUnreachableError(msg) from error
        try:
            return read_metrics(text, self._total)
        except ConfigurationError as error:
            msg = f"{self.url}: {error}"
            raise ServerResponseError(msg) from error

    async def aread(self) -> MemoryLoad:
        """Ask the server, in a thread."""
        return await asyncio.to_thread(self.read)


_SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[^\s]+)", re.MULTILINE
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # the second until vLLM 0.9
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
CACHE = "vllm:cache_config_info"


def read_metrics(text: str, total_kv_tokens: int | None = None) -> MemoryLoad:
    """Read the load in the metrics of a vLLM server, in Prometheus's text format.

    Of several engines behind one address (data parallelism) the freest is told, since a new request
    goes there; requests are counted over all of them.

    Args:
        text: The metrics.
        total_kv_tokens: Room of each engine's KV cache; ``None`` to read that, too.

    Raises:
        ConfigurationError: They lack what is to be read.
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
        msg = f"the metrics lack {missing}; say the room of the cache with total_kv_tokens="
        raise ConfigurationError(msg)
    used = min(max(min(usage), 0.0), 1.0)

    def count(wanted: str) -> int:
        return int(sum(value for name, _, value in samples if name == wanted))

    return MemoryLoad(int((1 - used) * total), total, count(RUNNING), count(WAITING))


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for found in _SAMPLE.finditer(text):
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if value == value:  # noqa: PLR0124 - NaN says nothing
            yield found["name"], dict(_LABEL.findall(found["labels"] or "")), value
