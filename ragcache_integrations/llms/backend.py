"""Backends of the LLM classes: the local engine or a server, made when it is first needed.

The LLM classes of both frameworks talk to a :class:`Backend`, which they get from a
:class:`BackendSource`: either the user's, or one that is made at first use. Sources with the same
settings share a backend, because two engines with one model would only halve each other's KV cache.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar, Unpack

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.generation import (
    CallOptions,
    Generation,
    GenerationChunk,
    SamplingOptions,
)
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.errors import EngineClosedError

__all__ = ["AsyncChunkStream", "Backend", "BackendSource", "ChunkStream", "SharedBackends"]


Asked_contra = TypeVar("Asked_contra", contravariant=True)
Given_co = TypeVar("Given_co", covariant=True)


class ChunkStream(Iterator[GenerationChunk], Protocol):
    """A running answer. Closing it aborts the request."""

    def close(self) -> None:
        """Abort the request unless it is complete."""


class AsyncChunkStream(Protocol):
    """Async version of :class:`ChunkStream`."""

    def __aiter__(self) -> AsyncIterator[GenerationChunk]: ...

    async def __anext__(self) -> GenerationChunk: ...

    async def aclose(self) -> None:
        """Abort the request unless it is complete."""


class Method(Protocol[Asked_contra, Given_co]):
    """A method of a backend that answers."""

    def __call__(
        self,
        asked: Asked_contra,
        /,
        options: SamplingOptions | None = None,
        **call: Unpack[CallOptions],
    ) -> Given_co:
        """Answer what is asked."""


class Backend(Protocol):
    """Answers prompts: a :class:`~ragcache_integrations.engine.RAGCacheEngine` or a server.

    Every method may be called from any thread, the async ones from any event loop. ``namespace``
    keeps the KV caches of tenants apart; ``timeout`` is in seconds, ``None`` for no limit.
    """

    @property
    def model(self) -> str:
        """Name or path of the model."""

    @property
    def max_model_len(self) -> int:
        """The context window in tokens, prompt and answer together."""

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations are rendered as the model was trained to read them."""

    @property
    def supports_tools(self) -> bool:
        """Whether the model can be given tools to call, as far as is known."""

    @property
    def generate(self) -> Method[Prompt, Generation]:
        """Answer a prompt."""

    @property
    def agenerate(self) -> Method[Prompt, Awaitable[Generation]]:
        """Async version of :meth:`generate`."""

    @property
    def generate_batch(self) -> Method[Sequence[Prompt], Sequence[Generation]]:
        """Answer several prompts together; the answers come in the order of the prompts."""

    @property
    def agenerate_batch(self) -> Method[Sequence[Prompt], Awaitable[Sequence[Generation]]]:
        """Async version of :meth:`generate_batch`."""

    @property
    def stream(self) -> Method[Prompt, ChunkStream]:
        """Answer a prompt chunk by chunk."""

    @property
    def astream(self) -> Method[Prompt, Awaitable[AsyncChunkStream]]:
        """Async version of :meth:`stream`."""

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text, without special tokens."""

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""

    def close(self) -> None:
        """Release everything. Requests in flight end with :class:`EngineClosedError`."""

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""


class _Shared:
    """A backend that the first caller makes, and that is closed after its last user.

    While it is made, other callers wait for the same :class:`~concurrent.futures.Future`. A failure
    reaches all of them, and the next call tries again.
    """

    def __init__(self, make: Callable[[], Backend]) -> None:
        self.users: weakref.WeakSet[BackendSource] = weakref.WeakSet()
        self._make = make
        self._lock = make_lock()
        self._made: list[Future[Backend]] = []  # at most one; a list, as the finalizer holds it
        self._finalizer = weakref.finalize(self, _close_made, self._made)
        renew_after_fork(self)

    def _after_fork(self) -> None:
        # Backends that the parent's threads are making are made in the parent only.
        self._made[:] = [future for future in self._made if future.done()]

    def get(self) -> Backend:
        future, first = self._claim()
        if first:
            self._run(future)
        return future.result()

    def peek(self) -> Backend | None:
        for future in list(self._made):
            if future.done() and not future.exception():
                return future.result()
        return None

    async def aget(self) -> Backend:
        future, first = self._claim()
        if first:
            # Not in the loop's executor: starting takes long, and few threads must serve all.
            name = "ragcache-backend-start"
            threading.Thread(target=self._run, args=(future,), name=name, daemon=True).start()
        return future.result() if future.done() else await asyncio.wrap_future(future)

    def close(self) -> None:
        """Close the backend, once it is made."""
        with self._lock:
            self._finalizer()

    async def aclose(self) -> None:
        """Close the backend in this event loop, which may hold connections of it."""
        with self._lock:
            if self._finalizer.detach() is None:
                return
            made = [f for f in self._made if f.done() and not f.exception()]
            _close_made([future for future in self._made if future not in made])
        for future in made:
            await future.result().aclose()

    def _claim(self) -> tuple[Future[Backend], bool]:
        with self._lock:
            if not self._finalizer.alive:
                raise _closed()
            if self._made:
                return self._made[0], False
            future: Future[Backend] = Future()
            # Marked as running, it cannot be cancelled by a caller that waits for it.
            future.set_running_or_notify_cancel()
            self._made.append(future)
            return future, True

    def _run(self, future: Future[Backend]) -> None:
        try:
            backend = self._make()
        except BaseException as error:  # noqa: BLE001 - handed to everyone who waits
            with self._lock:
                if self._made == [future]:
                    self._made.clear()
            future.set_exception(error)
        else:
            future.set_result(backend)


def _close_made(made: list[Future[Backend]]) -> None:
    for future in made:
        future.add_done_callback(
            lambda future: None if future.exception() else future.result().close()
        )


def _closed() -> EngineClosedError:
    return EngineClosedError("this LLM was closed")


_registry_lock = make_lock()
_registry: weakref.WeakValueDictionary[Hashable, _Shared] = weakref.WeakValueDictionary()


class BackendSource:
    """Where an LLM class gets its backend from.

    Either from ``backend``, which is never closed, or from ``make`` with a ``key``: that backend is
    made once at first use, shared by all sources with the key, and closed when the last of them is
    closed or collected.

    Args:
        backend: The user's own backend.
        make: Makes a backend; called from any thread.
        key: Identifies the backend that ``make`` makes; equal keys share one.
        view: Wraps the shared backend for this source; called every time.

    Attributes:
        key: Identifies the shared backend; ``None`` for the user's own.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        *,
        make: Callable[[], Backend] | None = None,
        key: Hashable = None,
        view: Callable[[Any], Backend] | None = None,
    ) -> None:
        self._view: Callable[[Any], Backend] = view or (lambda backend: backend)
        self._origin: Backend | _Shared | None = backend  # None once it is closed
        self.key = key
        if backend is None:
            if make is None:
                raise TypeError("a backend source needs a backend or a way to make one")
            with _registry_lock:
                self._origin = shared = _registry.get(key) or _Shared(make)
                shared.users.add(self)
                _registry[key] = shared

    def get(self) -> Backend:
        """The backend; the first call may take as long as an engine takes to start.

        Raises:
            EngineClosedError: The source was closed.
            RAGCacheError: The backend could not be made.
        """
        origin = self._open_origin()
        return self._view(origin.get() if isinstance(origin, _Shared) else origin)

    def peek(self) -> Backend | None:
        """The backend, if it is there already; ``None`` if it would have to be made."""
        origin = self._origin
        made = origin.peek() if isinstance(origin, _Shared) else origin
        return None if made is None else self._view(made)

    async def aget(self) -> Backend:
        """The backend, made off the event loop; raises as :meth:`get` does."""
        origin = self._open_origin()
        return self._view(await origin.aget() if isinstance(origin, _Shared) else origin)

    def close(self) -> None:
        """Release the backend, and close it if it was made here and no other source uses it."""
        shared = self._release()
        if shared is not None:
            shared.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        shared = self._release()
        if shared is not None:
            await shared.aclose()

    def _open_origin(self) -> Backend | _Shared:
        origin = self._origin  # read once: another thread may close in between
        if origin is None:
            raise _closed()
        return origin

    def _release(self) -> _Shared | None:
        """Return the shared backend if no other source uses it, so that it must be closed."""
        with _registry_lock:
            shared, self._origin = self._origin, None
            if not isinstance(shared, _Shared):
                return None
            shared.users.discard(self)
            if shared.users:
                return None
            for key in [key for key, value in _registry.items() if value is shared]:
                del _registry[key]
            return shared


