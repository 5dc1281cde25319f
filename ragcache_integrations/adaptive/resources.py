"""The free memory, the cached chunks, the cost of prefills, and what answers in progress will take.

The free memory is read from the engine, or from a server's ``/metrics``. Values that change all the
time are read without waiting for a busy engine to report them. The retrieved chunks that are in the
KV cache are found in the engine's knowledge tree. The memory of the answers that are being made is
reserved.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import KW_ONLY, dataclass, field
from http.client import HTTPException
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

from ragcache_integrations.core.checks import check_int, or_none
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.engine.protocol import EngineLoad
from ragcache_integrations.errors import (
    ConfigurationError,
    RAGCacheError,
    ServerResponseError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel, load_profile
from ragcache_integrations.knowledge_tree.snapshot import NodeSnapshot, TreeSnapshot

from .best_fit import BestFit, CallPlan, Choice, ChunkFacts, Situation

__all__ = [
    "CachedChunks",
    "EngineLoadSource",
    "HasTree",
    "Latest",
    "LoadReader",
    "LoadSource",
    "MemoryLoad",
    "MetricsLoadSource",
    "Reservations",
    "Resources",
    "Seen",
    "chunk_facts",
    "read_metrics",
    "resources_of",
]


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


logger = logging.getLogger(__name__)


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Seen(Generic[Value]):
    """A value, and when it was read, by the monotonic clock in seconds.

    Attributes:
        value: The value.
        began: When reading began; the value may not reflect what happened later.
        ended: When reading ended.
    """

    value: Value
    began: float
    ended: float


@dataclass(eq=False)
class Latest(Generic[Value]):
    """Reads a value in its own thread, once for all callers at the same time. Thread-safe.

    A busy engine reports between two of its steps, which may take a good part of an answer's time.
    So no caller waits longer than ``patience`` while the last value is fresh enough.

    Args:
        look: Reads the value. Callers that wait for it get what it raises.
        name: Name of the thread.
        again_after: Seconds after the beginning of a reading before the next one may begin.
        patience: Seconds to wait for a reading.
        fresh: Seconds for which the last value is returned if a reading takes longer than
            ``patience``. If it is older, or there is none, callers wait for the reading to end.
    """

    look: Callable[[], Value]
    name: str
    _: KW_ONLY
    again_after: float = 0.0
    patience: float = 0.01
    fresh: float = 1.0
    _lock: Any = field(default_factory=make_lock, init=False)
    _look: Future[None] | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)
    _seen: Seen[Value] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._look = None  # only the parent process has the thread that reads

    def get(self) -> Seen[Value]:
        """Return the latest value, and when it was read."""
        look = self._latest_look()
        with contextlib.suppress(FutureTimeoutError):
            look.result(self._wait())
        return self._last()

    async def aget(self) -> Seen[Value]:
        """Async version of :meth:`get`."""
        wrapped = asyncio.wrap_future(self._latest_look())
        try:
            done, _ = await asyncio.wait({wrapped}, timeout=self._wait())
            for ended in done:
                ended.result()
        finally:
            # Not the reading itself, which others may wait for: this loop may be closed before it.
            wrapped.cancel()
        return self._last()

    def _last(self) -> Seen[Value]:
        assert self._seen is not None  # noqa: S101 - for type checkers: get() waits for the first
        return self._seen

    def _wait(self) -> float | None:
        seen = self._seen
        stale = seen is None or time.monotonic() > seen.ended + self.fresh
        return None if stale else self.patience

    def _latest_look(self) -> Future[None]:
        """The current or last reading; a new one if it is time."""
        with self._lock:
            now = time.monotonic()
            if self._look is None or (self._look.done() and now >= self._began + self.again_after):
                self._began = now
                self._look = Future()
                self._look.set_running_or_notify_cancel()
                threading.Thread(
                    target=self._see, args=(self._look,), name=self.name, daemon=True
                ).start()
            return self._look

    def _see(self, look: Future[None]) -> None:
        began = time.monotonic()
        try:
            self._seen = Seen(self.look(), began, time.monotonic())
        except BaseException as error:  # noqa: BLE001 - raised to the callers
            look.set_exception(error)
        else:
            look.set_result(None)


MAX_AGE_SECONDS = 0.25
"""Age at which a snapshot is renewed; taking them more often would slow the engine down."""


class HasTree(Protocol):
    """Has a knowledge tree, as :class:`~ragcache_integrations.engine.RAGCacheEngine`."""

    def tree(self) -> TreeSnapshot | None:
        """Return a snapshot of the tree; ``None`` if there is none."""

    async def atree(self) -> TreeSnapshot | None:
        """Async version of :meth:`tree`."""


class CachedChunks:
    """Reads an engine's tree, at most a few times per second. Thread-safe.

    Args:
        engine: The engine; ``None`` if nothing is known of the cache.
        namespace: Tenant whose cached chunks count.
    """

    def __init__(self, engine: HasTree | None, namespace: str = "") -> None:
        self._engine = engine
        self._namespace = namespace
        self._latest = Latest(self._look, "ragcache-tree", again_after=MAX_AGE_SECONDS)

    def facts(self, ids: Sequence[str], tokens: Sequence[int]) -> ChunkFacts:
        """Find out how much of some chunks is cached.

        Args:
            ids: The chunks' document ids, most relevant first.
            tokens: The chunks' lengths in tokens.
        """
        snapshot = None if self._engine is None else self._latest.get().value
        return chunk_facts(ids, tokens, snapshot, self._namespace)

    async def afacts(self, ids: Sequence[str], tokens: Sequence[int]) -> ChunkFacts:
        """Async version of :meth:`facts`."""
        snapshot = None if self._engine is None else (await self._latest.aget()).value
        return await asyncio.to_thread(chunk_facts, ids, tokens, snapshot, self._namespace)

    def _look(self) -> TreeSnapshot | None:
        try:
            return None if self._engine is None else self._engine.tree()
        except Exception as error:  # noqa: BLE001 - answers do not depend on it
            level = logging.INFO if isinstance(error, RAGCacheError) else logging.WARNING
            logger.log(level, "it is not known what is cached: %s", error)
            return None


def chunk_facts(
    ids: Sequence[str],
    tokens: Sequence[int],
    snapshot: TreeSnapshot | None,
    namespace: str = "",
) -> ChunkFacts:
    """Find chunks in a tree.

    A tenant has one root for each system text. The prompts of all methods have the same one, which
    is taken to be that of the root with the most of the chunks.

    Args:
        ids: The chunks' document ids, most relevant first.
        tokens: The chunks' lengths in tokens.
        snapshot: The tree; ``None`` if there is none.
        namespace: Tenant whose cached chunks count.
    """
    facts = [
        _facts_below(ids, tokens, root)
        for root in (snapshot.roots if snapshot else ())
        if root.name == namespace
    ]
    return max(
        facts,
        key=lambda each: each.path_cached[-1] + sum(each.alone_cached),
        default=ChunkFacts(tuple(tokens)),
    )


def _facts_below(ids: Sequence[str], tokens: Sequence[int], root: NodeSnapshot) -> ChunkFacts:
    first = _cached(root.children)
    path = _prefixes(ids, root, first)
    alone = [_prefixes([name], root, first)[-1] for name in ids]
    return ChunkFacts(tuple(tokens), *zip(*path, strict=True), *zip(*alone, strict=True))


def _prefixes(
    ids: Sequence[str], root: NodeSnapshot, first: Mapping[str, NodeSnapshot]
) -> list[tuple[int, int]]:
    """How much is cached, and in use, of the prompts with the first 0, 1, 2 ... documents."""
    cached = root.tokens if root.place != "none" else 0
    used = root.tokens if root.place == "in use" else 0
    lengths, children, held = [(cached, used)], first, True
    for name in ids:
        node = children.get(name)
        children = _cached(node.children) if node else {}
        held = held and node is not None and node.place == "in use"
        cached += node.tokens if node else 0
        used += node.tokens if node and held else 0
        lengths.append((cached, used))
    return lengths


def _cached(nodes: Iterable[NodeSnapshot]) -> dict[str, NodeSnapshot]:
    return {node.name: node for node in nodes if node.place != "none"}


RETRY_SECONDS = 10.0
"""Time before a source that failed is read again, so that not every question waits for it."""


@dataclass(frozen=True)
class Resources:
    """What best fit reads.

    Attributes:
        load: Reports the free memory; ``None`` if it is unknown.
        tree: Has the tree of cached chunks; ``None`` if it is unknown.
        best_fit: Chooses configurations, by measured or estimated prefill times.
    """

    load: LoadSource | None = None
    tree: HasTree | None = None
    best_fit: BestFit = field(default_factory=BestFit)


def resources_of(backend: object, load: LoadSource | None = None) -> Resources:
    """Return what best fit can read of a model. May read the file of a measured cost model.

    Args:
        backend: A :class:`~ragcache_integrations.engine.RAGCacheEngine`; a server with a
            ``base_url``, whose ``/metrics`` are read; or any other object, of which nothing is
            known.
        load: Reports the free memory in place of the backend; ``None`` for the backend.
    """
    known: Any = backend
    tree: HasTree | None = None
    prefill = None
    if hasattr(known, "aload"):
        load = load or EngineLoadSource(known)
        tree = known if hasattr(known, "atree") else None
        model = getattr(known, "model", None)
        if isinstance(model, str) and model:
            prefill = load_profile(model, device_name())
    elif load is None and isinstance(getattr(known, "base_url", None), str):
        load = MetricsLoadSource(known.base_url)
    return Resources(load, tree, BestFit(prefill) if prefill else BestFit())


class LoadReader:
    """Reads a load source; if that fails, it warns once and tries again after a while.

    Args:
        source: The source; ``None`` if the load is unknown.
    """

    def __init__(self, source: LoadSource | None) -> None:
        self._source = source
        self._latest = Latest(self._ask, "ragcache-load")
        self._not_before = 0.0
        self._gone = False

    def read(self) -> Seen[MemoryLoad] | None:
        """Read the load, which may be some time old; ``None`` if it is unknown."""
        return _known(self._latest.get()) if self._may_ask() else None

    async def aread(self) -> Seen[MemoryLoad] | None:
        """Async version of :meth:`read`."""
        return _known(await self._latest.aget()) if self._may_ask() else None

    def now(self) -> MemoryLoad | None:
        """Read the load now, however long that takes; ``None`` if it is unknown."""
        return self._ask() if self._may_ask() else None

    def _may_ask(self) -> bool:
        return self._source is not None and time.monotonic() >= self._not_before

    def _ask(self) -> MemoryLoad | None:
        assert self._source is not None  # noqa: S101 - for type checkers: see _may_ask
        try:
            load = self._source.read()
        except Exception as error:  # noqa: BLE001 - no question fails for want of it
            self._not_before = time.monotonic() + RETRY_SECONDS
            level = logging.INFO if self._gone else logging.WARNING
            self._gone = True
            logger.log(
                level,
                "the free memory is unknown, so the median of what suits a question is used: %s",
                f"{type(error).__name__}: {error}",
            )
            return None
        self._gone = False
        return load


def _known(seen: Seen[MemoryLoad | None]) -> Seen[MemoryLoad] | None:
    return None if seen.value is None else Seen(seen.value, seen.began, seen.ended)


MEMORY = 0.9
"""Weight of the old value when a running mean is updated."""

ARRIVAL_SECONDS = 0.05
"""Within this time a plan's calls reach the engine, whose load includes them from then on."""

