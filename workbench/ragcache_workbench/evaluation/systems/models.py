"""What the adapters of both frameworks' models have in common."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from ragcache_integrations.adaptive import Asker
from ragcache_integrations.engine import EngineStats, RAGCacheEngine
from ragcache_integrations.engine.arguments import GIB
from ragcache_integrations.engine.tiny_model import has_random_weights
from ragcache_integrations.llms.handover import backend_of
from ragcache_integrations.llms.knobs import LLMKnobs

__all__ = ["Model"]

logger = logging.getLogger(__name__)

LIKELIEST = 20
"""First tokens to request; the limit of vLLM's default settings and of most servers."""


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
    llm: LLMKnobs | None
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
