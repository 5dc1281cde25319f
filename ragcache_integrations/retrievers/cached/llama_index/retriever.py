"""The approximate query cache as a LlamaIndex retriever, and the form in which nodes are saved."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self, Unpack

import llama_index.core.instrumentation as instrument
from llama_index.core import Settings
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.vector_store import VectorStoreIndex
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.schema import (
    BaseNode,
    IndexNode,
    MetadataMode,
    NodeWithScore,
    QueryBundle,
    QueryType,
    TextNode,
)
from llama_index.core.storage.docstore.utils import doc_to_json, json_to_doc
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryMode
from numpy.typing import ArrayLike
from typing_extensions import override

from ragcache_integrations.core.checks import check_one_of, check_type
from ragcache_integrations.core.flows import arun, run
from ragcache_integrations.core.saved_values import decode_value, encode_value
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Explanation
from ragcache_integrations.retrievers.cached.controls import CacheControls, Wired
from ragcache_integrations.retrievers.cached.core import RetrieverCore
from ragcache_integrations.retrievers.cached.knobs import (
    CacheKnobs,
    knobs_of_cache,
    read_knobs,
)
from ragcache_integrations.retrievers.cached.lazy_cache import with_chosen_vectors
from ragcache_integrations.retrievers.copying import copy_model
from ragcache_integrations.retrievers.keys import in_context, is_own_object, parts_within, window_of
from ragcache_integrations.retrievers.retrieval import (
    QUERY_CACHE_METADATA,
    DocumentStage,
    Note,
    Question,
    RetrievalTrace,
    Source,
    Texts,
)
from ragcache_integrations.retrievers.runs.llama_index import arun_stages, as_bundle, run_stages
from ragcache_integrations.retrievers.sharing import FinishedRetriever
from ragcache_integrations.retrievers.staged import STAGED_INDEX_METHODS
from ragcache_integrations.retrievers.staged.llama_index import StagedFaissRetriever
from ragcache_integrations.retrievers.stores import LiveState, StoreFacts, tag_of, unwatch, watch
from ragcache_integrations.vector_search import StagedIndex

from .requests import (
    INDEX_METHODS,
    QUERY_MODE,
    Requests,
    check_search_kwargs,
    facts_of,
    is_heard,
    methods_of,
    nodes_of,
    spell_ids,
)

if TYPE_CHECKING:
    from ragcache_integrations._arguments import CacheArguments

__all__ = [
    "ApproximateCacheRetriever",
    "QueryCacheEvent",
    "copy_node",
    "decode_node",
    "encode_node",
    "identify_node",
    "question_in_context",
]


def identify_node(scored: NodeWithScore) -> tuple[str, str]:
    """Return a node's id and its text, without its metadata."""
    node = scored.node
    if type(node) is TextNode:  # as most are, and asking costs as much as all else here
        return node.id_, node.text
    return node.node_id, node.get_content(MetadataMode.NONE)


def copy_node(node: BaseNode, note: Note | None) -> BaseNode:
    """Return a node that the caller may change."""
    copied = copy_model(node)
    if note is not None:
        copied.metadata[QUERY_CACHE_METADATA] = dict(note)
        # It is about this answer: neither the model's prompt nor an embedding may change by it.
        copied.excluded_llm_metadata_keys.append(QUERY_CACHE_METADATA)
        copied.excluded_embed_metadata_keys.append(QUERY_CACHE_METADATA)
    return copied


def encode_node(scored: NodeWithScore) -> dict[str, Any]:
    """Turn a node and its score into what JSON can hold.

    Raises:
        ConfigurationError: It would not come back as it is.
    """
    score = None if scored.score is None else float(scored.score)
    metadata = encode_value(scored.node.metadata, "metadata")
    bare = scored.node.model_copy(update={"metadata": {}})
    try:
        saved = {"node": doc_to_json(bare), "metadata": {}, "score": score}
        back = decode_node(json.loads(json.dumps(saved)))
        same = type(back.node) is type(bare) and back.node == bare
    except (TypeError, ValueError):
        same = False
    if not same:
        kind = type(scored.node).__name__
        msg = f"a {kind} that JSON cannot hold cannot be saved: {scored.node!r:.200}"
        raise ConfigurationError(msg)
    return saved | {"metadata": metadata}


