"""What best fit reads: the free memory, the cached chunks, the cost of prefills.

It reads values that change all the time without waiting for a busy engine to report them, and finds
the retrieved chunks that are in the KV cache in the engine's knowledge tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.errors import RAGCacheError
from ragcache_integrations.knowledge_tree.prefill_cost import load_profile
from ragcache_integrations.knowledge_tree.snapshot import NodeSnapshot, TreeSnapshot

from .best_fit import BestFit, ChunkFacts
from .load import EngineLoadSource, LoadSource, MemoryLoad, MetricsLoadSource

__all__ = [
    "CachedChunks",
    "HasTree",
    "Latest",
    "LoadReader",
    "Resources",
    "Seen",
    "chunk_facts",
    "resources_of",
]

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
    return max(facts, key=_total_cached, default=ChunkFacts(tuple(tokens)))


def _total_cached(facts: ChunkFacts) -> int:
    return facts.path_cached[-1] + sum(facts.alone_cached)


def _facts_below(ids: Sequence[str], tokens: Sequence[int], root: NodeSnapshot) -> ChunkFacts:
    first = _cached(root.children)
    beginning = root.tokens if root.place != "none" else 0
    beginning_in_use = root.tokens if root.place == "in use" else 0
    alone_cached, alone_in_use = [], []
    for name in ids:
        node = first.get(name)
        alone_cached.append(beginning + (node.tokens if node else 0))
        alone_in_use.append(beginning_in_use + (node.tokens if node and _used(node) else 0))
    path_cached, path_in_use = [beginning], [beginning_in_use]
    children = first
    held = True
    for name in ids:
        node = children.get(name)
        children = _cached(node.children) if node else {}
        held = held and _used(node)
        path_cached.append(path_cached[-1] + (node.tokens if node else 0))
        path_in_use.append(path_in_use[-1] + (node.tokens if node and held else 0))
    return ChunkFacts(
        tuple(tokens),
        tuple(path_cached),
        tuple(path_in_use),
        tuple(alone_cached),
        tuple(alone_in_use),
    )


def _cached(nodes: Iterable[NodeSnapshot]) -> dict[str, NodeSnapshot]:
    return {node.name: node for node in nodes if node.place != "none"}


def _used(node: NodeSnapshot | None) -> bool:
    return node is not None and node.place == "in use"


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
