"""The knobs of document order that both frameworks' classes have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, Self

from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    SkipValidation,
    ValidationError,
    model_validator,
)

from ragcache_integrations.core.checks import explain_error
from ragcache_integrations.core.ids import content_id
from ragcache_integrations.knowledge_tree.simulation.corpora import estimate_tokens
from ragcache_integrations.prompts.fixed_settings import FixedSettings
from ragcache_integrations.prompts.order.batch import ScheduledRequest
from ragcache_integrations.prompts.order.order import DocumentOrder, OrderStats, SharedOrders
from ragcache_integrations.prompts.order.settings import Order, TreeSource, Uncached

__all__ = ["OrderKnobs", "Retrieved", "retrieved"]


class Retrieved(NamedTuple):
    """A request's documents as the core takes them: ids, and lengths in tokens, estimated."""

    documents: list[Hashable]
    tokens: list[int]


def retrieved(found: Iterable[tuple[str | None, str]]) -> Retrieved:
    """A framework's documents, given by id and text, for the core.

    A document without an id goes by its text, as it does in the engine.
    """
    documents: list[Hashable] = []
    tokens: list[int] = []
    for name, text in found:
        documents.append(name or content_id(text))
        tokens.append(estimate_tokens(text))
    return Retrieved(documents, tokens)


class OrderKnobs(FixedSettings):
    """What can be set on a class that orders documents.

    Attributes:
        order: ``relevance`` leaves documents as retrieved; ``reverse`` puts the most relevant
            last, next to the question; ``cached_first`` first the longest path of documents whose
            KV cache is there already, then the others.
        max_displacement: For ``cached_first``: no document stands farther than so many places from
            where it stands by relevance; ``None`` for no limit.
        pin_top: For ``cached_first``: so many documents stay first, in order of relevance.
        uncached: For ``cached_first``: how the documents that are on no cached path follow, by
            ``relevance`` or by ``popularity``: what would save most tokens if it came again as
            often as before goes first. ``auto`` takes relevance while the cache holds all that was
            sent, popularity where it does not or a batch is ordered.
        cache_tokens: Room of the KV cache for documents, in tokens, where it is limited; ``None``
            for the engine's, or for more than will ever be sent.
        engine: An engine whose real tree is looked at now and then; it stays yours to close.
        refresh_seconds: With an engine: time from one look at its tree to the next.
        namespace: Tenants with different namespaces never share a KV cache.
        shared_state: What is known of the cache, handed on to copies and to what is rebuilt for a
            call with other settings (``configurable_fields``).
    """

    model_config = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    order: Order = "relevance"
    max_displacement: int | None = Field(default=None, strict=True)
    pin_top: int = Field(default=0, strict=True)
    uncached: Uncached = "auto"
    cache_tokens: int | None = Field(default=None, strict=True)
    engine: Annotated[TreeSource | None, SkipValidation] = Field(default=None, exclude=True)
    refresh_seconds: float = Field(default=30.0, strict=True)
    namespace: str = Field(default="", strict=True)
    shared_state: Annotated[SharedOrders, SkipValidation] = Field(
        default_factory=SharedOrders, exclude=True, repr=False
    )

    _core: DocumentOrder = PrivateAttr()

    def __init__(self, *args: Any, **knobs: Any) -> None:
        try:
            super().__init__(*args, **knobs)
        except ValidationError as error:
            raise explain_error(error, type(self).model_fields) from error

    @model_validator(mode="after")
    def _make_core(self) -> Self:
        self._core = DocumentOrder(
            self.order,
            max_displacement=self.max_displacement,
            pin_top=self.pin_top,
            uncached=self.uncached,
            cache_tokens=self.cache_tokens,
            engine=self.engine,
            refresh_seconds=self.refresh_seconds,
            shared=self.shared_state,
        )
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = {} if memo is None else memo
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        again = type(self)(**{**fields, "shared_state": copy.deepcopy(self.shared_state, memo)})
        memo[id(self)] = again
        return again

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A pickle has the settings; an engine, and what is known of its cache, stay behind."""
        left = {"engine", "shared_state"}
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in left}
        return _rebuilt, (type(self), fields)

    # What works alike in both frameworks.

    def refresh(self) -> bool:
        """Look at the engine's tree now; whether there is one. Waits for the engine."""
        return self._core.refresh()

    async def arefresh(self) -> bool:
        """The async twin of :meth:`refresh`."""
        return await self._core.arefresh()

    def clear(self) -> None:
        """Forget what is cached, because the cache was emptied."""
        self._core.clear()

    def stats(self) -> OrderStats:
        """What was ordered so far, and what was expected to be cached."""
        return self._core.stats()

    # For the adapters.

    def _arrange(self, request: Retrieved) -> tuple[int, ...]:
        return self._core.arrange(*request, namespace=self.namespace)

    def _arrange_all(self, requests: Sequence[Retrieved]) -> list[tuple[int, ...]]:
        documents, tokens = _columns(requests)
        return self._core.arrange_all(documents, tokens, namespace=self.namespace)

    def _report(self, request: Retrieved, cached: int) -> None:
        self._core.report(request.documents, cached, namespace=self.namespace)

    def _schedule(self, requests: Sequence[Retrieved]) -> list[ScheduledRequest]:
        documents, tokens = _columns(requests)
        return self._core.schedule(documents, tokens, namespace=self.namespace)


def _rebuilt(kind: type[OrderKnobs], fields: dict[str, Any]) -> OrderKnobs:
    return kind(**fields)


def _columns(requests: Sequence[Retrieved]) -> tuple[list[list[Hashable]], list[list[int]]]:
    return [one.documents for one in requests], [one.tokens for one in requests]