Chosen = TypeVar("Chosen", bound=Choice | None)

PACE_LIMITS = (0.01, 100.0)
"""The least and the largest ratio that one answer counts for."""


class Reservations:
    """Reserves the memory of answers that are being made, so that no two get the same. Thread-safe.

    The free memory that an engine reports excludes neither requests that have not reached it yet
    nor those that wait in its queue. Both are subtracted: the former until they should have reached
    it, the latter by their number times the mean need of a call.

    Args:
        clock: A monotonic clock, in seconds.

    Attributes:
        pace: Running mean of the answers' measured over their estimated seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = make_lock()
        self._plans: dict[int, tuple[float, CallPlan]] = {}
        self._tickets = 0
        self._call_tokens = 0.0
        self.pace = 1.0
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._plans = {}  # they are the parent's

    @property
    def idle(self) -> bool:
        """Whether no answer is being made."""
        return not self._plans

    def choose(
        self,
        load: MemoryLoad,
        latency_budget: float | None,
        prefill: PrefillCostModel,
        choose: Callable[[Situation], Chosen],
        *,
        as_of: float | None = None,
    ) -> tuple[Chosen, int]:
        """Choose a configuration and reserve its memory, before anyone else chooses.

        Args:
            load: The load that the engine reports.
            latency_budget: Seconds that the answer may take; ``None`` for no limit.
            prefill: Estimates prefill seconds, and so how long the queue takes.
            choose: Chooses a configuration that fits a situation; ``None`` if it takes none.
            as_of: When the load was read, by the clock; ``None`` for now.

        Returns:
            The choice, and the ticket that :meth:`leave` takes; 0 for no choice.
        """
        with self._lock:
            waiting = load.waiting_requests * self._call_tokens
            since = (self._clock() if as_of is None else as_of) - ARRIVAL_SECONDS
            plans = self._plans.copy().values()
            coming = sum(plan.footprint for born, plan in plans if born >= since)
            free = load.free_tokens - waiting - coming
            queue = load.waiting_requests * prefill(0, int(self._call_tokens)) if waiting else 0.0
            choice = choose(Situation(int(free), latency_budget, queue, self.pace))
            return choice, 0 if choice is None else self._enter(choice.plan)

    def leave(self, ticket: int) -> None:
        """Release the memory of a plan whose answer is complete or cancelled. Idempotent."""
        # Without the lock: the garbage collector, which closes streams that were given up, may call
        # this in the midst of a choice.
        self._plans.pop(ticket, None)

    def note(self, estimated: float, measured: float) -> None:
        """Update the pace by an answer.

        Args:
            estimated: Seconds that it should have taken, by the cost model alone.
            measured: Seconds that it took.
        """
        if estimated <= 0:
            return
        low, high = PACE_LIMITS
        with self._lock:
            ratio = min(high, max(low, measured / estimated))
            self.pace = MEMORY * self.pace + (1 - MEMORY) * ratio

    def _enter(self, plan: CallPlan) -> int:
        self._tickets += 1
        self._plans[self._tickets] = (self._clock(), plan)
        mean = sum(call.need for call in plan.calls) / len(plan.calls)
        old = self._call_tokens
        self._call_tokens = MEMORY * old + (1 - MEMORY) * mean if old else mean
        return self._tickets
