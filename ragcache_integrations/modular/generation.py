"""What can be asked of a generation, and what comes back.

The fields are those of :mod:`ragcache_integrations.engine.generation`, so that adapters can read
either; what the prompt's modules did to an answer comes on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "FinishReason",
    "Generation",
    "GenerationChunk",
    "Sampling",
    "SamplingKnobs",
    "TokenLogprob",
    "Usage",
]

FinishReason = Literal["stop", "length", "abort"]

MAX_LOGPROBS = 20


class SamplingKnobs(TypedDict, total=False):
    """Arguments of every method that generates; see :class:`Sampling`."""

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


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is generated.

    Attributes:
        max_tokens: The most tokens to generate; ``None`` for as many as the context window leaves.
        temperature: 0 is greedy.
        top_p: Nucleus sampling; 1 keeps every token.
        top_k: Sample among the k likeliest tokens; 0 keeps every token.
        frequency_penalty: Lowers a token's score by this much for each time that it stands in the
            answer already, from -2 to 2.
        presence_penalty: Lowers a token's score by this much once it stands in the answer.
        repetition_penalty: Divides positive scores, and multiplies negative ones, of tokens that
            stand in the answer already, or in the prompt where they may be seen; above 0.
        stop: Strings that end the answer; they are not part of it.
        seed: Seed of the sampling; ``None`` draws a fresh one.
        logprobs: How many alternatives to report for each token, 0 for the chosen token alone,
            ``None`` for no log-probabilities.
        ignore_eos: Generate on past the model's own end, up to ``max_tokens``.

    Raises:
        ConfigurationError: One is out of its range.
    """

    max_tokens: int | None = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _check("max_tokens", self.max_tokens, 1, whole=True)
        _check("temperature", self.temperature, 0)
        _check("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            msg = "top_p must be above 0, got 0"
            raise ConfigurationError(msg)
        _check("top_k", self.top_k, 0, whole=True)
        _check("frequency_penalty", self.frequency_penalty, -2, 2)
        _check("presence_penalty", self.presence_penalty, -2, 2)
        _check("repetition_penalty", self.repetition_penalty, 0)
        if self.repetition_penalty == 0:
            msg = "repetition_penalty must be above 0, got 0"
            raise ConfigurationError(msg)
        if self.seed is not None:
            _check("seed", self.seed, -(2**63), 2**63 - 1, whole=True)
        if self.logprobs is not None:
            _check("logprobs", self.logprobs, 0, MAX_LOGPROBS, whole=True)
        strings = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if not all(isinstance(string, str) and string for string in strings):
            msg = f"stop must be non-empty strings, got {self.stop!r}"
            raise ConfigurationError(msg)
        object.__setattr__(self, "stop", strings)

    @classmethod
    def of(cls, knobs: SamplingKnobs) -> Sampling:
        """From keyword arguments.

        Raises:
            ConfigurationError: One is unknown or out of its range.
        """
        unknown = sorted(set(knobs) - set(cls.__slots__))
        if unknown:
            msg = f"unknown argument {unknown[0]!r}: allowed are {', '.join(cls.__slots__)}"
            raise ConfigurationError(msg)
        given: Any = knobs
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens a request took.

    Attributes:
        prompt_tokens: Length of the prompt, modules that nothing may see left out.
        completion_tokens: Length of the answer so far.
        cached_tokens: Prompt tokens that were served as they had been encoded.
        estimated: Never here: the engine counts what it computes.
        cached_known: Always here.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: bool = False
    cached_known: bool = True

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A generated token with its natural-log probability.

    Attributes:
        token: The token's text.
        token_id: Its number in the vocabulary.
        logprob: Natural logarithm of its probability, before temperature and nucleus.
        top: The likeliest alternatives, best first; as many as were asked for.
    """

    token: str
    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """A piece of a streamed answer. Concatenated texts are the answer.

    Attributes:
        text: New text; may be empty (a token that is only part of a character, or the end).
        token_ids: New tokens.
        logprobs: One entry a new token, where asked for.
        finish_reason: Set on the last chunk alone.
        usage: Set on the first chunk and on the last.
        strategy: As in :class:`Generation`.
        recomputed_share: As in :class:`Generation`.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    strategy: str = ""
    recomputed_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer.

    Attributes:
        text: The answer.
        token_ids: Its tokens.
        finish_reason: ``stop`` (ended by itself or by a stop string), ``length`` or ``abort``.
        usage: What it took.
        logprobs: One entry a token, where asked for.
        strategy: Name of the strategy that chose what to compute again.
        recomputed_share: Of the tokens that were encoded already, the share computed again; 1 is
            full prefill, 0 is Prompt Cache.
        ttft: Seconds to the first token.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    strategy: str = ""
    recomputed_share: float = 0.0
    ttft: float = math.nan


def _check(
    name: str, value: object, low: float, high: float = math.inf, *, whole: bool = False
) -> None:
    kinds = int if whole else (int, float)
    if (
        isinstance(value, bool)
        or not isinstance(value, kinds)
        or not math.isfinite(value)
        or not low <= value <= high
    ):
        kind = "a whole number" if whole else "a number"
        limits = f"at least {low}" if math.isinf(high) else f"from {low} to {high}"
        msg = f"{name} must be {kind} {limits}, got {value!r}"
        raise ConfigurationError(msg)
