"""The approximate query cache as a LangChain retriever."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self, Unpack

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams, RetrieverLike
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field, PrivateAttr
from typing_extensions import override

from ragcache_integrations.core.checks import check_int, check_one_of, check_type
from ragcache_integrations.core.flows import arun, run
from ragcache_integrations.core.saved_values import decode_value, encode_value
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition import REQUESTS
from ragcache_integrations.query_cache import Explanation
from ragcache_integrations.retrievers.cached.controls import CacheControls, Wired
from ragcache_integrations.retrievers.cached.core import RetrieverCore
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs, knobs_of_cache
from ragcache_integrations.retrievers.cached.lazy_cache import with_chosen_vectors
from ragcache_integrations.retrievers.copying import copy_container, copy_model
from ragcache_integrations.retrievers.keys import OwnParts, is_own_object, parts_within, window_of
from ragcache_integrations.retrievers.retrieval import (
    QUERY_CACHE_METADATA,
    DocumentStage,
    Note,
    Question,
    RetrievalTrace,
    Source,
    Texts,
)
from ragcache_integrations.retrievers.runs import aobserved, observed
from ragcache_integrations.retrievers.runs.langchain import RetrieverRun
from ragcache_integrations.retrievers.sharing import Identity, Rebuildable
from ragcache_integrations.retrievers.staged import STAGED_INDEX_METHODS
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.stores import LiveState, StoreFacts, tag_of, unwatch, watch
from ragcache_integrations.vector_search import StagedIndex

from .requests import (
    Requests,
    StagedRequests,
    StoreRequests,
    WrappedRequests,
    child_config,
    configured,
    read_call,
)
from .stores import (
    DEFAULT_K,
    SearchType,
    facts_of,
    identify_by,
    is_native,
    methods_of,
    reader_of,
    spell_ids,
)

if TYPE_CHECKING:
    from ragcache_integrations._arguments import CacheArguments

__all__ = [
    "QUERY_CACHE_EVENT",
    "ApproximateCacheRetriever",
    "copy_document",
    "decode_document",
    "encode_document",
]

QUERY_CACHE_EVENT = "query_cache"
"""Name of the custom event that every call sends to its callbacks; its data is a dict of the
:class:`~ragcache_integrations.retrievers.cached.core.RetrievalTrace`."""

_IGNORES_EVENTS = attrgetter("ignore_custom_event")
_INSTEAD = {
    VectorStore: "from_vectorstore() takes a store",
    Runnable: "from_retriever() takes a retriever, or another Runnable",
}
_RETRIEVER = (
    "a wrapped retriever shows neither its way of searching nor vectors; wrap its store instead"
)


_set = object.__setattr__


def copy_document(document: Document, _: float | None, note: Note | None) -> Document:
    """Return a document that the caller may change; it has no score to be set."""
    if type(document) is Document:
        # As pydantic copies it, in half the time; its metadata is its only container.
        copied = Document.__new__(Document)
        _set(
            copied, "__dict__", document.__dict__ | {"metadata": copy_container(document.metadata)}
        )
        _set(copied, "__pydantic_fields_set__", document.__pydantic_fields_set__.copy())
        _set(copied, "__pydantic_extra__", None)
        _set(copied, "__pydantic_private__", None)
    else:
        copied = copy_model(document)
    if note is not None:
        copied.metadata[QUERY_CACHE_METADATA] = dict(note)
    return copied


def encode_document(document: Document) -> dict[str, Any]:
    """Turn a document into what JSON can hold.

    Raises:
        ConfigurationError: It would not come back as it is.
    """
    if type(document) is not Document:
        kind = type(document).__name__
        msg = f"only a Document itself can be saved, not a {kind}: {document!r:.200}"
        raise ConfigurationError(msg)
    return {
        "id": document.id,
        "page_content": document.page_content,
        "metadata": encode_value(document.metadata, "metadata"),
    }


def decode_document(saved: dict[str, Any]) -> Document:
    """Turn that into the document again."""
    return Document(**saved | {"metadata": decode_value(saved["metadata"])})


class ApproximateCacheRetriever(CacheControls, Rebuildable, CacheKnobs, BaseRetriever):
    """Answers a question with the documents of an earlier question that is similar enough.

    Drop-in replacement for ``store.as_retriever()``, or for any other retriever::

        retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=0.3)

    Documents are returned as they come from the store. The cache follows documents that are added,
    deleted or updated through the store object that you pass. After other changes, call
    :meth:`clear`; or :meth:`attach` the object that makes them, or set a ``ttl``. ``invoke`` and
    ``ainvoke`` accept ``k``, ``namespace``, ``filter_key``, ``search_type`` and all other arguments
    of the store's search, such as ``filter``, ``fetch_k`` or ``score_threshold``, for one call.
    With ``context=``, a text or the messages before a follow-up question, the question is embedded,
    compared and searched for together with them. For every call, callbacks get a custom event
    named ``query_cache``, and traces get the metadata ``query_cache_hit``, ``query_cache_shared``
    and ``query_cache_distance``.

    The settings of a finished retriever cannot be changed:
    ``retriever.model_copy(update={"k": 8})`` makes another one. Such copies, and objects that
    LangChain makes for ``configurable_fields``, share the cache if they search the same store in
    the same way.

    The knobs are those of :class:`~ragcache_integrations.retrievers.cached.knobs.CacheKnobs`. It is
    safe to use from several threads and event loops at the same time.

    Attributes:
        vectorstore: The store to search. Pass either ``vectorstore`` or ``retriever``.
        retriever: The retriever to ask.
        embeddings: Embeds the questions; ``None`` for the store's own embeddings.
        search_type: How the store is searched: ``similarity``, ``mmr`` (maximal marginal
            relevance) or ``similarity_score_threshold``, as for ``store.as_retriever``.
        search_kwargs: Arguments for the store's search, such as ``filter``.

    Raises:
        ConfigurationError: An argument is unknown, out of its range or missing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    vectorstore: VectorStore | None = None
    retriever: RetrieverLike | None = None
    embeddings: Embeddings | None = None
    search_type: SearchType = "similarity"
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    _wired: Wired = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Wire the cache to what it wraps."""
        super().model_post_init(context)
        check_one_of("vectorstore", self.vectorstore, "retriever", self.retriever)
        self._check_search()
        self._wired = self._wire()

    @override
    def _wire(self) -> Wired:
        """Return a core for what is wrapped as it is now."""
        embeddings = self._embedding_model
        if embeddings is None:
            msg = "embeddings are needed: there are none to take from what is wrapped"
            raise ConfigurationError(msg)
        live = LiveState(partial(_live, self._searched(), self.retriever, self.embeddings))
        # The cache and its threads must not keep self alive, so they have nothing of self.
        knobs = knobs_of_cache(self)
        facts, default_k = self._wrapped()
        names = frozenset(self.search_kwargs)
        wrapped = (self.vectorstore, self.retriever, embeddings)
        code: tuple[OwnParts, OwnParts] = self.shared_state.core(
            (*map(Identity, wrapped), live.key, "code"),
            lambda: (OwnParts(*wrapped), OwnParts(embeddings)),
        )
        requests = self._requests_for(facts, live, code)
        core: RetrieverCore[Document] = self.shared_state.core(
            (
                *map(Identity, wrapped),
                requests.own,
                self.search_type,
                names,
                *vars(knobs).values(),
                live.key,
            ),
            lambda: self._make_core(knobs, embeddings, facts, default_k),
        )
        return Wired(core, requests, live, self.pickle_cache)

    def _check_search(self) -> None:
        if self.retriever is not None and (self.search_kwargs or self.search_type != "similarity"):
            raise ConfigurationError(
                "search_kwargs and search_type are for a vectorstore; set them on the wrapped "
                "retriever instead"
            )
        if "k" not in self.search_kwargs:
            return
        k = check_int("k", self.search_kwargs.pop("k"), 1)
        # In an object made from another, it is what was put there since that one was made.
        if self.k not in {None, k} and "shared_state" not in self.model_fields_set:
            msg = f"k={self.k!r} and, in search_kwargs, k={k!r} were given: give it once"
            raise ConfigurationError(msg)
        self.__dict__["k"] = k

    def _make_core(
        self,
        knobs: CacheKnobs,
        embeddings: Embeddings,
        facts: StoreFacts,
        default_k: int | None,
    ) -> RetrieverCore[Document]:
        async def aembed(texts: Texts) -> ArrayLike:
            return await embeddings.aembed_query(texts[0])

        core = RetrieverCore(
            knobs,
            Source(
                embed=lambda texts: embeddings.embed_query(texts[0]),
                aembed=aembed if is_native(embeddings, Embeddings, "aembed_query") else None,
                identify=identify_by(facts.id_of),
                copy=copy_document,
                k=default_k,
                facts=facts,
                tag=tag_of(embeddings, self.vectorstore or self.retriever),
                encode=encode_document,
                decode=decode_document,
                read=self._reader(facts),
                embed_documents=embeddings.embed_documents,
                text_of=attrgetter("page_content"),
                spell_ids=partial(spell_ids, self._searched()),
                window=window_of(embeddings),
                kind=Document,
            ),
        )
        if knobs.follow_changes:
            store, index = self._searched(), None if self._staged is None else self._staged.index
            if store is not None:
                core.follower.follow(store, methods_of(store))
            if index is not None:
                core.follower.follow(index, STAGED_INDEX_METHODS)
            if self.retriever is not None and self._staged is None:
                said = knobs.ttl is not None or knobs.version is not None
                core.follower.follow_parts(parts_within(self.retriever), methods_of, said=said)
        return core

    def _searched(self) -> VectorStore | None:
        """The store that is searched, if it is known."""
        return self.vectorstore if self._staged is None else self._staged.vectorstore

    @classmethod
    def from_vectorstore(
        cls,
        vectorstore: VectorStore,
        embeddings: Embeddings | None = None,
        *,
        search_type: SearchType = "similarity",
        search_kwargs: dict[str, Any] | None = None,
        **knobs: Unpack[CacheArguments],
    ) -> Self:
        """Wrap a vector store. It is searched by vector, so each question is embedded once.

        Args:
            vectorstore: The store.
            embeddings: Embeds the questions; ``None`` for the store's own embeddings.
            search_type: How it is searched, as for ``vectorstore.as_retriever``.
            search_kwargs: Arguments for the store's search, such as ``filter``.
            **knobs: See :class:`~ragcache_integrations.retrievers.cached.knobs.CacheKnobs`.

        Raises:
            ConfigurationError: An argument is unknown, out of its range or missing.
        """
        check_type("vectorstore", vectorstore, VectorStore, "a VectorStore", _INSTEAD)
        return cls(
            vectorstore=vectorstore,
            embeddings=embeddings,
            search_type=search_type,
            search_kwargs=search_kwargs or {},
            **knobs,
        )

    @classmethod
    def from_retriever(
        cls,
        retriever: RetrieverLike,
        embeddings: Embeddings | None = None,
        **knobs: Unpack[CacheArguments],
    ) -> Self:
        """Wrap any retriever, or any Runnable from a question to documents.

        If ``store.as_retriever()`` made the retriever and it searches by similarity, its store is
        wrapped instead: then each question is embedded only once, and hits can be re-ranked.

        Args:
            retriever: The retriever.
            embeddings: Embeds the questions.
            **knobs: See :class:`~ragcache_integrations.retrievers.cached.knobs.CacheKnobs`.

        Raises:
            ConfigurationError: An argument is unknown, out of its range or missing.
        """
        check_type("retriever", retriever, Runnable, "a retriever or another Runnable", _INSTEAD)
        if type(retriever) is VectorStoreRetriever:
            if retriever.search_type == "similarity":
                search_kwargs = dict(retriever.search_kwargs)
                if "k" in knobs:
                    search_kwargs.pop("k", None)
                return cls.from_vectorstore(
                    retriever.vectorstore, embeddings, search_kwargs=search_kwargs, **knobs
                )
            embeddings = embeddings or retriever.vectorstore.embeddings
        return cls(retriever=retriever, embeddings=embeddings, **knobs)

    def attach(self, vectorstore: VectorStore | StagedIndex) -> None:
        """Follow documents that are added, deleted or updated through a store object.

        Use it for the store of a wrapped retriever, or for another object of the same store. A
        wrapped store is followed already, unless ``follow_changes=False``. The cache is up to date
        when the store's method returns. After changes made in other ways, such as by another
        process, call :meth:`clear`.

        Raises:
            ConfigurationError: The object is no vector store, or its class cannot be watched.
        """
        if isinstance(vectorstore, StagedIndex):
            watch(vectorstore, STAGED_INDEX_METHODS, self._core.follower)
            return
        if not isinstance(vectorstore, VectorStore):
            raise ConfigurationError(f"vectorstore must be a VectorStore, got {vectorstore!r}")
        watch(vectorstore, methods_of(vectorstore), self._core.follower)

    def detach(self, vectorstore: VectorStore | StagedIndex) -> None:
        """Stop following a store's changes."""
        unwatch(vectorstore, self._core.follower)

    def stages(
        self,
        query: str,
        config: RunnableConfig | None = None,
        *,
        interval: float | None = None,
        **call: Any,
    ) -> Generator[DocumentStage[Document]]:
        """Answer in stages: those of a wrapped :class:`StagedFaissRetriever`, or guess and answer.

        A guess consists of documents in the cache; there is none if guesses were rarely right
        lately. A hit is a single stage. Provisional documents are never cached. Closing the
        generator ends a search in stages; it belongs to this caller alone.

        Args:
            query: The question.
            config: LangChain's configuration of the run, as for ``invoke``.
            interval: Duration of a stage in seconds, unless the wrapped retriever has a ``plan``.
            **call: Settings and arguments for this call alone, as for ``invoke``.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbeddingError: The embedding model gave something unusable.
        """

        def search(run: RetrieverRun) -> Generator[DocumentStage[Document]]:
            core, question = self._ask_in_run(run.manager, query, call, config, interval)
            with closing(core.stages(question)) as stages:
                for stage in stages:
                    if stage.trace is not None:
                        _dispatch_event(run.manager, stage.trace)
                    yield stage

        return observed(partial(RetrieverRun.start, self, query, config), search)

    async def astages(
        self,
        query: str,
        config: RunnableConfig | None = None,
        *,
        interval: float | None = None,
        **call: Any,
    ) -> AsyncGenerator[DocumentStage[Document]]:
        """Async version of :meth:`stages`."""

        async def search(run: RetrieverRun) -> AsyncGenerator[DocumentStage[Document]]:
            core, question = self._ask_in_run(run.manager, query, call, config, interval)
            async with aclosing(core.astages(question)) as stages:
                async for stage in stages:
                    if stage.trace is not None:
                        await _adispatch_event(run.manager, stage.trace)
                    yield stage

        run = aobserved(partial(RetrieverRun.astart, self, query, config), search)
        async with aclosing(run) as stages:
            async for stage in stages:
                yield stage

    def explain(self, query: str, config: RunnableConfig | None = None, **call: Any) -> Explanation:
        """Explain why a question would be a hit or a miss. The store is not searched.

        Args:
            query: The question.
            config: LangChain's configuration of the run, as for ``invoke``.
            **call: Settings and arguments for this call alone, as for ``invoke``.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbeddingError: The embedding model gave something unusable.
        """
        with configured(config):
            core, question = self._ask(query, call)
        return run(core.explain(question))

    async def aexplain(
        self, query: str, config: RunnableConfig | None = None, **call: Any
    ) -> Explanation:
        """Async version of :meth:`explain`."""
        with configured(config):
            core, question = self._ask(query, call)
        return await arun(core.explain(question), core.executor)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        if self.vectorstore is not None:
            params["ls_vector_store_provider"] = type(self.vectorstore).__name__
        embeddings = self.embeddings or (self.vectorstore and self.vectorstore.embeddings)
        if embeddings:
            params["ls_embedding_provider"] = type(embeddings).__name__
        return params

    @override
    def invoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        if self.retriever is None:  # a store reads no configuration
            return super().invoke(input, config, **kwargs)
        with configured(config):
            return super().invoke(input, config, **kwargs)

    @override
    async def ainvoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        if self.retriever is None:  # a store reads no configuration
            return await super().ainvoke(input, config, **kwargs)
        with configured(config):
            return await super().ainvoke(input, config, **kwargs)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        **call: Any,
    ) -> list[Document]:
        core, question = self._ask_in_run(run_manager, query, call)
        core.retrieve(question)
        _dispatch_event(run_manager, question.trace)
        return question.documents

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        **call: Any,
    ) -> list[Document]:
        core, question = self._ask_in_run(run_manager, query, call)
        await core.aretrieve(question)
        await _adispatch_event(run_manager, question.trace)
        return question.documents

    def _ask_in_run(
        self,
        run: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
        query: str,
        call: dict[str, Any],
        config: RunnableConfig | None = None,
        interval: float | None = None,
    ) -> tuple[RetrieverCore[Document], Question[Document]]:
        # No LLM call of another namespace may recognise what this run finds.
        own = call.get("namespace")
        if run.handlers:  # else nothing follows it
            REQUESTS.set_namespace(run.run_id, self.namespace if own is None else own)
        make_config = partial(child_config, config, run)
        wired = self._current()
        return wired.core, wired.requests.make(read_call(query, make_config, call, interval))

    @property
    def _staged(self) -> StagedFaissRetriever | None:
        return self.retriever if isinstance(self.retriever, StagedFaissRetriever) else None

    @property
    def _embedding_model(self) -> Embeddings | None:
        if self.embeddings is None and self.vectorstore is not None:
            model = self.vectorstore.embeddings
            # A list, where a store searches several vectors: any of them may do, but not all.
            return None if isinstance(model, list) else model
        if self.embeddings is None and self._staged is not None:
            return self._staged.embedding_model
        return self.embeddings

    def _wrapped(self) -> tuple[StoreFacts, int | None]:
        """Return what is known of the wrapped store or retriever, and its default k."""
        if self.vectorstore is not None:
            facts = facts_of(self.vectorstore, self.search_kwargs.keys(), self.search_type)
            return with_chosen_vectors(facts, self), DEFAULT_K
        if self.vectors is not None:
            msg = "vectors= is for a vectorstore: nothing else is known to rank by their distance"
            raise ConfigurationError(msg)
        if self._staged is not None:
            return self._staged.core.facts, self._staged.k or self._staged.core.k
        return StoreFacts(doubt=_RETRIEVER), None

    def _requests_for(
        self, facts: StoreFacts, live: LiveState, code: tuple[OwnParts, OwnParts]
    ) -> Requests:
        knobs = CacheKnobs(**{name: getattr(self, name) for name in CacheKnobs.model_fields})
        if self.vectorstore is not None:
            return StoreRequests(
                knobs, live, self.vectorstore, self.search_type, self.search_kwargs, facts, code
            )
        if self._staged is not None:
            return StagedRequests(knobs, live, self._staged, code)
        assert self.retriever is not None  # noqa: S101 - checked on construction
        return WrappedRequests(knobs, live, self.retriever, code)

    def _reader(
        self, facts: StoreFacts
    ) -> Callable[[Sequence[tuple[str, Any]]], list[Document | None]] | None:
        """Return a function that reads documents by id, if there is one."""
        if self.vectorstore is not None:
            return reader_of(self.vectorstore, facts)
        return None if self._staged is None else self._staged.core.read

    @override
    def _current(self) -> Wired:
        # Pydantic itself looks for a private attribute everywhere else first.
        private = self.__pydantic_private__
        assert private is not None  # noqa: S101 - set on construction
        wired: Wired = private["_wired"]
        return wired if wired.live.change() is None else super()._current()

    @override
    def _question_of(self, wired: Wired, question: Any, call: dict[str, Any]) -> Question[Document]:
        made: Question[Document] = wired.requests.make(read_call(question, _no_config, call))
        return made

    @override
    def _settings(self) -> dict[str, Any]:
        # One that was put among the arguments of the search since the retriever was made counts.
        search_kwargs = dict(self.search_kwargs)
        k = search_kwargs.pop("k", self.k)
        return super()._settings() | {"k": k, "search_kwargs": search_kwargs}


