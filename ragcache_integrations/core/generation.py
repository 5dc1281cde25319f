"""How an answer is generated, and what comes back: the same words for every engine and server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from ragcache_integrations.errors import ConfigurationError

from .checks import (
    check_field,
    check_flag,
    check_int,
    check_number,
    check_seconds,
    check_text,
    check_type,
    or_none,
)
from .prompt import ToolCall, ToolCallPiece
from .schemas import copy_schema

__all__ = [
    "CallOptions",
    "FinishReason",
    "Generation",
    "GenerationChunk",
    "Sampling",
    "SamplingOptions",
    "TokenLogprob",
    "Usage",
    "check_call",
    "penalises_answer",
    "plain",
]

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "abort", "unknown"]
"""Why an answer ended: ``stop`` at its natural end or at a stop string, ``tool_calls`` the same
where it calls tools, ``length`` at ``max_tokens`` or the end of the context window,
``content_filter`` because a filter of the server cut it off, ``abort`` because it was aborted,
``unknown`` if a server doesn't report it."""

MAX_LOGPROBS = 20
MAX_PENALTY = 2


class CallOptions(TypedDict, total=False):
    """What every call that generates takes besides the prompt and its sampling.

    Attributes:
        namespace: Tenants with different namespaces never share a KV cache.
        timeout: Seconds that the answer may take; ``None`` for no limit.
    """

    namespace: str
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of an answer are chosen, and when it ends.

    Attributes:
        max_tokens: The most tokens to generate; ``None`` for as many as the context window leaves.
        temperature: 0 is greedy: reproducible, and the same with a warm cache as with a cold one.
        top_p: Nucleus sampling, above 0 and up to 1, which keeps every token.
        top_k: Sample among the k likeliest tokens; 0 keeps every token.
        frequency_penalty: Lowers a token's score by this much for each occurrence in the answer so
            far, from -2 to 2; a negative penalty raises it.
        presence_penalty: Lowers a token's score by this much if the answer has it already, from -2
            to 2.
        repetition_penalty: Divides positive scores, and multiplies negative ones, of tokens that
            the prompt or the answer has already; above 0, and 1 changes nothing.
        stop: Strings that end the answer; they are not part of it.
        seed: Seed of the sampling, a whole number of 64 bits; ``None`` draws a fresh one.
        logprobs: How many alternatives to report for each token, up to 20; 0 for the chosen token
            alone, ``None`` for no log-probabilities.
        ignore_eos: Generate on past the model's own end, up to ``max_tokens`` (for measuring).

    Raises:
        ConfigurationError: A value is out of its range.
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
        check_field(self, or_none(check_int), "max_tokens", 1)
        check_field(self, check_number, "temperature", 0)
        check_field(self, check_number, "top_p", 0, 1, above=True)
        check_field(self, check_int, "top_k", 0)
        check_field(self, check_number, "frequency_penalty", -MAX_PENALTY, MAX_PENALTY)
        check_field(self, check_number, "presence_penalty", -MAX_PENALTY, MAX_PENALTY)
        check_field(self, check_number, "repetition_penalty", 0, above=True)
        check_field(self, or_none(check_int), "seed", -(2**63), 2**63 - 1)
        check_field(self, or_none(check_int), "logprobs", 0, MAX_LOGPROBS)
        object.__setattr__(self, "stop", _strings("stop", self.stop))


@dataclass(frozen=True, slots=True)
class SamplingOptions(Sampling):
    """How an answer is generated, by an engine that has grammars.

    Attributes:
        json_schema: JSON schema that the answer must satisfy.
        strict: Whether a server must hold the answer to ``json_schema`` in its strict mode, which
            knows closed objects of required properties alone: ``None`` where the schema has such a
            form, ``False`` for no, ``True`` for an error where it has none. The engine's own
            grammar is strict in any case.
        choice: Strings of which the answer must be one. Excludes ``json_schema``.
        tool_choice: Whether the answer calls the prompt's tools: ``auto`` if the model wants,
            ``none`` for never, ``required`` for at least one call, or the name of a tool to call
            that one.
        parallel_tool_calls: Whether one answer may call several tools.
    """

    json_schema: Mapping[str, Any] | None = None
    choice: tuple[str, ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    strict: bool | None = None

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)  # with slots, super() knows another class until Python 3.14
        object.__setattr__(self, "choice", _strings("choice", self.choice))
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", copy_schema("json_schema", self.json_schema))
        if self.json_schema is not None and self.choice:
            raise ConfigurationError("json_schema and choice exclude each other, both were given")
        check_text("tool_choice", self.tool_choice)
        check_flag("parallel_tool_calls", self.parallel_tool_calls)
        check_type("strict", self.strict, bool | None, "True, False or None")

    @property
    def needs_grammar(self) -> bool:
        """Whether a grammar has to restrict the tokens."""
        return self.json_schema is not None or bool(self.choice)


