"""What generation from modules adds to :mod:`ragcache_integrations.core.generation`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from ragcache_integrations.core.generation import (
    CallOptions,
    Generation,
    GenerationChunk,
    Sampling,
)
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "BatchKnobs",
    "GenerationKnobs",
    "ModularChunk",
    "ModularGeneration",
    "PrefillKnobs",
    "PromptKnobs",
    "SamplingKnobs",
    "check_sampling",
]

SAMPLING_NAMES = tuple(field.name for field in fields(Sampling))


class SamplingKnobs(TypedDict, total=False):
    """The fields of :class:`~ragcache_integrations.core.generation.Sampling`, as arguments."""

    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    stop: str | tuple[str, ...] | list[str]
    seed: int | None
    logprobs: int | None
    ignore_eos: bool


class PromptKnobs(CallOptions, total=False):
    """What is left out of one prompt, besides whose it is and how long it may take.

    Attributes:
        masked: Names of modules that nothing may see; documents' are their ids.
        dropped: Names of modules that are left out altogether.
    """

    masked: Collection[str]
    dropped: Collection[str]


class PrefillKnobs(PromptKnobs, total=False):
    """Arguments of a prefill.

    Attributes:
        room: Tokens that will follow; more may, at the price of another buffer.
    """

    room: int


class GenerationKnobs(PromptKnobs, SamplingKnobs, total=False):
    """Arguments of every method that answers one prompt."""


class BatchKnobs(CallOptions, SamplingKnobs, total=False):
    """Arguments of every method that answers several prompts."""


def check_sampling(knobs: Mapping[str, Any]) -> Sampling:
    """Make the sampling that keyword arguments describe.

    Raises:
        ConfigurationError: One is unknown or out of its range.
    """
    unknown = sorted(set(knobs) - set(SAMPLING_NAMES))
    if unknown:
        msg = f"unknown argument {unknown[0]!r}: allowed are {', '.join(SAMPLING_NAMES)}"
        raise ConfigurationError(msg)
    return Sampling(**knobs)


class _Reuse:
    """How much of the encoded modules an answer rests on was computed again."""

    __slots__ = ()

    strategy: str
    recomputed_share: float

    @property
    def reuse(self) -> Mapping[str, Any]:
        """The strategy and the recomputed share, for an answer's metadata."""
        return {"strategy": self.strategy, "recomputed_share": self.recomputed_share}


@dataclass(frozen=True, slots=True)
class ModularChunk(_Reuse, GenerationChunk):
    """A piece of a streamed answer from modules.

    Attributes:
        strategy: As in :class:`ModularGeneration`.
        recomputed_share: As in :class:`ModularGeneration`.
    """

    strategy: str = ""
    recomputed_share: float = 0.0


@dataclass(frozen=True, slots=True)
class ModularGeneration(_Reuse, Generation):
    """A whole answer from modules.

    Attributes:
        strategy: Name of the strategy that chose what to compute again.
        recomputed_share: Of the tokens that were encoded already, the share computed again; 1 is
            full prefill, 0 is Prompt Cache.
        ttft: Seconds to the first token.
    """

    strategy: str = ""
    recomputed_share: float = 0.0
    ttft: float = math.nan