def decode_node(saved: dict[str, Any]) -> NodeWithScore:
    """Turn that into the node and its score again."""
    node = json_to_doc(saved["node"])
    node.metadata = decode_value(saved["metadata"])
    return NodeWithScore(node=node, score=saved["score"])


dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]  # re-exported untyped

_INSTEAD = {
    BaseRetriever: "from_retriever() takes a retriever",
    VectorStoreIndex: "from_index() takes an index",
    BaseIndex: "from_retriever() takes the retriever that its as_retriever() makes",
    BasePydanticVectorStore: "from_vectorstore() takes a store",
    BaseQueryEngine: "AnswerCache takes a query engine, and from_retriever() its retriever",
}
_RETRIEVER = (
    "a wrapped retriever shows neither its way of searching nor vectors; wrap its index instead"
)


class QueryCacheEvent(BaseEvent):
    """Instrumentation event that every call of the retriever dispatches.

    Attributes:
        query: The question.
        trace: What happened to it.
    """

    query: str
    trace: RetrievalTrace

    @classmethod
    def class_name(cls) -> str:
        """Name of the event."""
        return "QueryCacheEvent"


class ApproximateCacheRetriever(CacheControls, FinishedRetriever, BaseRetriever):
    """Answers a question with the nodes of an earlier question that is similar enough.

    Drop-in replacement for ``index.as_retriever()``, or for any other retriever::

        retriever = ApproximateCacheRetriever.from_index(index, tolerance=0.3)

    Nodes are returned as they come from the store, with their scores. The scores of a re-ranked hit
    are those that the store would return for this question. The cache follows nodes that are added,
    deleted or updated through the index that you pass, or through its vector store. After other
    changes, call :meth:`clear`; or :meth:`attach` the object that makes them, or set a ``ttl``.
    Every call dispatches a :class:`QueryCacheEvent`.

    The settings of a finished retriever cannot be changed, except ``similarity_top_k``, as in all
    retrievers of LlamaIndex.

    It is safe to use from several threads and event loops at the same time.

    Args:
        index: The index to search. Pass either ``index`` or ``retriever``.
        retriever: The retriever to ask.
        embed_model: Embeds the questions; ``None`` for the model of the index or the retriever, or
            else ``Settings.embed_model``.
        search_kwargs: Arguments for the index's search, as ``index.as_retriever`` takes them,
            such as ``filters``.
        context: Returns the turns before each question, see :meth:`with_context`.
        callback_manager: LlamaIndex's callbacks.
        object_map: Objects by the ids of the nodes that represent them.
        objects: Nodes that represent objects.
        verbose: Whether LlamaIndex prints the steps of recursive retrieval.
        **knobs: See :class:`~ragcache_integrations.retrievers.cached.knobs.CacheKnobs`.

    Raises:
        ConfigurationError: An argument is unknown, out of its range or missing.
    """

    _FINISHED = frozenset(
        {*CacheKnobs.model_fields, "index", "retriever", "embed_model", "search_kwargs"}
    )

    def __init__(
        self,
        index: VectorStoreIndex | None = None,
        *,
        retriever: BaseRetriever | None = None,
        embed_model: BaseEmbedding | None = None,
        search_kwargs: Mapping[str, Any] | None = None,
        context: Callable[[], object] | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
        **knobs: Unpack[CacheArguments],
    ) -> None:
        check_one_of("index", index, "retriever", retriever)
        if index is not None:
            check_type("index", index, VectorStoreIndex, "a VectorStoreIndex", _INSTEAD)
        if retriever is not None:
            check_type("retriever", retriever, BaseRetriever, "a BaseRetriever", _INSTEAD)
        check_type("embed_model", embed_model, BaseEmbedding | None, "a BaseEmbedding or None")
        checked = read_knobs(knobs)
        self._search_kwargs = check_search_kwargs(search_kwargs or {}, index)
        self._context = _check_context(context)
        self._knobs = checked
        self._k = checked.k
        self._index = index
        self._own_embed_model = embed_model
        self._retriever = retriever
        self._shared_wired = [self._wire()]
        wrapped = self._wrapped
        super().__init__(
            # Not every retriever of LlamaIndex calls its base class's constructor.
            callback_manager=callback_manager or getattr(wrapped, "callback_manager", None),
            object_map=object_map or getattr(wrapped, "object_map", None),
            objects=objects,
            verbose=verbose,
        )

    @property
    def _wired(self) -> Wired:
        return self._shared_wired[0]

    @_wired.setter
    def _wired(self, wired: Wired) -> None:
        self._shared_wired[0] = wired  # for those of other conversations, too: see with_context()

    @override
    def _wire(self) -> Wired:
        """Return a core for what is wrapped as it is now."""
        index, wrapped = self._index, self._retriever
        live = LiveState(partial(_live, index, wrapped, self._own_embed_model))
        if wrapped is None:
            assert index is not None  # noqa: S101 - one of them is there
            wrapped = index.as_retriever(**self._search_kwargs)
        self._wrapped = wrapped
        model = self._own_embed_model or _model_of(wrapped)
        if not isinstance(model, BaseEmbedding):
            raise ConfigurationError(
                "embed_model must be a BaseEmbedding, as neither what is wrapped nor "
                f"Settings.embed_model has one, got {model!r}"
            )
        self._embed_model = model  # where LlamaIndex's own retrievers have theirs
        self._staged = wrapped if isinstance(wrapped, StagedFaissRetriever) else None
        facts, default_k = self._facts()
        requests = Requests(self._knobs, live, wrapped, index, self._search_kwargs, facts, model)
        core = self._make_core(model, facts, default_k)
        return Wired(core, requests, live, self._knobs.pickle_cache)

    def _make_core(
        self, model: BaseEmbedding, facts: StoreFacts, default_k: int | None
    ) -> RetrieverCore[NodeWithScore]:
        index, staged, wrapped = self._index, self._staged, self._wrapped

        def copy_scored(
            scored: NodeWithScore, score: float | None, note: Note | None
        ) -> NodeWithScore:
            node = copy_node(scored.node, note)
            if score is None or facts.score is None:
                return copy_model(scored, node=node)
            return copy_model(scored, node=node, score=facts.score(score))

        async def aembed(texts: Texts) -> ArrayLike:
            return await model.aget_agg_embedding_from_queries(list(texts))

        # Retrievers do not show their index in public.
        searched = getattr(wrapped, "_index", None) if index is None else index
        core = RetrieverCore(
            knobs_of_cache(self._knobs),
            Source(
                embed=lambda texts: model.get_agg_embedding_from_queries(list(texts)),
                identify=identify_node,
                copy=copy_scored,
                aembed=aembed,
                k=default_k,
                facts=facts,
                tag=tag_of(model, wrapped if index is None else index.vector_store),
                encode=encode_node,
                decode=decode_node,
                read=_reader(index, staged),
                score=attrgetter("score"),
                embed_documents=model.get_text_embedding_batch,
                text_of=lambda node: node.node.get_content(MetadataMode.EMBED),
                spell_ids=partial(spell_ids, getattr(searched, "vector_store", None)),
                window=window_of(model),
                kind=NodeWithScore,
            ),
        )
        if isinstance(searched, VectorStoreIndex) and self._knobs.follow_changes:
            core.follower.follow(searched, INDEX_METHODS)
            store = searched.vector_store
            core.follower.follow(store, methods_of(store))
        elif isinstance(searched, StagedIndex) and self._knobs.follow_changes:
            core.follower.follow(searched, STAGED_INDEX_METHODS)
        elif self._knobs.follow_changes:
            said = self._knobs.ttl is not None or self._knobs.version is not None
            core.follower.follow_parts(parts_within(wrapped), methods_of, said=said)
        return core

    def _facts(self) -> tuple[StoreFacts, int | None]:
        """Return what is known of the wrapped index or retriever, and its default k."""
        if self._index is not None:
            mode = VectorStoreQueryMode(self._search_kwargs.get(QUERY_MODE, "default"))
            facts = facts_of(self._index, mode.value, self._search_kwargs.keys())
            return with_chosen_vectors(facts, self._knobs), DEFAULT_SIMILARITY_TOP_K
        if self._knobs.vectors is not None:
            msg = "vectors= is for an index: nothing else is known to rank by their distance"
            raise ConfigurationError(msg)
        if self._staged is not None:
            return self._staged.core.facts, self._staged.core.k
        return StoreFacts(doubt=_RETRIEVER), None

    def _default_k(self) -> int | None:
        return self._core.default_k

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "index": self._index,
            "retriever": self._wrapped if self._index is None else None,
            "embed_model": self._own_embed_model,
            "search_kwargs": self._search_kwargs,
            "context": self._context,
        }

    @classmethod
    def from_index(
        cls,
        index: VectorStoreIndex,
        embed_model: BaseEmbedding | None = None,
        *,
        search_kwargs: Mapping[str, Any] | None = None,
        **knobs: Unpack[CacheArguments],
    ) -> Self:
        """Wrap an index.

        Args:
            index: The index.
            embed_model: Embeds the questions; ``None`` for the index's own model.
            search_kwargs: Arguments for the search, as ``index.as_retriever`` takes them.
            **knobs: See :class:`~ragcache_integrations.retrievers.cached.knobs.CacheKnobs`.

        Raises:
            ConfigurationError: An argument is unknown or out of its range.
        """
        check_type("index", index, VectorStoreIndex, "a VectorStoreIndex", _INSTEAD)
        return cls(index, embed_model=embed_model, search_kwargs=search_kwargs, **knobs)

    @classmethod
    def from_vectorstore(
        cls,
        vectorstore: BasePydanticVectorStore,
        embed_model: BaseEmbedding,
        *,
        search_kwargs: Mapping[str, Any] | None = None,
        **knobs: Unpack[CacheArguments],
    ) -> Self:
        """Wrap a vector store that keeps its nodes' text.

        Args:
            vectorstore: The store. For one that keeps only vectors, such as FAISS, use
                :meth:`from_index` with the index that was built over it.
            embed_model: Embeds the questions.
            search_kwargs: Arguments for the search, as ``index.as_retriever`` takes them.
            **knobs: See :class:`~ragcache_integrations.retrievers.cached.knobs.CacheKnobs`.

        Raises:
            ConfigurationError: An argument is unknown or out of its range, or the store does not
                keep text.
        """
        stores = "a vector store of LlamaIndex's"
        check_type("vectorstore", vectorstore, BasePydanticVectorStore, stores, _INSTEAD)
        check_type("embed_model", embed_model, BaseEmbedding, "a BaseEmbedding")
        if not vectorstore.stores_text:
            name = type(vectorstore).__name__
            msg = f"{name} does not keep the nodes' text: wrap the index over it with from_index"
            raise ConfigurationError(msg)
        index = VectorStoreIndex.from_vector_store(vectorstore, embed_model=embed_model)
        return cls(index, search_kwargs=search_kwargs, **knobs)

    @classmethod
    def from_retriever(
        cls,
        retriever: BaseRetriever,
        embed_model: BaseEmbedding | None = None,
        **knobs: Unpack[CacheArguments],
    ) -> Self:
        """Wrap any retriever. It gets the question's embedding, so it need not embed again.

        Args:
            retriever: The retriever.
            embed_model: Embeds the questions; ``None`` for the retriever's own model, or else
                ``Settings.embed_model``.
            **knobs: See :class:`~ragcache_integrations.retrievers.cached.knobs.CacheKnobs`.

        Raises:
            ConfigurationError: An argument is unknown, out of its range or missing.
        """
        check_type("retriever", retriever, BaseRetriever, "a BaseRetriever", _INSTEAD)
        return cls(retriever=retriever, embed_model=embed_model, **knobs)

    def attach(self, changing: VectorStoreIndex | BasePydanticVectorStore | StagedIndex) -> None:
        """Follow nodes that are added, deleted or updated through an index or a store object.

        Use it for the index of a wrapped retriever, or for another object of the same store. A
        wrapped index is followed already, unless ``follow_changes=False``. After changes made in
        other ways, such as by another process, call :meth:`clear`.

        Args:
            changing: An index, which is followed with its vector store, a vector store, or our
                own index of vectors.

        Raises:
            ConfigurationError: The object is none of these, or its class cannot be watched.
        """
        if isinstance(changing, StagedIndex):
            watch(changing, STAGED_INDEX_METHODS, self._core.follower)
            return
        if isinstance(changing, VectorStoreIndex):
            watch(changing, INDEX_METHODS, self._core.follower)
            changing = changing.vector_store
        if not isinstance(changing, BasePydanticVectorStore):
            msg = f"attach takes a VectorStoreIndex or a vector store, got {changing!r}"
            raise ConfigurationError(msg)
        watch(changing, methods_of(changing), self._core.follower)

    def detach(self, changing: VectorStoreIndex | BasePydanticVectorStore | StagedIndex) -> None:
        """Stop following an index's or a store's changes."""
        if isinstance(changing, VectorStoreIndex):
            unwatch(changing, self._core.follower)
            changing = changing.vector_store
        unwatch(changing, self._core.follower)

    def with_context(self, context: Callable[[], object]) -> Self:
        """Return a retriever for one conversation, over the same cache.

        Its questions are embedded, compared and searched for together with the turns before them::

            memory = Memory.from_defaults()
            engine = ContextChatEngine.from_defaults(
                retriever.with_context(memory.get), memory=memory, llm=llm
            )

        Not needed where a chat engine condenses its questions first. For a single question, pass
        :func:`question_in_context` instead.

        Args:
            context: Returns the turns, as :func:`question_in_context` takes them; called for every
                question.

        Raises:
            ConfigurationError: It is no function.
        """
        clone = copy(self)
        clone._context = _check_context(context)  # noqa: SLF001 - of the same class
        return clone

    def stages(
        self, query: QueryType, *, interval: float | None = None
    ) -> Generator[DocumentStage[NodeWithScore]]:
        """Answer in stages: those of a wrapped :class:`StagedFaissRetriever`, or guess and answer.

        A guess consists of nodes in the cache; there is none if guesses were rarely right lately. A
        hit is a single stage. Provisional nodes are never cached. Closing the generator ends a
        search in stages; it belongs to this caller alone.

        Args:
            query: The question, as for ``retrieve``.
            interval: Duration of a stage in seconds, unless the wrapped retriever has a ``plan``.

        Raises:
            ConfigurationError: An argument cannot be used.
            EmbeddingError: The embedding model gave something unusable.
        """
        bundle = as_bundle(query)
        return run_stages(
            self,
            bundle,
            lambda: self._stages(bundle, interval),
            partial(_dispatch_event, bundle),
        )

    async def astages(
        self, query: QueryType, *, interval: float | None = None
    ) -> AsyncGenerator[DocumentStage[NodeWithScore]]:
        """Async version of :meth:`stages`."""
        bundle = as_bundle(query)
        run = arun_stages(
            self,
            bundle,
            lambda: self._astages(bundle, interval),
            partial(_dispatch_event, bundle),
        )
        async with aclosing(run) as stages:
            async for stage in stages:
                yield stage

    def explain(self, query: QueryType) -> Explanation:
        """Explain why a question would be a hit or a miss. The index is not searched.

        Args:
            query: The question, as for ``retrieve``.

        Raises:
            ConfigurationError: The question has no text to embed.
            EmbeddingError: The embedding model gave something unusable.
        """
        core, question = self._ask(query, {})
        return run(core.explain(question))

    async def aexplain(self, query: QueryType) -> Explanation:
        """Async version of :meth:`explain`."""
        core, question = self._ask(query, {})
        return await arun(core.explain(question), core.executor)

    @override
    def _current(self) -> Wired:
        wired: Wired = self._shared_wired[0]
        return wired if wired.live.change() is None else super()._current()

    @override
    def _question_of(
        self, wired: Wired, question: QueryType, call: dict[str, Any]
    ) -> Question[NodeWithScore]:
        if call:
            msg = f"a call takes the question alone, got {', '.join(sorted(call))}"
            raise ConfigurationError(msg)
        return self._request(wired, as_bundle(question))

    def _request(
        self, wired: Wired, query: QueryBundle, interval: float | None = None
    ) -> Question[NodeWithScore]:
        if self._context is not None and query.custom_embedding_strs is None:
            query = question_in_context(query, self._context())
        question: Question[NodeWithScore] = wired.requests.make(query, self._k, interval)
        return question

    def _stages(
        self, query: QueryBundle, interval: float | None
    ) -> Generator[DocumentStage[NodeWithScore]]:
        wired = self._current()
        return wired.core.stages(self._request(wired, query, interval))

    def _astages(
        self, query: QueryBundle, interval: float | None
    ) -> AsyncGenerator[DocumentStage[NodeWithScore]]:
        wired = self._current()
        return wired.core.astages(self._request(wired, query, interval))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        wired = self._current()
        core, question = wired.core, self._request(wired, query_bundle)
        core.retrieve(question)
        _dispatch_event(query_bundle, question.trace)
        return question.documents

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        wired = self._current()
        core, question = wired.core, self._request(wired, query_bundle)
        await core.aretrieve(question)
        _dispatch_event(query_bundle, question.trace)
        return question.documents


