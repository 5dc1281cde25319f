"""What can be asked of a generation, and what comes back."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.stats import TreeStats

__all__ = [
    "EngineLoad",
    "EngineStats",
    "FinishReason",
    "Generation",
    "GenerationChunk",
    "SamplingOptions",
    "TokenLogprob",
    "Usage",
    "penalises_answer",
    "plain",
]

FinishReason = Literal["stop", "length", "abort", "unknown"]

MAX_LOGPROBS = 20


def _check_number(
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


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How an answer is generated.

    Attributes:
        max_tokens: The most tokens to generate; ``None`` for as many as the context window leaves.
        temperature: 0 is greedy: reproducible, and the same with a warm cache as with a cold one.
        top_p: Nucleus sampling; 1 keeps every token.
        top_k: Sample among the k likeliest tokens; 0 keeps every token.
        frequency_penalty: Lowers a token's score by this much for each time that it stands in the
            answer already, from -2 to 2; a negative one raises it.
        presence_penalty: Lowers a token's score by this much once it stands in the answer.
        repetition_penalty: Divides positive scores, and multiplies negative ones, of tokens that
            stand in the prompt or the answer already; above 0, and 1 changes nothing.
        stop: Strings that end the answer; they are not part of it.
        seed: Seed of the sampling; ``None`` draws a fresh one.
        logprobs: How many alternatives to report for each token, 0 for the chosen token alone,
            ``None`` for no log-probabilities.
        json_schema: JSON schema that the answer must satisfy.
        choice: Strings of which the answer must be one. Excludes ``json_schema``.
        ignore_eos: Generate on past the model's own end, up to ``max_tokens`` (for measuring).
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
    json_schema: Mapping[str, Any] | None = None
    choice: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _check_number("max_tokens", self.max_tokens, 1, whole=True)
        _check_number("temperature", self.temperature, 0)
        _check_number("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            msg = "top_p must be above 0, got 0"
            raise ConfigurationError(msg)
        _check_number("top_k", self.top_k, 0, whole=True)
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_number("presence_penalty", self.presence_penalty, -2, 2)
        _check_number("repetition_penalty", self.repetition_penalty, 0)
        if self.repetition_penalty == 0:
            msg = "repetition_penalty must be above 0, got 0"
            raise ConfigurationError(msg)
        if self.seed is not None:
            _check_number("seed", self.seed, -(2**63), 2**63 - 1, whole=True)
        if self.logprobs is not None:
            _check_number("logprobs", self.logprobs, 0, MAX_LOGPROBS, whole=True)
        for name in ("stop", "choice"):
            value = getattr(self, name)
            strings = (value,) if isinstance(value, str) else tuple(value or ())
            if not all(isinstance(string, str) and string for string in strings):
                msg = f"{name} must be non-empty strings, got {value!r}"
                raise ConfigurationError(msg)
            object.__setattr__(self, name, tuple(map(plain, strings)))
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", _schema(self.json_schema))
        if self.json_schema is not None and self.choice:
            msg = "json_schema and choice exclude each other, both were given"
            raise ConfigurationError(msg)


def penalises_answer(options: SamplingOptions) -> bool:
    """Whether which tokens come next depends on which of those before are the answer's."""
    return bool(options.frequency_penalty or options.presence_penalty)


def plain(text: str) -> str:
    """The string alone, where its class, such as an enumeration, may be unknown to the engine.

    What is no string is left to whoever refuses it.
    """
    return str.__str__(text) if isinstance(text, str) else text


def _schema(given: object) -> dict[str, Any]:
    """A copy of plain parts, which the engine's process can read."""
    if not isinstance(given, Mapping):
        msg = f"json_schema must be a mapping, got {type(given).__name__}"
        raise ConfigurationError(msg)
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(given), default=_plain_mapping))
        pickle.dumps(copy)  # as it travels; it may be nested too deeply for that alone
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"json_schema must be a JSON schema, which this is not: {error}"
        raise ConfigurationError(msg) from error
    return copy


def _plain_mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    msg = f"a {type(value).__name__} stands in it"
    raise TypeError(msg)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens a request took.

    Attributes:
        prompt_tokens: Length of the prompt.
        completion_tokens: Length of the answer so far.
        cached_tokens: Prompt tokens whose KV cache was reused instead of computed.
        estimated: Whether a server reported no usage, so that the tokens were counted here, without
            those of the chat template.
        cached_known: Whether ``cached_tokens`` was reported; it is 0 where it was not.
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
            self.estimated or other.estimated,
            self.cached_known and other.cached_known,
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
        token_id: Its number in the vocabulary; ``-1`` where a server does not tell.
        logprob: Natural logarithm of its probability.
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
        token_ids: New tokens; empty where a server does not tell.
        logprobs: One entry a new token, where asked for.
        finish_reason: Set on the last chunk alone.
        usage: Set on the last chunk; also on the first, where known, with the cached tokens.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A whole answer.

    Attributes:
        text: The answer.
        token_ids: Its tokens; empty where a server does not tell.
        finish_reason: ``stop`` (ended by itself or by a stop string), ``length``, ``abort``, or
            ``unknown`` where a server does not say.
        usage: What it took.
        logprobs: One entry a token, where asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine is now.

    Attributes:
        free_kv_tokens: KV cache room that a new request could get, in tokens. Blocks that are
            cached but used by no running request count as free.
        total_kv_tokens: The whole KV cache, in tokens.
        running_requests: Requests being computed.
        waiting_requests: Requests in the queue.
        prefilling_requests: Running ones whose prompts are not computed yet.
    """

    free_kv_tokens: int
    total_kv_tokens: int
    running_requests: int
    waiting_requests: int
    prefilling_requests: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine did since it started.

    Attributes:
        requests: Requests accepted.
        finished_requests: Requests that ended by themselves.
        aborted_requests: Requests that were given up: aborted, timed out, dropped.
        failed_requests: Requests that ended in an error.
        prompt_tokens: Prompt tokens of finished requests.
        cached_prompt_tokens: Those of them whose KV cache was reused.
        completion_tokens: Tokens generated by finished requests.
        tree: What the knowledge tree did since the process was last started, as of the last request
            that ended or was given up; ``None`` without one.
        block_bytes: Size of a block of the KV cache, the unit of the tree's counts.
        restarts: Times that the engine's process was started again.
        replayed_requests: Requests that were begun anew after a restart.
        resumed_requests: Requests that went on after a restart, behind the tokens that had come.
        retried_requests: Times that a request was tried again because it failed, or because
            nothing came of it.
        host_tier_failures: Blocks that could not be copied to the host's memory or back; they were
            computed again.
    """

    requests: int = 0
    finished_requests: int = 0
    aborted_requests: int = 0
    failed_requests: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    tree: TreeStats | None = None
    block_bytes: int = 0
    restarts: int = 0
    replayed_requests: int = 0
    resumed_requests: int = 0
    retried_requests: int = 0
    host_tier_failures: int = 0
