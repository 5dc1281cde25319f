"""The retrievers and models that are evaluated, regardless of their framework."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, field, fields
from pathlib import Path
from typing import Any

from ragcache_integrations.adaptive import Asker
from ragcache_integrations.core.blocks import context_value
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.engine import EngineStats, RAGCacheEngine
from ragcache_integrations.engine.arguments import GIB
from ragcache_integrations.engine.tiny_model import has_random_weights
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.handover import backend_of
from ragcache_workbench.evaluation.datasets import EvalDocument

__all__ = [
    "CACHE_FACTS",
    "CURRENT",
    "Model",
    "Noted",
    "Retrieved",
    "Retriever",
    "check_retrievers",
    "no_retriever",
    "noting_embedding",
    "vector_ids",
]


logger = logging.getLogger(__name__)

LIKELIEST = 20
"""First tokens to request; the limit of vLLM's default settings and of most servers."""


@dataclass(slots=True)
class Noted:
    """What hooks record while a question is being answered.

    Attributes:
        hit: Whether the query cache answered; ``None`` if there is none.
        distance: On a hit, the distance to the question whose entry answered.
        recall_bound: On a hit, the recall that is proven, 0 to 1.
        shared: Whether a concurrent search for the same question answered.
        embedding_seconds: Seconds spent embedding the question; ``None`` if unknown.
    """

    hit: bool | None = None
    distance: float | None = None
    recall_bound: float | None = None
    shared: bool = False
    embedding_seconds: float | None = None


CACHE_FACTS = tuple(fact.name for fact in fields(Noted))
"""Facts that our retrievers report of their query cache."""

CURRENT: ContextVar[Noted | None] = ContextVar("ragcache_evaluation_noted", default=None)
"""Where hooks record facts of the question that the current task or thread is answering."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The documents retrieved for a question.

    Attributes:
        documents: The documents, best first.
        noted: What hooks recorded meanwhile.
    """

    documents: tuple[PromptDocument, ...]
    noted: Noted = field(default_factory=Noted)


@dataclass(frozen=True, slots=True)
class Retriever:
    """A retriever of either framework, with the state of its query cache.

    Attributes:
        name: A short name for reports.
        search: Retrieves documents; its hooks note facts in :data:`CURRENT`.
        search_store: Retrieves the documents of the store itself; ``None`` if unknown.
        cache: The retriever, if it has a query cache of ours; else ``None``.
    """

    name: str
    search: Callable[[str], Awaitable[Sequence[PromptDocument]]]
    search_store: Callable[[str], Sequence[PromptDocument]] | None = None
    cache: Any = None

    async def retrieve(self, text: str) -> Retrieved:
        """Retrieve documents without blocking the event loop."""
        noted = Noted()
        with context_value(CURRENT, noted):
            documents = await self.search(text)
        return Retrieved(tuple(documents), noted)

    def reference(self, text: str) -> list[str] | None:
        """Ids of the documents that the store itself returns; ``None`` if unknown."""
        if self.search_store is None:
            return None
        return [document.id for document in self.search_store(text)]

    @property
    def has_state(self) -> bool:
        """Whether there are answers of a query cache to save."""
        return self.cache is not None and self.cache.stats().cache is not None

    def save(self, path: Path) -> None:
        """Write the query cache to a file."""
        if self.cache is not None:
            self.cache.save(path)

    def load(self, path: Path) -> None:
        """Replace the query cache by one that :meth:`save` wrote."""
        if self.cache is not None:
            self.cache.load(path)

    def clear(self) -> None:
        """Empty the query cache."""
        if self.cache is not None:
            self.cache.clear()


def no_retriever() -> Retriever:
    """Retrieves nothing: the model answers without documents."""

    async def search(_: str) -> Sequence[PromptDocument]:
        return ()

    return Retriever("none", search)


def check_retrievers(kind: type, expected: str, *retrievers: Any) -> None:
    """Check that retrievers are those of a framework; ``None`` is one that is not there.

    Raises:
        ConfigurationError: One is not of ``kind``, which ``expected`` describes.
    """
    for part in retrievers:
        if part is not None and not isinstance(part, kind):
            msg = f"retriever must be one of {expected}, got {type(part).__name__}"
            raise ConfigurationError(msg)


def vector_ids(documents: Sequence[EvalDocument], index: Any) -> list[str]:
    """Name all vectors of a FAISS index; those after the documents' are never to be found."""
    others = range(len(documents), index.ntotal)
    return [*(document.id for document in documents), *map("vector-{}".format, others)]


