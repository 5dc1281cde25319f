"""From a call of the LlamaIndex retriever to a question for its core.

Knows LlamaIndex's indexes and vector stores by name, and imports none.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import llama_index.core.instrumentation as instrument
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store import VectorIndexRetriever, VectorStoreIndex
from llama_index.core.instrumentation.event_handlers import NullEventHandler
from llama_index.core.instrumentation.span_handlers import NullSpanHandler
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.llama_index import OWN_HANDLERS, current_run
from ragcache_integrations.prompts.recognition import REQUESTS
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs
from ragcache_integrations.retrievers.keys import (
    NO_ARGUMENTS,
    FrozenArguments,
    Naming,
    OwnParts,
    RequestKey,
    Snapshot,
    Snapshots,
    StepWatch,
    Surroundings,
    freeze_arguments,
    nameless_values,
    opaque_values,
    said_besides,
    wrapped_settings,
)
from ragcache_integrations.retrievers.retrieval import Embedding, Question
from ragcache_integrations.retrievers.staged.llama_index import StagedFaissRetriever
from ragcache_integrations.retrievers.stores import (
    LLAMA_INDEX_KINDS,
    LiveState,
    StoreFacts,
    StoreKind,
    StoreMethods,
    VectorSearch,
    brings,
    is_kind,
    kind_of,
)

__all__ = [
    "INDEX_METHODS",
    "QUERY_MODE",
    "Requests",
    "check_search_kwargs",
    "facts_of",
    "is_heard",
    "methods_of",
    "nodes_of",
    "said_by_bundle",
    "spell_ids",
]


_OWN = "vector_store_kwargs"
_INDEX = "llama_index.core.indices.vector_store.base"
_BASE = "llama_index.core.vector_stores.types"
_ROOT = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
_HANDLERS_OF_NOTHING = frozenset({NullSpanHandler})
_SIMPLE = "llama_index.core.vector_stores.simple"
_FAISS_MAP = "llama_index.vector_stores.faiss.map_store"


def facts_of(index: Any, mode: str, arguments: Collection[str] = ()) -> StoreFacts:
    """Return what is known of an index, searched in a mode with arguments of some names."""
    store = index.vector_store
    unknown = "it is not known how {} searches"
    kind = kind_of(store, LLAMA_INDEX_KINDS)
    facts = None if kind is None else kind.read_facts(index)
    if kind is None or facts is None:
        return StoreFacts(doubt=unknown.format(type(store).__name__))
    known = kind.brings(store, "query")
    if not known or not brings(index, _INDEX, "as_retriever"):
        own = index if known else store
        facts = facts.of_other_searches(unknown.format(type(own).__name__))
    if mode != "default":
        return facts.incomplete(f"vector_store_query_mode={mode!r} does not rank by distance alone")
    if _OWN in arguments:
        doubt = f"{_OWN} may leave documents out"
        return replace(facts, exact=False, doubt=doubt, exhaustive=None)
    return facts


def nodes_of(index: Any) -> Callable[[Sequence[str]], list[Any]] | None:
    """Return a function that reads an index's nodes by id; ``None`` if it cannot."""
    store = index.vector_store
    if store.stores_text and brings(store, _BASE, "get_nodes"):
        return None

    def read(ids: Sequence[str]) -> list[Any]:
        nodes = {node_id: index.docstore.get_node(node_id, raise_error=False) for node_id in ids}
        missing = [node_id for node_id, node in nodes.items() if node is None]
        if missing and store.stores_text:
            nodes |= {node.node_id: node for node in store.get_nodes(node_ids=missing)}
        return [nodes[node_id] for node_id in ids]

    return read


def _listed(store: Any) -> Collection[str] | None:
    """Return the ids of all nodes of a store that keeps them in memory, once for each vector."""
    if is_kind(store, f"{_SIMPLE}.SimpleVectorStore"):
        return list(store.data.embedding_dict)
    if is_kind(store, f"{_FAISS_MAP}.FaissMapVectorStore"):
        # Searches name what they find by this mapping, and the other one may say otherwise: ``add``
        # forgets the number of an id that it has already, and numbers vectors by how many there
        # are, so that after a deletion two may have one number.
        return list(store._faiss_id_to_node_id_map.values())  # noqa: SLF001 - no public way
    return None


def methods_of(store: Any) -> StoreMethods:
    """Return which methods change a store's nodes."""
    return _methods(kind_of(store, LLAMA_INDEX_KINDS) or _ANY)


