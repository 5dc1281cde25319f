"""Base classes of our LlamaIndex query engines: events, retrieval, copies.

LlamaIndex's query engines and synthesizers are no pydantic models, so copies and pickles of them
are made here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import llama_index.core.instrumentation as instrument
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.synthesis import (
    SynthesizeEndEvent,
    SynthesizeStartEvent,
)
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.settings import Settings
from pydantic import BaseModel

from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "CopiedBySettings",
    "PendingResponse",
    "QueryEngine",
    "RetrieverEngine",
    "check_retriever",
]


class CopiedBySettings:
    """Makes deep copies and pickles from an object's settings, without what it has learnt.

    A deep copy has the same callback manager; a pickle has none. Subclasses name the arguments of
    their constructors, which they keep under these names after an underscore. Arguments that are
    knobs are kept together.
    """

    callback_manager: Any
    _argument_names: ClassVar[tuple[str, ...]]
    _knobs: BaseModel | None = None

    def __copy__(self) -> Self:
        clone = object.__new__(type(self))
        vars(clone).update(vars(self))
        return clone

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        manager = self.callback_manager
        memo[id(manager)] = manager
        arguments = copy.deepcopy(self._arguments(), memo)
        return type(self)(**arguments | {"callback_manager": manager})

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._arguments()), ()

    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments for an equal object, except the callback manager."""
        kept = {name: getattr(self, f"_{name}") for name in self._argument_names}
        return {**kept, **dict(self._knobs or ())}


dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]  # re-exported untyped


@dataclass
class PendingResponse:
    """Holds the response of an event, which ends with it."""

    response: RESPONSE_TYPE = field(default_factory=lambda: Response(None))


class QueryEngine(CopiedBySettings, BaseQueryEngine):
    """A query engine whose subclasses make the response within the event of the query.

    Args:
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.
    """

    def __init__(self, *, streaming: bool, callback_manager: CallbackManager | None) -> None:
        self._streaming = streaming
        super().__init__(callback_manager or Settings.callback_manager)

    def _respond(self, query: QueryBundle) -> RESPONSE_TYPE:
        """Answer a query."""
        raise NotImplementedError

    async def _arespond(self, query: QueryBundle) -> RESPONSE_TYPE:
        """Async version of :meth:`_respond`."""
        raise NotImplementedError

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        with self._event(CBEventType.QUERY, query_bundle) as pending:
            pending.response = self._respond(query_bundle)
        return pending.response

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        with self._event(CBEventType.QUERY, query_bundle) as pending:
            pending.response = await self._arespond(query_bundle)
        return pending.response

    @contextmanager
    def _event(self, kind: CBEventType, query: QueryBundle) -> Iterator[PendingResponse]:
        pending = PendingResponse()
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query.query_str}
        with self.callback_manager.event(kind, payload=payload) as event:
            yield pending
            event.on_end(payload={EventPayload.RESPONSE: pending.response})

    @contextmanager
    def _synthesis(self, query: QueryBundle) -> Iterator[PendingResponse]:
        """Report the events that a response synthesizer would report."""
        dispatcher.event(SynthesizeStartEvent(query=query))
        with self._event(CBEventType.SYNTHESIZE, query) as pending:
            yield pending
        dispatcher.event(SynthesizeEndEvent(query=query, response=pending.response))


class RetrieverEngine(QueryEngine):
    """A query engine over a retriever and postprocessors.

    Args:
        retriever: Finds the nodes.
        node_postprocessors: Applied to the nodes, in order.
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.

    Raises:
        ConfigurationError: ``retriever`` is no retriever of LlamaIndex.
    """

    _argument_names: ClassVar[tuple[str, ...]] = ("retriever", "node_postprocessors", "streaming")

    def __init__(
        self,
        retriever: BaseRetriever,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None,
        *,
        streaming: bool,
        callback_manager: CallbackManager | None,
    ) -> None:
        check_retriever("retriever", retriever)
        self._retriever = retriever
        self._node_postprocessors = tuple(node_postprocessors or ())
        super().__init__(streaming=streaming, callback_manager=callback_manager)
        for postprocessor in self._node_postprocessors:
            postprocessor.callback_manager = self.callback_manager

    @classmethod
    def from_args(cls, retriever: BaseRetriever, llm: LLM | None = None, **arguments: Any) -> Self:
        """Make a query engine, like ``RetrieverQueryEngine.from_args``.

        Args:
            retriever: Finds the nodes.
            llm: Answers; ``None`` for LlamaIndex's ``Settings.llm``.
            **arguments: The other arguments of the class.
        """
        return cls(retriever, llm=llm, **arguments)  # type: ignore[call-arg] # of subclasses

    @property
    def retriever(self) -> BaseRetriever:
        """Finds the nodes."""
        return self._retriever

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the postprocessed nodes for a question."""
        return self._postprocess(self._retriever.retrieve(query_bundle), query_bundle)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Async version of :meth:`retrieve`."""
        nodes = await self._retriever.aretrieve(query_bundle)
        return await self._apostprocess(nodes, query_bundle)

    def _postprocess(self, nodes: list[NodeWithScore], query: QueryBundle) -> list[NodeWithScore]:
        for postprocessor in self._node_postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=query)
        return nodes

    async def _apostprocess(
        self, nodes: list[NodeWithScore], query: QueryBundle
    ) -> list[NodeWithScore]:
        for postprocessor in self._node_postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=query)
        return nodes


def check_retriever(name: str, retriever: object) -> None:
    """Check that an argument is a retriever of LlamaIndex.

    Raises:
        ConfigurationError: It is something else.
    """
    if not isinstance(retriever, BaseRetriever):
        msg = f"{name} must be a BaseRetriever, got {retriever!r:.100}"
        raise ConfigurationError(msg)