def check_call(
    options: SamplingOptions | None, *, namespace: str = "", timeout: float | None = None
) -> SamplingOptions:
    """Check the arguments of a call, and return its options; the defaults for ``None``.

    Raises:
        ConfigurationError: An argument is of the wrong type, or the timeout is not above 0.
    """
    check_type("options", options, SamplingOptions | None, "SamplingOptions")
    check_text("namespace", namespace)
    check_seconds("timeout", timeout)
    return options or SamplingOptions()


def penalises_answer(options: Sampling) -> bool:
    """Whether which tokens come next depends on which of those before are the answer's."""
    return bool(options.frequency_penalty or options.presence_penalty)


def plain(text: str) -> str:
    """A plain ``str`` of a subclass such as an enumeration, which the engine may not know.

    Values of other types stay, and are refused later.
    """
    return str.__str__(text) if isinstance(text, str) else text


def _strings(name: str, value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else tuple(value or ())
    if not all(isinstance(string, str) and string for string in strings):
        raise ConfigurationError(f"{name} must be non-empty strings, got {value!r}")
    return tuple(map(plain, strings))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens a request took.

    Attributes:
        prompt_tokens: Length of the prompt, without modules that nothing may see.
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
        token_id: Its number in the vocabulary; ``-1`` where a server does not say.
        logprob: Natural logarithm of its probability.
        top: The likeliest alternatives, best first; as many as ``logprobs`` of the options.
    """

    token: str
    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class _Answer:
    __slots__ = ()

    @property
    def reuse(self) -> Mapping[str, Any]:
        """What an engine with approximate reuse adds to an answer's metadata; empty for others."""
        return {}


@dataclass(frozen=True, slots=True)
class GenerationChunk(_Answer):
    """A piece of a streamed answer. Concatenated texts are the answer.

    Attributes:
        text: New text; may be empty (a token that is only part of a character, or the end).
        token_ids: New tokens; empty where a server does not report them.
        logprobs: One entry for each new token, where the options ask for them.
        finish_reason: Set on the last chunk alone.
        usage: Set on the last chunk; also on the first, where known, with the cached tokens.
        tool_calls: New pieces of tool calls.
        reasoning: New text of what the model thought before it answered, where a server reports it.
        reasoning_field: The server's name for that text, see :attr:`Generation.reasoning_field`.
        refusal: New text in which the model says why it does not answer.
        native_finish_reason: On the last chunk, see :attr:`Generation.native_finish_reason`.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    tool_calls: tuple[ToolCallPiece, ...] = ()
    reasoning: str = ""
    reasoning_field: str = ""
    refusal: str = ""
    native_finish_reason: str = ""


@dataclass(frozen=True, slots=True)
class Generation(_Answer):
    """A whole answer.

    Attributes:
        text: The answer, without its tool calls.
        token_ids: Its tokens; empty where a server does not report them.
        finish_reason: Why it ended.
        usage: What it took.
        logprobs: One entry for each token, where the options ask for them.
        tool_calls: The tools that it calls.
        reasoning: What the model thought before it answered, where a server reports it.
        reasoning_field: The field of a message in which the server reports that and takes it back;
            empty if it takes none.
        refusal: Why the model does not answer, in its own words; empty if it does.
        native_finish_reason: The server's own word for why a filter cut the answer off, or why it
            was aborted, if that is another than ``finish_reason``.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    reasoning_field: str = ""
    refusal: str = ""
    native_finish_reason: str = ""