def spell_ids(store: Any, ids: Iterable[object]) -> Collection[str] | None:
    """Return how ids of a store's nodes are spelt; ``None`` if that is not known of one."""
    return (kind_of(store, LLAMA_INDEX_KINDS) or _ANY).ids(ids)


_ANY = StoreKind("a vector store", (), "", lambda _: StoreFacts())


@cache
def _methods(kind: StoreKind) -> StoreMethods:
    def added(arguments: Mapping[str, Any], _: Any) -> Collection[str] | None:
        nodes = arguments.get("nodes")
        ids = [node.node_id for node in nodes] if isinstance(nodes, list | tuple) else None
        return None if ids is None else kind.ids(ids)

    def deleted(arguments: Mapping[str, Any], _: Any) -> Collection[str] | None:
        ids, filters = arguments.get("node_ids"), arguments.get("filters")
        return kind.ids(ids) if isinstance(ids, list | tuple) and filters is None else None

    return StoreMethods(
        base=_BASE,
        updates={"add": added, "async_add": added},
        removes={"delete_nodes": deleted, "adelete_nodes": deleted},
        listing=_listed,
        shrinks=frozenset(
            {"delete", "adelete", "delete_nodes", "adelete_nodes", "clear", "aclear"}
        ),
    )


_INDEX_CHANGES = (
    "delete",
    "delete_nodes",
    "delete_ref_doc",
    "insert",
    "insert_nodes",
    "refresh",
    "refresh_ref_docs",
    "update",
    "update_ref_doc",
)
INDEX_METHODS = StoreMethods(
    base="",
    listing=lambda index: list(index.index_struct.nodes_dict.values()),
    shrinks=frozenset({"delete_ref_doc", "adelete_ref_doc", "delete_nodes", "adelete_nodes"}),
    passes_on=frozenset(name for method in _INDEX_CHANGES for name in (method, f"a{method}")),
)
"""Which methods change an index's nodes; they do so through its store."""


QUERY_MODE = "vector_store_query_mode"
"""Name of the argument that says how an index is searched."""

# Arguments of VectorIndexRetriever that the cache sets itself, or that are none of a search.
_RESERVED = {"self", "index", "similarity_top_k", "kwargs", "embed_model", "node_ids"} | {
    "callback_manager",
    "object_map",
    "verbose",
}
_SEARCH_ARGUMENTS = {
    *(inspect.signature(VectorIndexRetriever).parameters.keys() - _RESERVED),
    "vector_store_kwargs",
}


class _Search(NamedTuple):
    """How one question is searched for.

    Not by ``retrieve()``: it would follow the nodes that stand for objects and answer this question
    from them, and send callbacks and events. Our own ``retrieve()`` does that, again for each
    question.

    Attributes:
        requests: Knows what is wrapped.
        query: The question.
        arguments: Returns a copy of the arguments of the index's search.
    """

    requests: Requests
    query: QueryBundle
    arguments: Callable[[], Mapping[str, Any]]

    def _retriever(self, count: int) -> BaseRetriever:
        index = self.requests.index
        if index is None:
            return self.requests.wrapped
        return index.as_retriever(similarity_top_k=count, **self.arguments())

    def search(self, embedding: Embedding, count: int) -> Sequence[NodeWithScore]:
        bundle, bring = _with_embedding(self.query, embedding), self.requests.bring
        if bring is not None:
            return bring(embedding, count, {**self.arguments(), "query_bundle": bundle})
        search = search_method(self._retriever(count), "_retrieve")
        nodes: Sequence[NodeWithScore] = search(bundle)
        return nodes

    async def asearch(self, embedding: Embedding, count: int) -> Sequence[NodeWithScore]:
        bundle, abring = _with_embedding(self.query, embedding), self.requests.abring
        if abring is not None:
            return await abring(embedding, count, {**self.arguments(), "query_bundle": bundle})
        search = search_method(self._retriever(count), "_aretrieve")
        nodes: Sequence[NodeWithScore] = await search(bundle)
        return nodes

    def plain(self, count: int) -> Sequence[NodeWithScore]:
        return self._retriever(count)._retrieve(copy(self.query))  # noqa: SLF001 - as said above

    async def aplain(self, count: int) -> Sequence[NodeWithScore]:
        return await self._retriever(count)._aretrieve(copy(self.query))  # noqa: SLF001 - as said above


