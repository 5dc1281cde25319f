"""A FAISS index that can be searched in stages.

Many threads may read it, or one may write.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.threads import in_thread
from ragcache_integrations.errors import ConfigurationError, RAGCacheError
from ragcache_integrations.query_cache import Metric
from ragcache_integrations.query_cache.validation import as_array, check_vectors

from .documents import Documents, check_filter, check_ids, check_metadata
from .opened import Opened, open_index
from .searches import Filter, Found, Part, Stage, StagePlan, Vectors, faiss
from .storing import compact_copy, load_index, rebuilt_graph, save_index

__all__ = ["ReadWriteLock", "StagedIndex"]

logger = logging.getLogger(__name__)


class ReadWriteLock:
    """Readers go in together; a writer waits until they are gone and keeps others out.

    Each reader holds a separate lock, and a writer takes all of them, which makes going in and out
    cheap for readers. A reader that comes while a writer waits goes after it. Neither side may
    enter twice in one thread.

    A reader that goes in and out many times borrows a lock for all of them::

        own = lock.lend()
        try:
            while ...:
                if lock.shut:
                    lock.wait()
                with own:
                    ...
        finally:
            lock.give_back(own)

    Attributes:
        shut: Whether somebody writes, or waits until readers are gone.
    """

    def __init__(self) -> None:
        self._turn = make_lock()  # of writers, and of those for whom there is no lock yet
        self._all: list[threading.Lock] = []
        self._free: list[threading.Lock] = []
        self.shut = False
        self._torn = False
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._torn = self.shut

    def lend(self) -> threading.Lock:
        """Return a lock that no other reader has; it may be held as long as nobody waits."""
        try:
            return self._free.pop()
        except IndexError:
            own = make_lock()
        with self._turn:
            self._all.append(own)
        return own

    def give_back(self, own: threading.Lock) -> None:
        """Take back what was lent, and is not held. Never waits."""
        self._free.append(own)

    def wait(self) -> None:
        """Let a writer go first.

        Raises:
            RAGCacheError: As for :meth:`writing`.
        """
        self._check()
        with self._turn:
            pass

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read once; nobody writes meanwhile."""
        own = self.lend()
        try:
            if self.shut:
                self.wait()
            with own:
                yield
        finally:
            self.give_back(own)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write; nobody else reads or writes meanwhile.

        Raises:
            RAGCacheError: This process was forked while another thread wrote.
        """
        self._check()
        with self._turn:
            self.shut = True
            try:
                with ExitStack() as held:
                    for own in self._all:
                        held.enter_context(own)
                    yield
            finally:
                self.shut = False

    def _check(self) -> None:
        if self._torn:
            raise RAGCacheError(
                "this process was forked while another thread changed the index, which is "
                "incomplete here: load or build it in this process"
            )


_PLAN = StagePlan(number=8)
_RESTARTS = 2  # then the rest of a search is one stage, which nothing can interrupt
_MANY_BURIED = 0.2


P = ParamSpec("P")
R = TypeVar("R")


def _async_version(
    method: Callable[Concatenate[StagedIndex, P], R],
) -> Callable[Concatenate[StagedIndex, P], Coroutine[Any, Any, R]]:
    """Return the async version of a method of an index: it runs in a worker thread."""
    name = method.__name__

    async def run(self: StagedIndex, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await in_thread(method, self, *args, **kwargs)

    run.__name__, run.__qualname__ = f"a{name}", f"StagedIndex.a{name}"
    run.__doc__ = f"Async version of :meth:`{name}`; completes even if it is cancelled."
    run.__signature__ = inspect.signature(method)  # type: ignore[attr-defined] # which help() shows
    return run


class StagedIndex:
    """Documents in a FAISS index, whose searches can be followed stage by stage.

    Made from a FAISS index and the documents' ids::

        index = StagedIndex(faiss_index, ids)
        for stage in index.stages(query, k=4):
            print(stage.number, stage.ids, stage.final)

    :meth:`search` returns FAISS's own result. :meth:`stages` yields the best documents so far after
    each stage and ends with that result (RAGCache §5.3, §6): IVF indexes probe their nearest
    clusters group by group; HNSW graphs are walked by the same best-first search as FAISS's, in
    slices (extra ``numba``; a single stage without it). A flat index has one stage.

    The index belongs to this object: set ``nprobe`` or ``efSearch`` on it, but change its vectors
    through this object alone. Any number of threads may use it: searches run in parallel, changes
    wait for the stages that are running, and a search that sees the index changed between two of
    its stages begins again, within the numbering of its stages, so that its last stage is right for
    the index as it then is.

    Args:
        index: A trained ``IndexIVFFlat``, ``IndexIVFPQ``, ``IndexIVFScalarQuantizer``,
            ``IndexHNSWFlat`` or ``IndexFlat``, perhaps in an ``IndexPreTransform`` or
            ``IndexIDMap``, under L2 or inner product.
        ids: The documents' ids in the order in which their vectors were added; ``None`` takes the
            numbers by which FAISS knows them.
        metadata: Theirs, to filter by, in the same order.

    Raises:
        ConfigurationError: The index is of another kind or not trained; or there is not one id
            (and metadata) for every vector, or an id comes twice.
    """

    def __init__(
        self,
        index: Any,
        ids: Sequence[str] | None = None,
        *,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        opened = open_index(index)
        labels = opened.labels()
        if not np.array_equal(labels, np.arange(len(labels))):
            raise ConfigurationError(
                "the vectors' numbers must be 0, 1, 2 and so on: add them by index.add(), and give "
                "their ids here"
            )
        if ids is None:
            ids = [
                str(label) for label in (labels if opened.outer_ids is None else opened.outer_ids)
            ]
        names = check_ids(ids, len(labels))
        described = check_metadata(metadata, len(labels))
        self._set_up(opened, Documents(labels, names, described, len(labels), len(labels)))

    def _set_up(self, opened: Opened, documents: Documents) -> None:
        self._opened = opened
        self._documents = documents
        self._lock = ReadWriteLock()
        self._dim = int(opened.whole.d)
        self._size = int(opened.inner.ntotal)
        self._version = 0
        self._warned = False

    def __len__(self) -> int:
        return len(self._documents.labels)

    @property
    def index(self) -> Any:
        """The FAISS index that searches, without wrappers: for ``nprobe`` and ``efSearch``."""
        return self._opened.inner

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all documents, in the order of their addition."""
        return tuple(self._documents.labels)

    @property
    def dim(self) -> int:
        """Dimension of queries and documents."""
        return self._dim

    @property
    def metric(self) -> Metric:
        """How documents are ranked: ``l2`` or ``ip``."""
        return "ip" if self.index.metric_type == faiss().METRIC_INNER_PRODUCT else "l2"

    @property
    def exact_search(self) -> bool:
        """Whether a search surely goes over all documents, as the index decodes them.

        Flat indexes do, and IVF indexes that probe all of their clusters.
        """
        return self._opened.exhaustive

    @property
    def version(self) -> int:
        """Number of changes so far."""
        return self._version

    def search(self, query: ArrayLike, k: int, *, filter: Filter | None = None) -> Found:  # noqa: A002 - as everywhere
        """Find the nearest documents, as FAISS does.

        Args:
            query: The query's embedding, shape (dim,).
            k: The number of documents, at least 1.
            filter: Only these documents count. IVF and flat indexes look at no others; a graph is
                walked over all, and fewer than k may be found where few count, as FAISS does.

        Raises:
            ConfigurationError: The query is not a finite vector of the right dimension, ``k`` is
                below 1, or ``filter`` is no filter; or the index was changed past this object.
            Exception: Any error of a filter that is a function.
        """
        vector, k = self._check_query(query, k, filter)
        with self._lock.reading():
            self._check_unchanged()
            selection = self._documents.select(filter)
            return Found(*self._name_results(self._opened.search.whole(vector, k, selection)))

    def stages(
        self,
        query: ArrayLike,
        k: int,
        *,
        plan: StagePlan | None = None,
        filter: Filter | None = None,  # noqa: A002 - as in search
    ) -> Generator[Stage, None, None]:
        """Search, and yield the best documents so far after every stage.

        Nothing is computed but when the next stage is asked for. Closing the generator ends the
        search. Where the index changes between two stages, the search begins again, twice at most:
        then the rest of it is one stage.

        Args:
            query: The query's embedding, shape (dim,).
            k: The number of documents, at least 1.
            plan: How to cut the search; 8 stages by default.
            filter: As in :meth:`search`.

        Returns:
            A generator of stages; the last is ``final`` and holds what :meth:`search` finds, where
            equal distances count as equal.

        Raises:
            ConfigurationError: As in :meth:`search`, or ``plan`` is not a plan.
            Exception: Any error of a filter that is a function.
        """
        if plan is not None and not isinstance(plan, StagePlan):
            raise ConfigurationError(f"plan must be a StagePlan or None, got {plan!r}")
        vector, k = self._check_query(query, k, filter)
        return self._run(vector, k, plan or _PLAN, filter)

    def _run(
        self, query: Vectors, k: int, plan: StagePlan, filter_: Filter | None
    ) -> Generator[Stage, None, None]:
        # A stage evicts the code between stages from the processor's caches, which makes that code
        # several times slower than it looks, so it is kept short.
        parts: Iterator[tuple[Part, bool]] | None = None
        number, elapsed, restarts, version = 0, 0.0, 0, -1
        named: Part | None = None
        final = False
        opened, lock, clock = self._opened, self._lock, time.perf_counter
        own = lock.lend()
        try:
            while not final:
                if lock.shut:
                    lock.wait()
                with own:
                    began = clock()
                    if parts is None or version != self._version:
                        if parts is not None:
                            restarts += 1
                            plan = plan if restarts < _RESTARTS else StagePlan(number=1)
                        version, named, opened = self._version, None, self._opened
                        selection = self._documents.select(filter_)
                        parts = opened.search.stages(query, k, plan, selection)
                    if opened.count() != self._size:
                        self._check_unchanged()
                    part, final = next(parts)
                    if part is not named:  # late stages often change nothing
                        ids, distances = self._name_results(part)
                        named = part
                    elapsed += clock() - began
                number += 1
                yield Stage(ids, distances, number, elapsed, final)
        finally:
            lock.give_back(own)

    def add(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Add documents.

        Args:
            ids: Ids of the documents, none of which is in the index.
            vectors: Their vectors, shape (n, dim).
            metadata: Their metadata, to filter by.

        Raises:
            ConfigurationError: An id is there already or comes twice, or the vectors are not
                finite, too large to be compared, or not of the right shape. Nothing was added.
        """
        names, rows, described = self._check_documents(ids, vectors, metadata)
        with self._lock.writing():
            self._check_unchanged()
            there = [name for name in names if name in self._documents.labels]
            if there:
                msg = f"ids must be new, {there[0]!r} is there already: see update()"
                raise ConfigurationError(msg)
            self._append(names, rows, described)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete documents.

        FAISS cannot take vectors out of a graph: there they stay as stepping stones which no search
        returns. If there are many, rebuild the graph with :meth:`compact`.

        Args:
            ids: Ids of the documents.

        Raises:
            ConfigurationError: An id is not there or comes twice. Nothing was deleted.
        """
        names = check_ids(ids)
        with self._lock.writing():
            self._check_unchanged()
            self._check_known(names)
            self._remove(names)

    def update(
        self,
        ids: Sequence[str],
        vectors: ArrayLike,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Give documents other vectors.

        Args:
            ids: Ids of the documents.
            vectors: The new vectors, shape (n, dim).
            metadata: The new metadata; ``None`` leaves all as they are.

        Raises:
            ConfigurationError: An id is not there or comes twice, or the vectors are not finite,
                too large to be compared, or not of the right shape. Nothing was changed.
        """
        names, rows, described = self._check_documents(ids, vectors, metadata)
        with self._lock.writing():
            self._check_unchanged()
            self._check_known(names)
            known = self._documents.metadata
            described = [known.get(name) for name in names] if described is None else described
            self._remove(names)
            self._append(names, rows, described)

    def compact(self) -> None:
        """Rebuild a graph without the vectors of deleted documents; other kinds need no rebuilding.

        Takes as long as building it took in the first place; searches wait for its end.
        """
        with self._lock.writing():
            self._check_unchanged()
            old, documents = self.index, self._documents
            if self._opened.kind != "hnsw" or not documents.buried:
                return
            labels = np.sort(np.fromiter(documents.labels.values(), np.int64))
            new = rebuilt_graph(old, labels)
            self._opened = self._opened.replaced(new)
            documents.close_ranks(set(range(old.ntotal)) - set(labels.tolist()))
            self._note_change()

    def to_faiss(self) -> tuple[Any, list[str]]:
        """Copy the index for other software, without the vectors of deleted documents.

        A graph with such vectors is rebuilt for the copy, as by :meth:`compact`.

        Returns:
            A FAISS index of the same kind and with the same settings, which shares nothing with
            this object, and the documents' ids: of its vector 0, 1, 2 and so on.
        """
        with self._lock.reading():
            self._check_unchanged()
            known = self._documents.labels
            ids = sorted(known, key=known.__getitem__)
            labels = np.array([known[name] for name in ids], np.int64)
            return compact_copy(self._opened, labels), ids

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Read documents' vectors, as the index holds them: decoded, where it quantises.

        A :class:`~ragcache_integrations.query_cache.VectorSource`.

        Args:
            ids: Ids of the documents.

        Returns:
            Shape (len(ids), dim).

        Raises:
            LookupError: An id is not there, or the index cannot give its vectors.
        """
        if self._opened.kind == "ivf" and self.index.direct_map.no():
            with self._lock.writing():
                self._map()
        with self._lock.reading():
            self._check_unchanged()
            unknown = [name for name in ids if name not in self._documents.labels]
            if unknown:
                raise LookupError(f"document {unknown[0]!r} is not in the index")
            labels = np.array([self._documents.labels[name] for name in ids], np.int64)
            if not len(labels):
                return np.empty((0, self.dim), np.float32)
            try:
                rows = self._opened.transform_back(self.index.reconstruct_batch(labels))
            except RuntimeError as error:  # FAISS raises nothing more special
                raise LookupError(f"the FAISS index cannot give its vectors: {error}") from error
            return np.asarray(rows, np.float32)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Save the index and its documents in a folder; changes wait meanwhile.

        A process that loads it meanwhile, or after a crash, gets either the previous index or this
        one.

        Args:
            directory: The folder, which is made where it is not there.

        Raises:
            ConfigurationError: The metadata are not JSON. What the folder held is as it was.
            OSError: The folder cannot be written. What the folder held is as it was.
        """
        with self._lock.reading():
            self._check_unchanged()
            save_index(directory, self._opened, self._documents)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> StagedIndex:
        """Load what :meth:`save` saved. No pickle is read.

        Args:
            directory: The folder of the saved index.

        Raises:
            IndexFileError: The folder holds no saved index, or a damaged one.
            OSError: The folder cannot be read.
        """
        loaded = object.__new__(cls)
        loaded._set_up(*load_index(directory))
        return loaded

    asearch = _async_version(search)
    aadd = _async_version(add)
    adelete = _async_version(delete)
    aupdate = _async_version(update)
    acompact = _async_version(compact)
    ato_faiss = _async_version(to_faiss)
    avectors = _async_version(vectors)
    asave = _async_version(save)

    async def astages(
        self,
        query: ArrayLike,
        k: int,
        *,
        plan: StagePlan | None = None,
        filter: Filter | None = None,  # noqa: A002 - as in search
    ) -> AsyncGenerator[Stage, None]:
        """Async version of :meth:`stages`; stages are computed in a worker thread.

        Cancelling, or closing the generator, waits for the stage that is running.
        """
        stages = self.stages(query, k, plan=plan, filter=filter)
        try:
            while (stage := await in_thread(next, stages, None)) is not None:
                yield stage
        finally:
            stages.close()

    @classmethod
    async def aload(cls, directory: str | os.PathLike[str]) -> StagedIndex:
        """Async version of :meth:`load`, in a worker thread."""
        return await in_thread(cls.load, directory)

    def _check_query(self, query: ArrayLike, k: int, filter_: object) -> tuple[Vectors, int]:
        """Return the query as the inner index takes it, shape (1, d), and k."""
        if type(k) is not int or k < 1:
            k = check_int("k", k, 1)
        check_filter(filter_)
        # What needs no conversion is only looked over.
        if (
            type(query) is np.ndarray
            and query.dtype == np.float32
            and query.shape == (self._dim,)
            and query.flags.carray
            # The first that is no number, if there is one: all() takes twice as long.
            and (finite := np.isfinite(query))[finite.argmin()]
        ):
            return self._opened.transform(query[None]), k
        row = as_array("query", query)
        if row.shape != (self._dim,):
            raise ConfigurationError(f"query must have the shape ({self._dim},), got {row.shape}")
        return self._opened.transform(check_vectors(row[None], 1, self._dim, "query")), k

    def _check_documents(
        self, ids: object, vectors: ArrayLike, metadata: object
    ) -> tuple[list[str], Vectors, list[Mapping[str, Any] | None] | None]:
        names = check_ids(ids)
        rows = self._opened.prepare(check_vectors(vectors, len(names), self.dim, "vectors"))
        return names, rows, check_metadata(metadata, len(names))

    def _check_known(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self._documents.labels]
        if unknown:
            msg = f"ids must be those of documents that are there, got {unknown[0]!r}"
            raise ConfigurationError(msg)

    def _check_unchanged(self) -> None:
        if self.index.ntotal != self._size:
            raise ConfigurationError(
                f"the FAISS index must be changed through its StagedIndex alone: it had "
                f"{self._size} vectors and has {self.index.ntotal}. Make a new StagedIndex of it"
            )

    def _name_results(self, part: Part) -> tuple[tuple[str, ...], tuple[float, ...]]:
        (distances, labels), names = part, self._documents.names
        if labels[-1] >= 0:  # there are k results
            ids = tuple(filter(None, map(names.__getitem__, labels)))
            if len(ids) == len(labels):
                return ids, tuple(distances)
        pairs = [
            (name, distance)
            for distance, label in zip(distances, labels, strict=True)
            if label >= 0 and (name := names[label]) is not None
        ]
        return tuple(name for name, _ in pairs), tuple(distance for _, distance in pairs)

    def _append(
        self,
        names: list[str],
        rows: Vectors,
        described: Sequence[Mapping[str, Any] | None] | None,
    ) -> None:
        """Add documents, whose rows are prepared; the lock is held."""
        index, documents = self.index, self._documents
        first = documents.end if self._opened.kind == "ivf" else self._size
        try:
            if self._opened.kind == "ivf":
                if index.direct_map.type == faiss().DirectMap.Array:
                    self._map()  # the kind that takes numbers of our choice
                index.add_with_ids(rows, np.arange(first, first + len(rows)))
            elif len(rows):
                index.add(rows)
        except BaseException:
            # Nobody knows which of them are there: none counts, and no number is given again.
            ivf = self._opened.kind == "ivf"
            documents.bury(range(first, first + len(rows) if ivf else index.ntotal))
            self._note_change()
            raise
        documents.add(first, names, described)
        self._note_change()

    def _remove(self, names: list[str]) -> None:
        """Remove documents; the lock is held."""
        documents, kind = self._documents, self._opened.kind
        labels = np.array([documents.labels[name] for name in names], np.int64)
        if kind == "ivf":
            self._map()
            self.index.remove_ids(faiss().IDSelectorArray(labels))
        elif kind == "flat":
            self.index.remove_ids(labels)
        documents.remove(names, buried=kind == "hnsw")
        if kind == "flat":
            documents.close_ranks(set(labels.tolist()))
        self._note_change()
        if not self._warned and documents.buried > _MANY_BURIED * self._size:
            self._warned = True
            logger.warning(
                "%d of the %d vectors in the HNSW graph are of deleted documents, which makes "
                "searches slower and less complete: call compact()",
                documents.buried,
                self._size,
            )

    def _map(self) -> None:
        """Let an IVF index find vectors by their numbers; the lock is held."""
        if self.index.direct_map.type != faiss().DirectMap.Hashtable:
            self.index.set_direct_map_type(faiss().DirectMap.Hashtable)

    def _note_change(self) -> None:
        """Note a change; the lock is held."""
        self._size = int(self.index.ntotal)
        self._version += 1
        self._opened.search.changed()