@contextmanager
def noting_embedding() -> Iterator[None]:
    """Add the block's time to the record of the question that this context is answering, if any."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        noted = CURRENT.get()
        if noted is not None:
            seconds = time.perf_counter() - begun
            noted.embedding_seconds = (noted.embedding_seconds or 0.0) + seconds


@dataclass(eq=False)
class Model:
    """A model of either framework.

    Attributes:
        make_asker: Makes what sends requests, with some arguments for every ``call``.
        llm: The LLM object; ``None`` for a model of another package.
        name: Path or name of the model.
        fields: Names of the arguments that its class has.
        noise: Whether its answers are noise; ``None`` to find out.
        owned: Whether :meth:`close` closes it.
        whole_answers: Whether log-probabilities come with complete answers only, not with pieces
            of streams.
        random_weights: Whether its answers are noise.
        answers: Its answers with their likeliest first tokens, by digests of their prompts, for
            runs that ask it once for equal prompts.
    """

    make_asker: Callable[..., Asker]
    llm: BaseRAGCacheLLM | None
    name: str
    fields: Collection[str]
    noise: InitVar[bool | None] = None
    owned: bool = False
    whole_answers: bool = False
    random_weights: bool = field(init=False)
    answers: dict[str, tuple[str, Mapping[str, float]]] = field(default_factory=dict)

    def __post_init__(self, noise: bool | None) -> None:
        if self.llm is not None:
            self.name = self.llm.model_name or self.name
        self.random_weights = self._is_noise() if noise is None else noise

    @property
    def eager_first(self) -> bool:
        """Whether the first piece of an answer is its first token, even if it has no text.

        This holds for an engine on this machine, which streams token by token.
        """
        return self.llm is not None and self.llm.base_url is None

    def asker(self, *, options: bool) -> Asker:
        """Return what sends requests; with ``options`` it requests the likeliest first tokens."""
        return self.make_asker(call=self._likeliest() if options else {})

    def _likeliest(self) -> dict[str, Any]:
        """The arguments by which it returns the likeliest tokens; empty if unknown."""
        if self.llm is not None:
            return {"logprobs": LIKELIEST}
        if {"logprobs", "top_logprobs"} <= set(self.fields):
            return {"logprobs": True, "top_logprobs": LIKELIEST}
        return {}

    def _is_noise(self) -> bool:
        if self.llm is None or not self.eager_first:
            return False
        engine = self.llm.engine
        if isinstance(engine, str | None):  # not an engine of the user's
            return has_random_weights(self.llm.model)
        return has_random_weights(engine.model)

    def backend(self) -> object:
        """Return the engine or server that answers; ``None`` for a model of another package."""
        return None if self.llm is None else backend_of(self.llm)

    def _engine(self) -> RAGCacheEngine | None:
        backend = self.backend() if self.eager_first else None
        return backend if isinstance(backend, RAGCacheEngine) else None

    @property
    def reuses_anywhere(self) -> bool:
        """Whether it may read documents in any place of a prompt, approximately."""
        if self.llm is None:
            return False
        engine = self.llm.engine
        shared = engine.reuse if isinstance(engine, RAGCacheEngine) else None
        return "anywhere" in {self.llm.reuse, shared}

    def stats(self) -> EngineStats | None:
        """Return the counters of the bundled engine; ``None`` for another model."""
        engine = self._engine()
        return None if engine is None else engine.stats()

    def reset(self) -> None:
        """Empty the engine's KV cache, if there is one."""
        engine = self._engine()
        if engine is not None:
            engine.reset_cache()

    def encode(self, texts: Sequence[str]) -> None:
        """Encode documents ahead, for an engine that reuses them anywhere."""
        engine = self._engine()
        if engine is None or self.llm is None:
            return
        tokens = engine.encode(texts).prompt_tokens
        needed = tokens * engine.stats().block_bytes / engine.block_size / GIB
        # With room on disk, `encode` has raised an error if it holds less than all of them.
        if needed > self.llm.document_cache_gib and not self.llm.disk_cache_gib:
            logger.warning(
                "the documents need %.1f GiB, and document_cache_gib=%g: those that do not fit are "
                "computed exactly, so that answers seem better and later than with all of them; "
                "disk_cache_gib=%.0f would hold them",
                needed,
                self.llm.document_cache_gib,
                needed + 1,
            )

    def close(self) -> None:
        """Close the model if it is owned."""
        if self.owned and self.llm is not None:
            self.llm.close()