class Requests:
    """Makes questions of calls.

    Args:
        knobs: The retriever's settings.
        live: The settings of what is wrapped, which an application may change.
        wrapped: What is asked; of an index, its retriever.
        index: The index that is searched, if it is one.
        search_kwargs: Arguments for the index's search.
        facts: What is known of what is wrapped.
        model: The embedding model.

    Attributes:
        wrapped: As given.
        index: As given.
        bring: Searches the index with vectors, if that is worth it.
        abring: Async version of ``bring``.
    """

    def __init__(
        self,
        knobs: CacheKnobs,
        live: LiveState,
        wrapped: BaseRetriever,
        index: VectorStoreIndex | None,
        search_kwargs: dict[str, Any],
        facts: StoreFacts,
        model: BaseEmbedding,
    ) -> None:
        self._knobs = knobs
        self._is_current = live.is_current
        self.wrapped = wrapped
        self.index = index
        self._search_kwargs = search_kwargs  # not a copy: what is changed in it is honoured
        self._staged = wrapped if isinstance(wrapped, StagedFaissRetriever) else None
        default = index is not None and search_kwargs.get(QUERY_MODE, "default") == "default"
        self._ranked = (self._staged is not None or default) and not facts.by_text
        self._own = opaque_values(self._settable())
        # An index is asked for what its arguments say, but the application's own code within it,
        # and what else is wrapped, may read anything.
        asks = wrapped if index is None else index
        code = OwnParts(asks, model)
        known = index is not None or self._staged is not None
        self._watch = StepWatch(knobs.ignores, code) if code.any or not known else None
        self._embeds = OwnParts(model).any
        self._snapshots = Snapshots()
        self._blocks = _blocks(wrapped)
        self.bring: VectorSearch[Sequence[NodeWithScore]] | None = None
        self.abring: VectorSearch[Awaitable[Sequence[NodeWithScore]]] | None = None
        # Vectors that say nothing of the store's order are not worth their way.
        if index is not None and facts.vectors is not None:
            self.bring, self.abring = facts.search, facts.asearch

    def make(
        self, query: QueryBundle, k: int | None, interval: float | None = None
    ) -> Question[NodeWithScore]:
        """Make the question of one call.

        Args:
            query: The question.
            k: How many nodes to return; ``None``: as many as what is wrapped gives.
            interval: Seconds that a stage should take.
        """
        # No LLM call of another namespace may recognise what this span finds, and retrieve() tells.
        if not _HANDLERS_OF_NOTHING.issuperset(map(type, _ROOT.span_handlers)):
            REQUESTS.set_namespace(current_run(), self._knobs.namespace, and_around=True)
        search_kwargs = self._search_kwargs
        snapshot = self._snapshots.of(search_kwargs) if search_kwargs else NO_ARGUMENTS
        around = None if self._watch is None else self._watch.surroundings()
        frozen = self._frozen(query, snapshot, around)
        key, opaque = self._key(frozen)
        copies: Callable[[], Mapping[str, Any]] = dict
        if search_kwargs:
            copies = (lambda: search_kwargs) if opaque else snapshot.copies()

        search = _Search(self, query, copies)
        # The first nodes of such a search need not be what it finds where fewer are wanted.
        whole = self.index is not None and not self._ranked
        conditions: tuple[Callable[[], bool], ...] = (self._is_current,)
        if self.index is None:
            conditions = (
                lambda: self._frozen(query, snapshot, around).key == frozen.key,
                self._is_current,
            )
        question = Question(
            tuple(query.embedding_strs),  # none of an empty text
            search.search,
            search.asearch,
            k=k,
            key=(key, k) if whole else key,
            namespace=self._knobs.namespace,
            opaque=opaque,
            around=around,
            embeds_around=around if self._embeds else None,
            conditions=conditions,
            ranked=self._ranked,
            whole=whole,
            annotate=self._knobs.annotate,
            embedding=query.embedding,
            unembedded=_unembedded(query),
            plain=search.plain,
            aplain=search.aplain,
        )
        if self._staged is not None:
            core = self._staged.core
            question.search = core.search
            question.stages = partial(core.search_stages, interval=interval)
            question.asearch = question.plain = question.aplain = None
        # Vectors that come along are worth a thread.
        if self._blocks or (self.bring is not None and self.abring is None):
            question.asearch = question.aplain = None
        return question

    def _frozen(
        self, query: QueryBundle, snapshot: Snapshot, around: Surroundings | None
    ) -> FrozenArguments:
        arguments = self._settable() if self.index is None else {}
        plain = type(query) is QueryBundle and type(query.query_str) is str
        if not plain or not vars(query).keys() <= _OF_BUNDLES:
            arguments = arguments | said_by_bundle(query)
        if query.image_path is not None:
            arguments["image_path"] = query.image_path
        if self._knobs.tolerance == 0:
            # A bundle may bring other texts to embed, and a wrapped retriever read this one.
            arguments["query_str"] = content_id(query.query_str)
        frozen = snapshot.frozen
        if arguments:
            frozen = frozen.with_others(freeze_arguments(arguments))
        return frozen.with_others(around.frozen) if around is not None and around.values else frozen

    def _key(self, frozen: FrozenArguments) -> tuple[RequestKey, tuple[str, ...]]:
        filter_key = self._knobs.filter_key
        key = self._knobs.namespace, filter_key, frozen.key
        if not frozen.opaque:
            return key, ()
        return key, nameless_values(frozen, Naming(filter_key, own=self._own))

    def _settable(self) -> dict[str, Any]:
        """Return the settings that affect the search and may be changed."""
        if self.index is not None:
            return self._search_kwargs
        if self._staged is not None:
            return {"filter": self._staged.filter}
        return wrapped_settings(self.wrapped)