def _model_of(wrapped: BaseRetriever) -> BaseEmbedding | None:
    """Return the model of a retriever, which shows it nowhere in public, or LlamaIndex's own."""
    own = getattr(wrapped, "_embed_model", None)
    # Not the property, which would load a model of OpenAI's if there is none.
    return Settings._embed_model if own is None else own  # noqa: SLF001 - as said above


def _live(
    index: VectorStoreIndex | None, wrapped: BaseRetriever | None, model: BaseEmbedding | None
) -> tuple[list[object], list[object]]:
    """Return the stores and models that an application may change, and the retrievers."""
    if index is not None:
        own = index._embed_model  # noqa: SLF001 - shown nowhere in public
        return [index.vector_store, own if model is None else model], []
    assert wrapped is not None  # noqa: S101 - one of them is there
    parts = parts_within(wrapped)
    own_stores = filter(is_own_object, parts.others)
    return [*parts.stores, *own_stores, model or _model_of(wrapped)], parts.known


def question_in_context(question: QueryType, turns: object) -> QueryBundle:
    """Return a follow-up question as a query that is embedded together with the turns before it.

    Retrievers find its nodes by that embedding, caches compare it as a whole, and a query engine
    answers the question alone::

        retriever.retrieve(question_in_context("and in 2024?", memory.get()))

    Args:
        question: The question. An embedding that it has already is dropped.
        turns: A text; or texts and chat messages, the oldest first. The last few turns are enough:
            all of them have to be alike for an entry to be shared.

    Raises:
        ConfigurationError: The turns are something else.
    """
    bundle = as_bundle(question)
    strings = [in_context(text, turns) for text in bundle.embedding_strs]
    if strings == bundle.embedding_strs:
        return bundle
    return replace(bundle, custom_embedding_strs=strings, embedding=None)


def _check_context(context: Callable[[], object] | None) -> Callable[[], object] | None:
    if context is None or (callable(context) and not inspect.iscoroutinefunction(context)):
        return context
    msg = (
        f"context must be a function without arguments, no coroutine, or None, got {context!r:.100}"
    )
    raise ConfigurationError(msg)


def _dispatch_event(query: QueryBundle, trace: RetrievalTrace) -> None:
    if is_heard(dispatcher):
        dispatcher.event(QueryCacheEvent(query=query.query_str, trace=trace))


def _reader(
    index: VectorStoreIndex | None, staged: StagedFaissRetriever | None
) -> Callable[[Sequence[tuple[str, float | None]]], list[NodeWithScore | None]] | None:
    """Return a function that reads nodes by id, if there is one."""
    if staged is not None:
        return staged.core.read
    nodes = None if index is None else nodes_of(index)
    if nodes is None:
        return None

    def read(ids_and_scores: Sequence[tuple[str, float | None]]) -> list[NodeWithScore | None]:
        pairs = zip(nodes([node_id for node_id, _ in ids_and_scores]), ids_and_scores, strict=True)
        return [
            None if node is None else NodeWithScore(node=node, score=score)
            for node, (_, score) in pairs
        ]

    return read
