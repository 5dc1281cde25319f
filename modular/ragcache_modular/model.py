"""A model that answers prompts made of encoded modules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ragcache_integrations.core.blocks import Closeable
from ragcache_integrations.core.checks import check_choice, check_int, check_seconds, or_none
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.generation import Sampling
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    ModelNotFoundError,
    PromptTooLongError,
)
from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY
from ragcache_integrations.prompts.pml import Assembly, Encoder, Module
from ragcache_modular.kv.attention import Sight
from ragcache_modular.kv.decoders import decoder_of
from ragcache_modular.kv.encoding import Encoded, ModuleEncoder, Patience, run_layers
from ragcache_modular.kv.memory import BufferPool, Memory
from ragcache_modular.kv.plan import Plan, plan_assembly
from ragcache_modular.kv.prefill import Parts, Prefilled, prefill
from ragcache_modular.kv.store import ModuleStore, StoreStats
from ragcache_modular.kv.strategies import Strategy, strategy_of

from .answers import Answer, AsyncModularStream, ModularStream, Start, decode
from .documents import Documents, document_name
from .generation import (
    BatchKnobs,
    GenerationKnobs,
    ModularGeneration,
    PrefillKnobs,
    SamplingKnobs,
    check_sampling,
)

__all__ = ["Batch", "ModularModel", "ModularStats"]

T = TypeVar("T")

DTYPES = ("float32", "bfloat16", "float16")
FEATURE = "Modular attention reuse"
FIRST_ROOM = 256
"""Tokens that memory is first allocated for if an answer has no limit; it grows."""


@dataclass(frozen=True, slots=True)
class ModularStats:
    """Memory and use of a model's encoded modules.

    Attributes:
        store: Modules in the host's memory.
        device_store: Copies of them on the device; ``None`` without such a store.
        buffer_bytes: Bytes of the buffers that are kept for the next prompts.
        bytes_per_token: Bytes of the keys and values of a token, in all layers together.
    """

    store: StoreStats
    device_store: StoreStats | None
    buffer_bytes: int
    bytes_per_token: int


class ModularModel(Closeable):
    """A causal language model whose prompts are made of modules encoded once.

    Models of type ``llama``, ``mistral``, ``qwen2`` and ``qwen3`` with RoPE whose frequencies do
    not depend on the length, ``bloom`` and ``mpt`` (ALiBi), ``gpt2`` and ``opt`` (learned
    positions, whose modules cannot move). Thread-safe; a prefilled prompt or a stream belongs to
    one thread at a time.

    A model that you pass in stays usable for other purposes. Only its attention is replaced, by one
    that forwards all other calls to transformers' own.

    Use it like this::

        model = ModularModel("path/to/model")
        prompt = model.assemble("Answer briefly.", documents, "How high is the tower?")
        print(model.generate(prompt, "epic").text)

    Args:
        model: Local path, hub name, or a loaded ``...ForCausalLM``.
        tokenizer: A transformers tokenizer; by default the model's own. A loaded model without one
            accepts and returns tokens, but no text.
        dtype: Numeric type of weights, keys and values: ``float32``, ``bfloat16`` or ``float16``.
            A loaded model keeps its type.
        device: Where the model computes, such as ``cpu`` or ``cuda``. A loaded model stays where it
            is.
        store_bytes: Bytes for encoded modules in the host's memory.
        device_store_bytes: Bytes for copies of them on the device; 0 for none.
        policy: Which modules are evicted first: ``lrfu`` (by frequency, recency and the time to
            encode them again), ``pgdsf`` (the same by RAGCache's formula), ``gdsf``, ``lru`` or
            ``lfu``.
        threads: Threads that compute on a CPU, in the whole process; torch's default if ``None``.

    Attributes:
        model: Path, name or class of the model.
        tokenizer: Turns texts into tokens; ``None`` for a model without one.
        max_model_len: Number of positions.
        movable: Whether modules may be used at other positions than those they were encoded at.
        bytes_per_token: Bytes that the keys and values of a token take.

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
        policy: str = DEFAULT_POLICY,
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
        """The tokens of a text, without special tokens; control tokens in it are plain text.

        Raises:
            ConfigurationError: It cannot be tokenised, or there is no tokenizer.
        """
        return list(self._tokens.text(text))

    def count_tokens(self, text: str) -> int:
        """The number of tokens of a text, without special tokens."""
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
            system: System text at the beginning; may be empty.
            documents: Texts of the documents, in the order of the prompt. Their modules are named
                by :func:`~ragcache_modular.documents.document_name`.
            query: Text at the end, which is computed for this prompt.
            separator: Text after the system text and each document; part of their modules.
            link_token_ids: Tokens to compute after each document, for models that were trained with
                link tokens.

        Raises:
            ConfigurationError: The query is empty, or a text cannot be tokenised.
        """
        if not isinstance(query, str) or not query.strip():
            raise ConfigurationError(f"the query must be a non-empty string, got {query!r}")
        if isinstance(documents, str):
            msg = f"documents must be a collection of strings, got the string {documents[:40]!r}"
            raise ConfigurationError(msg)
        encode = self._tokens.text
        between = encode(separator) if separator else ()
        layout = Documents(movable=self.movable)
        first = encode(system) + between if system else ()
        layout.module("system", self._tokens.head + first)
        for text in documents:
            layout.module(document_name(text), encode(text) + between)
            layout.fresh(tuple(link_token_ids))
        layout.fresh(encode(query))
        return layout.assembly()

    def encode(self, modules: Iterable[Module], *, namespace: str = "") -> None:
        """Encode modules before they are needed, unless the store has them already.

        Args:
            modules: The modules, which are encoded one after the other.
            namespace: Tenant; modules are shared within a namespace and never across namespaces.

        Raises:
            ConfigurationError: A module is larger than the store or has tokens unknown to the
                model.
            PromptTooLongError: A module reaches beyond the model's last position.
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
        """Bring a prompt into memory: copy encoded modules, and compute the rest.

        Args:
            assembly: The prompt.
            strategy: Chooses which encoded tokens are computed again: ``prompt_cache`` (none),
                ``epic``, ``cacheblend``, ``kvlink``, ``exact`` (all), or an instance with
                other settings.
            **knobs: ``masked`` and ``dropped``, names of modules that other tokens must not see, or
                that are left out; ``namespace``, the tenant; ``room``, the number of tokens that
                will probably follow (more may, at the cost of a larger buffer); ``timeout``, in
                seconds.

        Raises:
            ConfigurationError: The prompt cannot be served, or an argument is wrong.
            PromptTooLongError: The prompt reaches beyond the model's last position.
            GenerationTimeoutError: The timeout has passed.
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
            prompt: The prompt. A prefilled prompt is continued from its end and stays open; its
                strategy and masks were chosen when it was prefilled.
            strategy: As in :meth:`prefill`; ignored for a prefilled prompt.
            **knobs: Fields of :class:`~ragcache_integrations.core.generation.Sampling`;
                ``masked``, ``dropped`` and ``namespace`` as in :meth:`prefill`; ``timeout``,
                seconds for the whole answer.

        Raises:
            ConfigurationError: The prompt cannot be served, or an argument is wrong.
            PromptTooLongError: Prompt and answer reach beyond the model's last position.
            GenerationTimeoutError: The timeout has passed.
        """
        with self.stream(prompt, strategy, **knobs) as stream:
            return stream.result()

    async def agenerate(
        self,
        prompt: Assembly | Prefilled,
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[GenerationKnobs],
    ) -> ModularGeneration:
        """Async version of :meth:`generate`; cancelling it aborts the answer."""
        async with AsyncModularStream(self.stream(prompt, strategy, **knobs)) as stream:
            return await stream.aresult()

    def stream(
        self,
        prompt: Assembly | Prefilled,
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[GenerationKnobs],
    ) -> ModularStream:
        """Answer a prompt piece by piece; arguments and errors as in :meth:`generate`."""
        return self._stream(prompt, strategy, **knobs)

    async def astream(
        self,
        prompt: Assembly | Prefilled,
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[GenerationKnobs],
    ) -> AsyncModularStream:
        """Async version of :meth:`stream`: ``async for chunk in await model.astream(prompt)``."""
        return AsyncModularStream(self.stream(prompt, strategy, **knobs))

    def generate_batch(
        self,
        prompts: Iterable[Assembly],
        strategy: str | Strategy = "prompt_cache",
        **knobs: Unpack[BatchKnobs],
    ) -> list[ModularGeneration]:
        """Answer several prompts together, in their order.

        Modules that several of them reuse at the same positions are in memory once, except in
        models with ALiBi, whose attention needs a copy for each prompt. Arguments and errors as in
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
        """Async version of :meth:`generate_batch`; cancelling it aborts the answers."""
        return await _in_thread(*self._prepare_batch(prompts, strategy, **knobs))

    # State

    def stats(self) -> ModularStats:
        """Memory of the encoded modules, and how often they were reused."""
        return ModularStats(
            store=self._store.stats(),
            device_store=None if self._near is None else self._near.stats(),
            buffer_bytes=self._parts.pool.free_bytes,
            bytes_per_token=self.bytes_per_token,
        )

    def clear(self) -> None:
        """Drop all encoded modules that are not in use."""
        self._store.clear()
        if self._near is not None:
            self._near.clear()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._parts.encoder.closed

    def close(self) -> None:
        """Free modules and buffers; the model answers no more prompts. Idempotent."""
        self._parts.encoder.closed = True
        self.clear()
        self._parts.pool.clear()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        self.close()

    def __repr__(self) -> str:
        return f"ModularModel(model={self.model!r})"

    # Inside

    @property
    def _tokens(self) -> Encoder:
        if self._text is None:
            msg = "this model has no tokenizer, so it accepts tokens and no text: pass tokenizer="
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
        """A prefill that is ready to run, and the patience that ends it."""
        call = _Call.of(strategy, namespace=namespace, timeout=timeout)
        plan = plan_assembly(assembly, masked, dropped)
        return partial(self._prefill, plan, call, room), call.patience

    def _prefill(self, plan: Plan, call: _Call, room: int) -> Prefilled:
        if self.closed:
            raise EngineClosedError("the model was closed")
        return prefill(
            self._parts,
            plan,
            call.strategy,
            namespace=call.namespace,
            room=room,
            patience=call.patience,
        )

    def _answer(self, prefilled: Prefilled, options: Sampling) -> Answer:
        if options.stop and self.tokenizer is None:
            msg = "stop strings need a tokenizer, and this model has none: pass tokenizer="
            raise ConfigurationError(msg)
        return Answer(prefilled, options, self.tokenizer, self._ends)

    def _stream(
        self,
        prompt: Assembly | Prefilled,
        strategy: str | Strategy,
        *,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
        **knobs: Unpack[BatchKnobs],
    ) -> ModularStream:
        call = _Call.of(strategy, **knobs)
        if isinstance(prompt, Prefilled):
            if masked or dropped:
                msg = "a prefilled prompt takes no masked or dropped: call its own mask or drop"
                raise ConfigurationError(msg)
            self._check_length(prompt.next_position - 1, call.options)
            steps = decode(prompt, self._answer(prompt, call.options), call.patience)
        else:
            plan = plan_assembly(prompt, masked, dropped)
            self._check_length(int(plan.positions.max()), call.options)
            steps = self._steps(plan, call)
        return ModularStream(steps, call.patience)

    def _steps(self, plan: Plan, call: _Call) -> Start:
        with self._prefill(plan, call, call.options.max_tokens or FIRST_ROOM) as prefilled:
            yield from decode(prefilled, self._answer(prefilled, call.options), call.patience)

    def _check_length(self, last: int, options: Sampling) -> None:
        # The last token of an answer is not computed, so it needs no position.
        highest = last + (1 if options.max_tokens is None else options.max_tokens)
        if highest > self.max_model_len:
            raise PromptTooLongError(highest, self.max_model_len)

    def _prepare_batch(
        self,
        prompts: Iterable[Assembly],
        strategy: str | Strategy,
        **knobs: Unpack[BatchKnobs],
    ) -> tuple[Callable[[], list[ModularGeneration]], Patience]:
        """A batch that is ready to run, and the patience that ends it."""
        plans = [plan_assembly(prompt) for prompt in prompts]
        call = _Call.of(strategy, **knobs)
        return partial(self._generate_batch, plans, call), call.patience

    def _generate_batch(self, plans: Sequence[Plan], call: _Call) -> list[ModularGeneration]:
        if not plans:
            return []
        for plan in plans:
            self._check_length(int(plan.positions.max()), call.options)
        if call.options.max_tokens is None:
            # A batch allocates memory for the longest answer from the start. Without a limit the
            # prompts are answered one after the other, as the memory of a single answer grows.
            streams = (ModularStream(self._steps(plan, call), call.patience) for plan in plans)
            return [stream.result() for stream in streams]
        batch = Batch(self._parts, plans)
        for plan in plans:
            with self._prefill(plan, call, 0) as prefilled:
                batch.add(plan, prefilled, self._answer(prefilled, call.options))
        answers = batch.decode(call.patience, call.options.max_tokens)
        return [answer.result() for answer in answers]


@dataclass(frozen=True, slots=True)
class _Call:
    """What a call asks for besides its prompt, checked.

    Attributes:
        strategy: Chooses the tokens to compute again.
        namespace: The tenant.
        options: How tokens are chosen.
        patience: Its deadline, and whether it was cancelled.
    """

    strategy: Strategy
    namespace: str
    options: Sampling
    patience: Patience

    @classmethod
    def of(
        cls,
        strategy: str | Strategy,
        *,
        namespace: str = "",
        timeout: float | None = None,
        **sampling: Unpack[SamplingKnobs],
    ) -> _Call:
        """Check the arguments of a call."""
        options = check_sampling(sampling)
        chosen = strategy_of(strategy)
        return cls(chosen, namespace, options, Patience(check_seconds("timeout", timeout)))


@dataclass(frozen=True, eq=False, slots=True)
class _Row:
    """The state of a prompt: its own tokens, and the shared modules that it sees."""

    answer: Answer
    logits: Tensor
    data: Tensor  # [layers, 2, heads, own tokens, head_dim]
    positions: Tensor
    seen: Tensor
    sees: frozenset[Hashable]
    next_position: int


class Batch:
    """Answers several prompts together, with the modules that they share in memory once.

    Each prompt is prefilled separately. A module that several prompts reuse at the same positions,
    and of which no token was computed again, is kept once; everything else is kept for each prompt.
    Then tokens are generated for all rows together (Prompt Cache §3.4).

    Args:
        parts: The model, its buffers and its encoded modules.
        plans: The plan of each prompt; all are added before any is decoded.
    """

    def __init__(self, parts: Parts, plans: Sequence[Plan]) -> None:
        self._parts = parts
        uses = Counter(key for plan in plans for key in set(_keys(plan).values()))
        most = 1 if parts.decoder.shares else len(plans)
        self._common = {key for key, count in uses.items() if count > most}
        self._shared: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self._rows: list[_Row] = []

    def add(self, plan: Plan, prefilled: Prefilled, answer: Answer) -> None:
        """Keep of a prefilled prompt what decoding needs."""
        recomputed = prefilled.about.recomputed
        own = np.ones(len(plan), dtype=np.bool_)
        sees = set()
        for number, key in _keys(plan).items():
            of_module = plan.parts == number
            if key not in self._common or recomputed[of_module].any():
                continue
            own[of_module] = False
            sees.add(key)
            if key not in self._shared:
                self._shared[key] = _copy(prefilled, np.flatnonzero(of_module))
        data, positions = _copy(prefilled, np.flatnonzero(own))
        seen = ~torch.from_numpy(plan.masked[own]).to(data.device)
        logits, following = prefilled.logits(), prefilled.next_position
        self._rows.append(_Row(answer, logits, data, positions, seen, frozenset(sees), following))

    @torch.inference_mode()
    def decode(self, patience: Patience, max_tokens: int) -> list[Answer]:
        """Generate until the answers of all rows have ended."""
        rows, decoder, pool = self._rows, self._parts.decoder, self._parts.pool
        device = pool.device
        longest = max(len(row.positions) for row in rows)
        buffer = pool.empty(longest + max_tokens, len(rows)).zero_()
        positions = torch.zeros(len(rows), longest + max_tokens, dtype=torch.long, device=device)
        seen = torch.zeros_like(positions, dtype=torch.bool)
        for number, row in enumerate(rows):
            own = len(row.positions)
            buffer[:, :, number, :, :own] = row.data
            positions[number, :own], seen[number, :own] = row.positions, row.seen
        shared, shared_positions, shared_seen = self._shared_part(device)
        following = torch.tensor([row.next_position for row in rows], device=device)
        tokens = [row.answer.take(row.logits)[0] for row in rows]
        for step in range(longest, longest + max_tokens):
            if all(row.answer.finish_reason for row in rows):
                break
            positions[:, step], seen[:, step] = following, True
            sight = Sight(
                following[:, None],
                torch.cat([shared_positions, positions[:, : step + 1]], dim=1),
                torch.cat([shared_seen, seen[:, : step + 1]], dim=1),
                shared=shared,
            )
            hidden = decoder.embed(torch.tensor(tokens, device=device)[:, None], following[:, None])
            memory = Memory(buffer, slice(step, step + 1), step + 1)
            hidden = run_layers(decoder, hidden, following[:, None], memory, sight, patience)
            logits = decoder.logits(hidden)[:, 0]
            for number, row in enumerate(rows):
                if row.answer.finish_reason is None:
                    tokens[number] = row.answer.take(logits[number])[0]
            # A row that has ended is still computed; its position must stay within the limit.
            following = (following + 1).clamp(max=decoder.limit - 1)
        return [row.answer for row in rows]

    def _shared_part(self, device: torch.device) -> tuple[Tensor | None, Tensor, Tensor]:
        rows = len(self._rows)
        if not self._shared:
            nothing = torch.zeros(rows, 0, dtype=torch.long, device=device)
            return None, nothing, nothing.bool()
        data = torch.cat([data for data, _ in self._shared.values()], dim=3)
        positions = torch.cat([positions for _, positions in self._shared.values()])
        sees = [[key in row.sees for key in self._shared] for row in self._rows]
        lengths = [len(positions) for _, positions in self._shared.values()]
        seen = torch.tensor(sees).repeat_interleave(torch.tensor(lengths), dim=1).to(device)
        return data, positions.expand(rows, -1), seen


def _keys(plan: Plan) -> dict[int, Hashable]:
    """Keys that identify the visible modules of a prompt, by number of the part."""
    visible = {int(number) for number in np.unique(plan.parts[plan.reusable])}
    return {
        number: (placed.module.token_ids, placed.module.positions, placed.shift)
        for number, placed in enumerate(plan.placed)
        if placed is not None and number in visible
    }


def _copy(prefilled: Prefilled, at: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    index = torch.from_numpy(at).to(prefilled.positions.device)
    with torch.inference_mode():
        return prefilled.data.index_select(3, index), prefilled.positions[index]


async def _in_thread(compute: Callable[[], T], patience: Patience) -> T:
    try:
        return await asyncio.to_thread(compute)
    except asyncio.CancelledError:
        patience.cancel()
        raise


def _check(dtype: Any, device: Any, device_bytes: Any, threads: Any) -> None:
    check_choice("dtype", dtype, DTYPES)
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        msg = f"unknown device {device!r}: allowed are names that torch knows, such as cpu or cuda"
        raise ConfigurationError(msg) from error
    check_int("device_store_bytes", device_bytes, 0)
    or_none(check_int)("threads", threads, 1, also="None")


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
    """Tokens that end an answer: those of the model's configuration, and the tokenizer's."""
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