# Those of ours follow what a retriever returns, not how it searches.
_DEAF = OWN_HANDLERS | {NullEventHandler, NullSpanHandler}

# Tells of the spans of an index's own retriever.
_OF_AN_INDEX = instrument.get_dispatcher(VectorIndexRetriever.__module__)  # type: ignore[attr-defined]  # re-exported untyped


def is_heard(dispatcher: Any) -> bool:
    """Whether anybody hears of a dispatcher's events and spans."""
    while True:
        for handler in (*dispatcher.event_handlers, *dispatcher.span_handlers):
            if type(handler) not in _DEAF:
                return True
        if not dispatcher.propagate:
            return False
        dispatcher = dispatcher.parent


def search_method(retriever: Any, name: str) -> Callable[..., Any]:
    """Return the method by which a retriever searches, without a span that nobody hears of.

    Args:
        retriever: Any retriever; only an index's own one is known well enough to leave it out.
        name: Name of the method.
    """
    method: Callable[..., Any] = getattr(retriever, name)
    if type(retriever) is not VectorIndexRetriever or is_heard(_OF_AN_INDEX):
        return method
    return getattr(method, "__wrapped__", method)


_OF_BUNDLES = frozenset(field.name for field in fields(QueryBundle))


def said_by_bundle(query: QueryBundle) -> dict[str, Any]:
    """Return what a question says besides what every question does, as arguments for its key.

    A subclass may have other fields, and an object other attributes.
    """
    said = said_besides(query_text=query.query_str)
    if type(query) is not QueryBundle or vars(query).keys() - _OF_BUNDLES:
        rest = copy(query)
        for name in _OF_BUNDLES:  # these are compared apart
            object.__setattr__(rest, name, None)
        said["query_bundle"] = rest
    return said


def _with_embedding(query: QueryBundle, embedding: Embedding) -> QueryBundle:
    made = copy(query)
    made.embedding = embedding.tolist()
    return made


def check_search_kwargs(
    search_kwargs: Mapping[str, Any], index: VectorStoreIndex | None
) -> dict[str, Any]:
    """Return a copy of the arguments for an index's search.

    Raises:
        ConfigurationError: There are some without an index, or one that no search knows.
    """
    if search_kwargs and index is None:
        msg = "search_kwargs are for an index; set them on the wrapped retriever instead"
        raise ConfigurationError(msg)
    unknown = sorted(search_kwargs.keys() - _SEARCH_ARGUMENTS)
    if unknown:
        allowed = ", ".join(sorted(_SEARCH_ARGUMENTS))
        msg = f"unknown search_kwargs {', '.join(unknown)}: allowed are {allowed}"
        raise ConfigurationError(msg)
    return dict(search_kwargs)


def _unembedded(query: QueryBundle) -> tuple[str, ...]:
    """Return the question, unless what is embedded in its place contains it, as with turns."""
    asked = query.query_str
    return (
        ()
        if asked in query.embedding_strs or any(asked in text for text in query.embedding_strs)
        else (asked,)
    )


def _blocks(retriever: BaseRetriever) -> bool:
    """Whether the retriever's coroutine is its blocking method in disguise."""
    if type(retriever)._aretrieve is BaseRetriever._aretrieve:  # noqa: SLF001 - asked, not called
        return True
    store = getattr(retriever, "_vector_store", None)
    return (
        isinstance(store, BasePydanticVectorStore)
        and type(store).aquery is BasePydanticVectorStore.aquery
    )
