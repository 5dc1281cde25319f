"""The knobs of the LLM classes, the same in both frameworks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, SkipValidation

from ragcache_integrations.core.generation import Sampling, SamplingOptions
from ragcache_integrations.core.knobs import SecondsOrNone
from ragcache_integrations.engine.arguments import LocalKnobs
from ragcache_integrations.engine.protocol import path_to_text

from .backend import Backend
from .headers import checked_headers

__all__ = ["MODULAR", "SAMPLING_KNOBS", "LLMKnobs"]

MODULAR = "modular"
"""The value of the knob ``engine`` for documents as modules."""

DEFAULTS = SamplingOptions()

SAMPLING_KNOBS = tuple(field.name for field in fields(Sampling) if field.name != "ignore_eos")


def _check_headers(headers: object) -> object:
    return None if headers is None else checked_headers(headers, "default_headers")


class LLMKnobs(LocalKnobs):
    """The knobs of an LLM class; some are only for one kind of backend.

    Attributes:
        engine: An engine to use; it stays yours to close. Or ``modular``: each document becomes a
            module, encoded once and reused at any position
            (:class:`~ragcache_modular.ModularEngine`), with the knobs ``model``,
            ``dtype`` (``float32`` if ``None``), ``device``, ``kv_cache_gib`` (memory of the host
            for modules), ``policy`` and ``chat_template``.
        strategy: Only with a modular engine: which tokens of documents are computed again.
            ``prompt_cache`` for none, ``epic``, ``cacheblend``, ``kvlink``, ``exact`` for all, or
            an instance with other settings; ``epic``, or the strategy of your engine, if ``None``.
        device: Only with ``engine="modular"``: the device, such as ``cuda``; the CPU if ``None``.
        base_url: Address of an OpenAI-compatible server, with its ``/v1``. Needs ``model``.
        api_key: Key for that server. None is read from the environment, so that no key is sent to
            the wrong server; a local engine needs none and ignores it.
        default_headers: HTTP headers for every request to that server, such as a gateway's; their
            values are hidden like the key.
        model: Path or hub name of the model; the bundled one if ``None``.
        max_model_len: Context window in tokens; the model's own if ``None``. Required for a server
            that does not report its model's, unless 4096 is right.
        dtype: Numeric type of weights and KV cache; the engine's default if ``None``.
        find_documents: Find documents that were retrieved in the same request (the same outermost
            run of the framework, or else the same thread or task) in prompts that do not name
            theirs: texts of at least 64 characters that are in the prompt exactly as the
            framework's retrievers returned them. Earlier turns of a conversation are split as they
            were before. The text for a server that does not understand documents stays the same.
        startup_timeout: Seconds that the engine may take to start; its default if ``None``.
        tokenizer: Path or hub name of the tokenizer with which a server's tokens are counted;
            needs the ``transformers`` package. If ``None``, tiktoken counts.
        max_retries: How often a request to a server is retried after a transient failure.
        timeout: Seconds that an answer may take; for a server, that each attempt may take. ``None``
            means no limit for the engine and ten minutes for a server.
        namespace: Tenants with different namespaces never share a KV cache.
        step: Name of the step of a workflow that each call is; empty for none. What the prompts of
            a step begin with is learned from them. If neither the object nor the call has a step,
            ``hint_steps`` names it. Engines and servers without a knowledge tree ignore it.
        next_steps: Steps that come next, and how many steps are before each, 1 for the next one.
            Their prompts' beginnings are evicted last, and are there before they come.
        temperature: 0 is greedy.
        max_tokens: The most tokens to generate; ``None`` for as many as fit into the context
            window. A server then gets no number, for which OpenAI's own text completions are short.
        top_p: Nucleus sampling; 1 keeps every token.
        top_k: Sample among the k likeliest tokens; 0 keeps every token.
        frequency_penalty: Lowers a token's score by this much for each time that it is already in
            the answer, from -2 to 2.
        presence_penalty: Lowers a token's score by this much once it is in the answer, from -2 to
            2.
        repetition_penalty: Above 1, makes tokens less likely that are already in the prompt or the
            answer; 1 changes nothing. Among servers, only vLLM has it.
        stop: Strings that end the answer; they are not part of it.
        seed: Seed of the sampling; ``None`` for a random one.
        logprobs: How many alternatives to report for each token, 0 for the chosen token alone,
            ``None`` for no log-probabilities.
        shared_state: Holds the engines that objects share if they were made from one another; for
            internal use.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Annotated[Backend | Literal["modular"] | None, SkipValidation] = Field(
        default=None, exclude=True
    )
    strategy: Annotated[Any, SkipValidation] = None
    device: str | None = None
    base_url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    api_key: SecretStr | None = Field(default=None, exclude=True)
    default_headers: Annotated[Mapping[str, SecretStr] | None, BeforeValidator(_check_headers)] = (
        Field(default=None, exclude=True)
    )
    model: Annotated[str | None, BeforeValidator(path_to_text)] = None
    dtype: str | None = None
    startup_timeout: SecondsOrNone = None
    tokenizer: str | None = Field(default=None, min_length=1)
    max_retries: int = Field(default=2, ge=0, strict=True)
    find_documents: bool = Field(default=True, strict=True)
    timeout: float | None = Field(default=None, strict=True)
    namespace: str = ""
    step: str = ""
    next_steps: Annotated[Mapping[str, int] | None, SkipValidation] = None
    temperature: float = Field(default=DEFAULTS.temperature, strict=True)
    max_tokens: int | None = Field(default=DEFAULTS.max_tokens, strict=True)
    top_p: float = Field(default=DEFAULTS.top_p, strict=True)
    top_k: int = Field(default=DEFAULTS.top_k, strict=True)
    frequency_penalty: float = Field(default=DEFAULTS.frequency_penalty, strict=True)
    presence_penalty: float = Field(default=DEFAULTS.presence_penalty, strict=True)
    repetition_penalty: float = Field(default=DEFAULTS.repetition_penalty, strict=True)
    stop: str | Sequence[str] | None = None
    seed: int | None = Field(default=DEFAULTS.seed, strict=True)
    logprobs: int | None = Field(default=DEFAULTS.logprobs, strict=True)

    # LangChain hands it on to the objects that it makes for `configurable_fields`.
    shared_state: Annotated[Any, SkipValidation] = Field(default=None, exclude=True, repr=False)