CAPACITY = 16
"""Backends that are kept for objects still to be made: a key or an address may differ with every
call, and must not pile up connections."""


class SharedBackends:
    """Keeps the backends of LLM objects that were made from one another. Thread-safe.

    LangChain makes a new object for every call with ``configurable_fields``. Without sharing, an
    object with another model would start and end an engine for each call.

    A backend that was made for one of them stays for those made later, until the first object is
    closed, or all of them are collected. Each object has a source of its own as well, so that a
    backend is never closed while one that uses it is alive.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self._closed = False
        self._sources: weakref.WeakSet[BackendSource] = weakref.WeakSet()
        self._kept: Memo[Hashable, BackendSource] = Memo(CAPACITY)

    def source(
        self,
        backend: Backend | None = None,
        *,
        make: Callable[[], Backend] | None = None,
        key: Hashable = None,
        view: Callable[[Any], Backend] | None = None,
    ) -> BackendSource:
        """Return a source for another object; a closed one if the first object is closed.

        Args:
            backend: The user's own backend; see :class:`BackendSource`.
            make: Makes a backend if the user has none.
            key: Identifies the backend that ``make`` makes; equal keys share one.
            view: Wraps the shared backend for this object.
        """
        with self._lock:
            source = BackendSource(backend, make=make, key=key, view=view)
            if self._closed:
                source.close()  # it has made nothing, so that this takes no time
                return source
            self._sources.add(source)
            forgotten: list[tuple[Hashable, BackendSource]] = []
            if backend is None and key not in self._kept:
                forgotten = self._kept.put(key, BackendSource(make=make, key=key))
        for _, other in forgotten:
            other.close()
        return source

    def release(self, source: BackendSource) -> list[BackendSource]:
        """Return the sources to close when the object with this source is closed."""
        with self._lock:
            self._sources.discard(source)
            kept = self._kept.get(source.key)
            others = [other for other in self._sources if other.key == source.key]
            if kept is None or others:
                return [source]
            del self._kept[source.key]
            return [source, kept]

    def release_all(self) -> list[BackendSource]:
        """Return the sources to close when the first object is closed."""
        with self._lock:
            self._closed = True
            everything = [*self._sources, *self._kept.values()]
            self._kept.clear()
            return everything
