"""The knobs and speculators of the speculative pipelines of both frameworks."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Hashable
from typing import Any

from pydantic import BaseModel, ConfigDict

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.knobs import Flag, PositiveOrNone, SecondsOrNone
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.handover import abackend_of, backend_of
from ragcache_integrations.speculation import Speculator

__all__ = ["SpeculationKnobs", "Speculators"]

logger = logging.getLogger(__name__)

_lock = make_lock()
_speculators: weakref.WeakValueDictionary[Hashable, Speculator] = weakref.WeakValueDictionary()


class SpeculationKnobs(BaseModel):
    """The settings of a speculative pipeline.

    Attributes:
        speculate: Whether generation may begin before the search has ended; ``False`` for
            comparisons.
        max_prefill_bs: Number of prompts in their prefill from which guesses wait; ``None`` for the
            number that saturates the device, by the measurement of ``ragcache profile``.
        stage_interval: Seconds between two stages of a search whose retriever has no ``plan``; at
            most the time of a prefill, which is the default.
    """

    model_config = ConfigDict(extra="forbid")

    speculate: Flag = True
    max_prefill_bs: PositiveOrNone = None
    stage_interval: SecondsOrNone = None


class Speculators:
    """Finds the speculator of an LLM object's engine; pipelines with the same knobs share it.

    Args:
        llm: Any LLM object.
        knobs: The settings of the speculation.
    """

    def __init__(self, llm: object, knobs: SpeculationKnobs) -> None:
        self._llm = llm if isinstance(llm, BaseRAGCacheLLM) else None
        self._name = type(llm).__name__
        self._arguments: dict[str, Any] = dict(knobs)
        self._warned = False
        self._kept: Speculator | None = None  # keeps the shared speculator alive

    def get(self) -> Speculator | None:
        """The speculator; ``None``, with one warning, if none of our engines answers.

        The first call may take as long as the engine's start.

        Raises:
            RAGCacheError: The engine could not be started.
        """
        return self._of(None if self._llm is None else backend_of(self._llm))

    async def aget(self) -> Speculator | None:
        """Async version of :meth:`get`."""
        engine = None if self._llm is None else await abackend_of(self._llm)
        return await asyncio.to_thread(self._of, engine)  # it may read a profile from disk

    def _of(self, engine: Any) -> Speculator | None:
        if engine is None or not hasattr(engine, "aload"):  # servers have no aload
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s does not run on an engine of this process: answers begin when the search "
                    "has ended",
                    self._name,
                )
            return None
        key = (id(engine), *self._arguments.values())  # the speculator keeps the engine alive
        with _lock:
            speculator = _speculators.get(key)
            if speculator is None:
                speculator = _speculators[key] = Speculator(engine, **self._arguments)
            self._kept = speculator
            return speculator