def _live(
    store: VectorStore | None, wrapped: RetrieverLike | None, embeddings: Embeddings | None
) -> tuple[list[object], list[object]]:
    """Return the stores and models that an application may change, and the retrievers."""
    own = store.embeddings if embeddings is None and store is not None else embeddings
    if wrapped is None:
        return [store, own], []
    parts = parts_within(wrapped)
    own_stores = filter(is_own_object, parts.others)
    return [*parts.stores, *own_stores, own], parts.known


def _dispatch_event(run_manager: CallbackManagerForRetrieverRun, trace: RetrievalTrace) -> None:
    if _hears_events(run_manager, trace):
        child = run_manager.get_child()
        child.on_custom_event(QUERY_CACHE_EVENT, asdict(trace), run_manager.run_id)


async def _adispatch_event(
    run_manager: AsyncCallbackManagerForRetrieverRun, trace: RetrievalTrace
) -> None:
    if _hears_events(run_manager, trace):
        child = run_manager.get_child()
        await child.on_custom_event(QUERY_CACHE_EVENT, asdict(trace), run_manager.run_id)


def _hears_events(
    run_manager: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
    trace: RetrievalTrace,
) -> bool:
    """Put the trace into the run's metadata; return whether a handler of a child hears of events.

    The child takes a while to make.
    """
    run_manager.metadata.update(  # the dict that tracers were given when the run began
        query_cache_hit=trace.hit,
        query_cache_shared=trace.shared,
        query_cache_distance=trace.distance,
    )
    return not all(map(_IGNORES_EVENTS, run_manager.inheritable_handlers))


def _no_config() -> None:
    """Return no configuration: nothing is run."""
