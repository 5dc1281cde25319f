"""Answers and arguments of modular models; extends :mod:`ragcache_integrations.core.generation`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from ragcache_integrations.core.checks import unknown_name
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
    """Modules to leave out of a prompt, in addition to its tenant and timeout.

    Attributes:
        masked: Names of modules that other tokens must not see; documents are named by their ids.
        dropped: Names of modules that are left out altogether.
    """

    masked: Collection[str]
    dropped: Collection[str]


class PrefillKnobs(PromptKnobs, total=False):
    """Arguments of a prefill.

    Attributes:
        room: Tokens that will probably follow; more may, at the cost of a larger buffer.
    """

    room: int


class GenerationKnobs(PromptKnobs, SamplingKnobs, total=False):
    """Arguments of the methods that answer a single prompt."""


class BatchKnobs(CallOptions, SamplingKnobs, total=False):
    """Arguments of the methods that answer several prompts."""


def check_sampling(knobs: Mapping[str, Any]) -> Sampling:
    """Make a :class:`~ragcache_integrations.core.generation.Sampling` from keyword arguments.

    Raises:
        ConfigurationError: An argument is unknown or out of its range.
    """
    unknown = sorted(set(knobs) - set(SAMPLING_NAMES))
    if unknown:
        raise ConfigurationError(unknown_name("argument", unknown[0], SAMPLING_NAMES))
    return Sampling(**knobs)


class _Reuse:
    """How much of its encoded modules an answer computed again."""

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
        strategy: Name of the strategy that chose the tokens to compute again.
        recomputed_share: Share of the encoded tokens that was computed again; 1 is full prefill, 0
            is Prompt Cache.
        ttft: Seconds until the first token.
    """

    strategy: str = ""
    recomputed_share: float = 0.0
    ttft: float = math.nan
