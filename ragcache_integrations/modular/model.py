"""A model that serves prompts module by module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import torch

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.generation import Sampling
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    ModelNotFoundError,
    PromptTooLongError,
)
from ragcache_integrations.modular.kv.decoders import decoder_of
from ragcache_integrations.modular.kv.encoding import Encoded, ModuleEncoder, Patience
from ragcache_integrations.modular.kv.memory import BufferPool
from ragcache_integrations.modular.kv.plan import Plan, plan_assembly
from ragcache_integrations.modular.kv.prefill import Parts, Prefilled, prefill
from ragcache_integrations.modular.kv.store import ModuleStore, StoreStats
from ragcache_integrations.modular.kv.strategies import Strategy, strategy_of

from .answers import Answer
from .batch import Batch, answer_batch
from .documents import Documents, document_name
from .generation import (
    BatchKnobs,
    GenerationKnobs,
    ModularChunk,
    ModularGeneration,
    PrefillKnobs,
    SamplingKnobs,
    check_sampling,
)
from .layout import Assembly, Module
from .streams import AsyncModularStream, ModularStream, decode
from .tokens import Encoder

__all__ = ["ModularModel", "ModularStats"]

T = TypeVar("T")

DTYPES = ("float32", "bfloat16", "float16")
FEATURE = "Modular attention reuse"
FIRST_ROOM = 256
"""Tokens that memory is taken for at first where an answer has no limit; it grows."""


@dataclass(frozen=True, slots=True)
class ModularStats:
    """What a model's modules take.

    Attributes:
        store: Modules in the host's memory.
        device_store: Copies of them on the device, where there is such a store.
        buffer_bytes: Buffers kept for the next prompts.
        bytes_per_token: Bytes of the keys and values of a token, of all layers together.
    """

    store: StoreStats
    device_store: StoreStats | None
    buffer_bytes: int
    bytes_per_token: int


class ModularModel:
    """A causal language model whose prompts are made of modules encoded once.

    Models of type ``llama``, ``mistral``, ``qwen2`` and ``qwen3`` with RoPE whose frequencies do
    not depend on the length, ``bloom`` and ``mpt`` (ALiBi), ``gpt2`` and ``opt`` (learned
    positions, whose modules cannot move). Thread-safe; a prefilled prompt or a stream belongs to
    one thread at a time.

    A model that is given stays usable otherwise: only its attention is replaced, by one that passes
    other calls on to transformers' own.

    Args:
        model: Local path, hub name, or a loaded ``...ForCausalLM``.
        tokenizer: A transformers tokenizer; by default the model's own. A loaded model without one
            takes and gives tokens, no text.
        dtype: Numeric type of weights, keys and values: ``float32``, ``bfloat16`` or ``float16``.
            A loaded model keeps its own.
        device: Where the model computes, such as ``cpu`` or ``cuda``. A loaded model stays where it
            is.
        store_bytes: Room for encoded modules in the host's memory.
        device_store_bytes: Room for copies of them on the device; 0 for none.
        policy: What goes first: ``pgdsf`` (by frequency, recency and the time to encode it again),
            ``gdsf``, ``lru`` or ``lfu``.
        threads: Threads to compute with on a CPU, in this whole process; torch's own by default.

    Attributes:
        model: Path, name or class of the model.
        tokenizer: Turns texts into tokens; ``None`` for a model without one.
        max_model_len: Positions there are.
        movable: Whether modules may stand elsewhere than where they were encoded.
        bytes_per_token: Memory that keys and values of a token take.

    Raises:
        ConfigurationError: An argument is out of its range, or the model cannot be served.
        MissingExtraError: transformers is not installed.
        ModelNotFoundError: There is no such model.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        store_bytes: int = 4 * 2**30,
        device_store_bytes: int = 0,
        policy: str = "pgdsf",
        threads: int | None = None,
    ) -> None:
        store: ModuleStore[Encoded] = ModuleStore(store_bytes, policy)
        _check(dtype, device, device_store_bytes, threads)
        near = ModuleStore[Encoded](device_store_bytes, policy) if device_store_bytes else None
        if isinstance(model, str | Path):
            self.model = str(model)
            model, tokenizer = _load(self.model, tokenizer, dtype, device)
        else:
            self.model = type(model).__name__
        decoder = decoder_of(model)
        model.eval()
        if near is not None and model.device.type == "cpu":
            msg = "device_store_bytes is for models on an accelerator; on a CPU the store is near"
            raise ConfigurationError(msg)
        if threads is not None:
            torch.set_num_threads(threads)
        self.tokenizer = tokenizer
        self.max_model_len: int = decoder.limit
        self.movable: bool = decoder.positions.movable
        pool = BufferPool(
            len(decoder.layers), decoder.heads, decoder.head_dim, model.dtype, model.device
        )
        encoder = ModuleEncoder(decoder, pool, store, near)
        self.bytes_per_token: int = encoder.bytes_per_token
        self._parts = Parts(decoder, pool, encoder)
        self._store, self._near = store, near
        self._text = None if tokenizer is None else Encoder.of(tokenizer)
        self._ends = _ends_of(model, tokenizer)

    # Prompts

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text, no special token added; markup in it is text.

        Raises:
            ConfigurationError: It cannot be tokenised, or there is no tokenizer.
        """
        return list(self._tokens.text(text))

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has, no special token counted."""
        return len(self.tokenize(text))

    def assemble(
        self,
        system: str,
        documents: Iterable[str],
        query: str,
        *,
        separator: str = "\n\n",
        link_token_ids: Collection[int] = (),
    ) -> Assembly:
        """Make a prompt of documents, each of which becomes a module.

        Args:
            system: Stands first; none where empty.
            documents: In the order in which they shall stand. Their modules are named by
                :func:`~ragcache_integrations.modular.documents.document_name`.
            query: Stands last, computed for this prompt.
            separator: Behind the system text and behind each document, and part of its module.
            link_token_ids: Computed behind each document, for models trained with link tokens.

        Raises:
            ConfigurationError: The query is empty, or a text cannot be tokenised.
        """
        if not isinstance(query, str) or not query.strip():
            msg = f"the query must be a non-empty string, got {query!r}"
            raise ConfigurationError(msg)
        if isinstance(documents, str):
            msg = f"documents must be a collection of strings, got the string {documents[:40]!r}"
            raise ConfigurationError(msg)
        encode = self._tokens.text
        between = encode(separator) if separator else ()
        laid_out = Documents(movable=self.movable)
        first = encode(system) + between if system else ()
        laid_out.module("system", self._tokens.head + first)
        for text in documents:
            laid_out.module(document_name(text), encode(text) + between)
            laid_out.fresh(tuple(link_token_ids))
        laid_out.fresh(encode(query))
        return laid_out.assembly()

    def encode(self, modules: Iterable[Module], *, namespace: str = "") -> None:
        """Encode modules before they are needed; those that are there are left alone.

        Args:
            modules: What to encode, one after the other.
            namespace: Tenant. Modules are shared within a namespace and never across.

        Raises:
            ConfigurationError: A module is larger than the store or has tokens unknown to the
                model.
            PromptTooLongError: One stands beyond the model's last position.
        """
        modules = list(modules)
        for module in modules:
            self._parts.encoder.check(module)
        for module in modules:
            with self._parts.encoder.lease(module, namespace, Patience()):
                pass

    async def aencode(self, modules: Iterable[Module], *, namespace: str = "") -> None:
        """Async version of :meth:`encode`."""
        await asyncio.to_thread(self.encode, modules, namespace=namespace)

    def prefill(
        self,
        assembly: Assembly,
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[PrefillKnobs],
    ) -> Prefilled:
        """Bring a prompt into memory: from encoded modules, and by computing the rest.

        Args:
            assembly: The prompt.
            strategy: Chooses which encoded tokens are computed again: ``prompt_cache`` (none),
                ``epic``, ``cacheblend``, ``kvlink``, ``exact`` (all), or an instance with
                settings of its own.
            **knobs: ``masked`` and ``dropped``, names of modules that nothing may see, or that are
                left out altogether; ``namespace``, the tenant; ``room``, tokens that will follow
                (more may, at the price of another buffer); ``timeout``, in seconds.

        Raises:
            ConfigurationError: The prompt cannot be served, or an argument is wrong.
            PromptTooLongError: It reaches beyond the model's last position.
            GenerationTimeoutError: The timeout is over.
        """
        compute, _ = self._prepare(assembly, strategy, **knobs)
        return compute()

    async def aprefill(
        self,
        assembly: Assembly,
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[PrefillKnobs],
    ) -> Prefilled:
        """Async version of :meth:`prefill`; cancelling it ends the prefill at the next layer."""
        return await _in_thread(*self._prepare(assembly, strategy, **knobs))

    # Generation

    def generate(
        self,
        prompt: Assembly | Prefilled,
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[GenerationKnobs],
    ) -> ModularGeneration:
        """Answer a prompt.

        Args:
            prompt: The prompt; or one that is prefilled, which goes on where it stands, stays open,
                and has its strategy and its masks already.
            strategy: As in :meth:`prefill`.
            **knobs: Fields of :class:`~ragcache_integrations.core.generation.Sampling`;
                ``masked``, ``dropped`` and ``namespace`` as in :meth:`prefill`; ``timeout``,
                seconds for the whole answer.

        Raises:
            ConfigurationError: The prompt cannot be served, or an argument is wrong.
            PromptTooLongError: Prompt and answer reach beyond the model's last position.
            GenerationTimeoutError: The timeout is over.
        """
        with self._stream(prompt, strategy, **knobs) as stream:
            return stream.result()

    async def agenerate(
        self,
        prompt: Assembly | Prefilled,
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[GenerationKnobs],
    ) -> ModularGeneration:
        """Async version of :meth:`generate`; cancelling it gives the answer up."""
        async with AsyncModularStream(self._stream(prompt, strategy, **knobs)) as stream:
            return await stream.aresult()

    def stream(
        self,
        prompt: Assembly | Prefilled,
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[GenerationKnobs],
    ) -> ModularStream:
        """Answer a prompt piece by piece; arguments and errors as :meth:`generate`."""
        return self._stream(prompt, strategy, **knobs)

    async def astream(
        self,
        prompt: Assembly | Prefilled,
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[GenerationKnobs],
    ) -> AsyncModularStream:
        """Async version of :meth:`stream`: ``async for chunk in await model.astream(prompt)``."""
        return AsyncModularStream(self._stream(prompt, strategy, **knobs))

    def generate_batch(
        self,
        prompts: Iterable[Assembly],
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[BatchKnobs],
    ) -> list[ModularGeneration]:
        """Answer several prompts together, in their order.

        Modules that several of them reuse at the same positions lie in memory once, but for models
        with ALiBi, whose attention takes each prompt's by itself. Arguments and errors as
        :meth:`generate`, without ``masked`` and ``dropped``.
        """
        compute, _ = self._prepare_batch(prompts, strategy, **knobs)
        return compute()

    async def agenerate_batch(
        self,
        prompts: Iterable[Assembly],
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[BatchKnobs],
    ) -> list[ModularGeneration]:
        """Async version of :meth:`generate_batch`; cancelling it gives the answers up."""
        return await _in_thread(*self._prepare_batch(prompts, strategy, **knobs))

    # State

    def stats(self) -> ModularStats:
        """What modules take and how often they were found."""
        return ModularStats(
            store=self._store.stats(),
            device_store=None if self._near is None else self._near.stats(),
            buffer_bytes=self._parts.pool.free_bytes,
            bytes_per_token=self.bytes_per_token,
        )

    def clear(self) -> None:
        """Forget all encoded modules that are not in use."""
        self._store.clear()
        if self._near is not None:
            self._near.clear()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._parts.encoder.closed

    def close(self) -> None:
        """Give modules and buffers back; nothing more is served. Idempotent."""
        self._parts.encoder.closed = True
        self.clear()
        self._parts.pool.clear()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ModularModel(model={self.model!r})"

    # Inside

    @property
    def _tokens(self) -> Encoder:
        if self._text is None:
            msg = "this model was given without a tokenizer, so it takes tokens and no text"
            raise ConfigurationError(msg)
        return self._text

    def _prepare(
        self,
        assembly: Assembly,
        strategy: str | Strategy,
        *,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
        namespace: str = "",
        room: int = 0,
        timeout: float | None = None,
    ) -> tuple[Callable[[], Prefilled], Patience]:
        """A prefill that can run, and what ends it."""
        chosen = strategy_of(strategy)
        plan = plan_assembly(assembly, masked, dropped)
        patience = Patience(_seconds(timeout))
        return partial(self._prefill, plan, chosen, namespace, room, patience), patience

    def _prefill(
        self, plan: Plan, strategy: Strategy, namespace: str, room: int, patience: Patience
    ) -> Prefilled:
        if self.closed:
            msg = "the model was closed"
            raise EngineClosedError(msg)
        return prefill(
            self._parts, plan, strategy, namespace=namespace, room=room, patience=patience
        )

    def _stream(
        self,
        prompt: Assembly | Prefilled,
        strategy: str | Strategy,
        *,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
        namespace: str = "",
        timeout: float | None = None,
        **sampling: Unpack[SamplingKnobs],
    ) -> ModularStream:
        options = check_sampling(sampling)
        chosen = strategy_of(strategy)
        patience = Patience(_seconds(timeout))
        if isinstance(prompt, Prefilled):
            if masked or dropped:
                msg = "a prefilled prompt takes no masked or dropped modules: call its own methods"
                raise ConfigurationError(msg)
            self._check_length(prompt.next_position - 1, options)
            answer = self._answer(prompt, options)
            return ModularStream(decode(prompt, answer, patience), patience)
        plan = plan_assembly(prompt, masked, dropped)
        self._check_length(int(plan.positions.max()), options)
        return ModularStream(self._steps(plan, chosen, namespace, options, patience), patience)

    def _answer(self, prefilled: Prefilled, options: Sampling) -> Answer:
        if options.stop and self.tokenizer is None:
            msg = "stop strings need a tokenizer, and this model was given without one"
            raise ConfigurationError(msg)
        return Answer(prefilled, options, self.tokenizer, self._ends)

    def _steps(
        self,
        plan: Plan,
        strategy: Strategy,
        namespace: str,
        options: Sampling,
        patience: Patience,
    ) -> Iterator[tuple[Answer, ModularChunk]]:
        room = options.max_tokens or FIRST_ROOM
        prefilled = self._prefill(plan, strategy, namespace, room, patience)
        with prefilled:
            yield from decode(prefilled, self._answer(prefilled, options), patience)

    def _check_length(self, last: int, options: Sampling) -> None:
        # The last token of an answer is not computed.
        highest = last + (1 if options.max_tokens is None else options.max_tokens)
        if highest > self.max_model_len:
            raise PromptTooLongError(highest, self.max_model_len)

    def _prepare_batch(
        self,
        prompts: Iterable[Assembly],
        strategy: str | Strategy,
        *,
        namespace: str = "",
        timeout: float | None = None,
        **sampling: Unpack[SamplingKnobs],
    ) -> tuple[Callable[[], list[ModularGeneration]], Patience]:
        """Answers to several prompts that can be computed, and what ends them."""
        plans = [plan_assembly(prompt) for prompt in prompts]
        options = check_sampling(sampling)
        chosen = strategy_of(strategy)
        patience = Patience(_seconds(timeout))
        return partial(self._generate_batch, plans, chosen, namespace, options, patience), patience

    def _generate_batch(
        self,
        plans: Sequence[Plan],
        strategy: Strategy,
        namespace: str,
        options: Sampling,
        patience: Patience,
    ) -> list[ModularGeneration]:
        if not plans:
            return []
        for plan in plans:
            self._check_length(int(plan.positions.max()), options)
        if options.max_tokens is None:
            # A batch has room for all of the longest answer from the start; one answer's grows.
            each = (self._steps(plan, strategy, namespace, options, patience) for plan in plans)
            return [ModularStream(steps, patience).result() for steps in each]
        batch = Batch(self._parts, plans)
        answers = answer_batch(
            batch,
            lambda plan: self._prefill(plan, strategy, namespace, 0, patience),
            lambda prefilled: self._answer(prefilled, options),
            patience,
            options.max_tokens,
        )
        return [answer.result() for answer in answers]


