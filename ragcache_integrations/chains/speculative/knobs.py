"""What the speculative pipelines of both frameworks have in common."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Hashable
from typing import Any, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ragcache_integrations.core.checks import explain_error
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.llms.handover import abackend_of, backend_of
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.speculation import Speculator

__all__ = ["SpeculationArguments", "SpeculationKnobs", "Speculators", "read_speculation_knobs"]

logger = logging.getLogger(__name__)

_lock = make_lock()
_speculators: weakref.WeakValueDictionary[Hashable, Speculator] = weakref.WeakValueDictionary()


class SpeculationKnobs(BaseModel):
    """What can be set on a speculative pipeline.

    Attributes:
        speculate: Whether generation may begin before the search has ended; ``False`` to compare.
        max_prefill_bs: Prompts in their prefill at which guesses wait. As many as saturate the
            device where ``None``, by the profile that ``ragcache profile`` has measured.
        stage_interval: Seconds between two stages of a search whose retriever has no ``plan`` of
            its own; at most, and where ``None``, the time that a prefill takes.
    """

    model_config = ConfigDict(extra="forbid")

    speculate: bool = Field(default=True, strict=True)
    max_prefill_bs: int | None = Field(default=None, ge=1, strict=True)
    stage_interval: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class SpeculationArguments(TypedDict, total=False):
    """The fields of :class:`SpeculationKnobs` as keyword arguments."""

    speculate: bool
    max_prefill_bs: int | None
    stage_interval: float | None


def read_speculation_knobs(arguments: SpeculationArguments) -> SpeculationKnobs:
    """Return the knobs that keyword arguments set.

    Raises:
        ConfigurationError: One is unknown or out of its range.
    """
    try:
        return SpeculationKnobs(**arguments)
    except ValidationError as error:
        raise explain_error(error, SpeculationKnobs.model_fields) from error


class Speculators:
    """Finds the speculator of an LLM object's engine; pipelines with the same knobs share it.

    Args:
        llm: The LLM object, whosever it is.
        knobs: How to speculate.
    """

    def __init__(self, llm: object, knobs: SpeculationKnobs) -> None:
        self._llm = llm if isinstance(llm, LLMKnobs) else None
        self._name = type(llm).__name__
        self._arguments: dict[str, Any] = {
            name: getattr(knobs, name) for name in SpeculationKnobs.model_fields
        }
        self._warned = False
        self._kept: Speculator | None = None  # for as long as this lives

    def get(self) -> Speculator | None:
        """The speculator; ``None`` where none of our engines answers, which is said once.

        The first call may take as long as the engine's start.

        Raises:
            RAGCacheError: What making the engine ran into.
        """
        return self._of(None if self._llm is None else backend_of(self._llm))

    async def aget(self) -> Speculator | None:
        """The speculator, without blocking the event loop."""
        engine = None if self._llm is None else await abackend_of(self._llm)
        return await asyncio.to_thread(self._of, engine)  # it may read a profile from the disk

    def _of(self, engine: Any) -> Speculator | None:
        if engine is None or not hasattr(engine, "aload"):  # as servers do not
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s is not answered by an engine of this process: every search is finished "
                    "before its answer begins",
                    self._name,
                )
            return None
        key = (id(engine), *self._arguments.values())  # it lives as long as its speculator
        with _lock:
            found = _speculators.get(key)
            if found is None:
                found = _speculators[key] = Speculator(engine, **self._arguments)
            self._kept = found
            return found