async def _in_thread(compute: Callable[[], T], patience: Patience) -> T:
    try:
        return await asyncio.to_thread(compute)
    except asyncio.CancelledError:
        patience.cancel()
        raise


def _check(dtype: Any, device: Any, device_bytes: Any, threads: Any) -> None:
    if dtype not in DTYPES:
        msg = f"unknown dtype {dtype!r}: allowed are {', '.join(DTYPES)}"
        raise ConfigurationError(msg)
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        msg = f"unknown device {device!r}: allowed are names that torch knows, such as cpu or cuda"
        raise ConfigurationError(msg) from error
    whole = isinstance(device_bytes, int) and not isinstance(device_bytes, bool)
    if not whole or device_bytes < 0:
        msg = f"device_store_bytes must be a whole number of at least 0, got {device_bytes!r}"
        raise ConfigurationError(msg)
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if threads is not None and (not whole or threads < 1):
        msg = f"threads must be a whole number of at least 1, or None, got {threads!r}"
        raise ConfigurationError(msg)


def _seconds(timeout: float | None) -> float | None:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and (not number or not timeout > 0):
        msg = f"timeout must be a number of seconds above 0, or None, got {timeout!r}"
        raise ConfigurationError(msg)
    return timeout


def _load(name: str, tokenizer: Any, dtype: str, device: str) -> tuple[Any, Any]:
    transformers = require("transformers", feature=FEATURE, extra="modular")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype))
        if tokenizer is None:
            tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        msg = f"no causal model with a tokenizer under {name!r}: {error}"
        raise ModelNotFoundError(msg) from error
    return model.to(device), tokenizer


def _ends_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer: those the model says, and the tokenizer's."""
    ends: set[int] = set()
    settings = getattr(model, "generation_config", None)
    for setting in (
        getattr(settings, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        getattr(tokenizer, "eos_token_id", None),
    ):
        if setting is not None:
            ends |= {setting} if isinstance(setting, int) else set(setting)
    return frozenset(ends)
