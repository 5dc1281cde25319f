"""The prefill of a prompt, and the prefilled prompt: its keys and values in memory."""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ragcache_integrations.core.blocks import Closeable
from ragcache_integrations.errors import ConfigurationError, PromptTooLongError

from .attention import Sight
from .decoders import Decoder
from .encoding import ModuleEncoder, Patience, run_layers
from .memory import BufferPool, KeysAndValues, Memory, Thrower
from .plan import Plan
from .strategies import Strategy

__all__ = ["About", "Parts", "Prefilled", "prefill"]


@dataclass(frozen=True, eq=False, slots=True)
class About:
    """What a prefill computed, and how long it took.

    Attributes:
        strategy: Name of the strategy.
        prompt_tokens: Tokens of the prompt, without masked and dropped modules.
        encoded_tokens: Tokens among them that were encoded already.
        recomputed_tokens: Encoded tokens that were computed again.
        ttft: Seconds until the first token of the answer could be chosen.
        recomputed: For each token, in the order of positions, whether it was computed again.
    """

    strategy: str
    prompt_tokens: int
    encoded_tokens: int
    recomputed_tokens: int
    ttft: float
    recomputed: NDArray[np.bool_] = field(repr=False)

    @property
    def cached_tokens(self) -> int:
        """Tokens that were reused as they had been encoded."""
        return self.encoded_tokens - self.recomputed_tokens

    @property
    def recomputed_share(self) -> float:
        """Share of the encoded tokens that was computed again, from 0 to 1."""
        return self.recomputed_tokens / self.encoded_tokens if self.encoded_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What every prefill of a model uses.

    Attributes:
        decoder: The model.
        pool: Buffers for prompts.
        encoder: Encodes modules and keeps them.
    """

    decoder: Decoder
    pool: BufferPool
    encoder: ModuleEncoder


class Prefilled(Closeable):
    """A prompt in the model's memory: generate from it, extend it, or mask or drop modules.

    It belongs to one thread at a time, and holds a buffer until it is closed. So an application can
    first ask which documents matter, and then ask its question about these, without computing the
    prompt again::

        with model.prefill(assembly) as prompt:
            ...                        # generate, and find out which documents matter
            prompt.mask(["d2", "d5"])  # or drop
            prompt.extend(tokens)
            model.generate(prompt)

    Masking does not change tokens that were computed before it: modules that a strategy computed
    again, and text after the masked modules, may still carry something of them.

    Attributes:
        about: What the prefill computed, and how long it took.
        length: Tokens in memory.
        positions: Positions of the tokens, ``[tokens]``.
        seen: Whether each token may be seen, ``[tokens]``; ``None`` where all may.
    """

    def __init__(
        self, parts: Parts, plan: Plan, buffer: Tensor, logits: Tensor, about: About
    ) -> None:
        self.about = about
        self._parts = parts
        self._buffer = buffer
        self._logits = logits
        self.length = len(plan)
        device = parts.pool.device
        self.positions = torch.from_numpy(plan.positions).to(device)
        self.seen = torch.from_numpy(~plan.masked).to(device) if plan.masked.any() else None
        self._numbers: NDArray[np.int64] = plan.parts
        self._owners = plan.owners
        self._token_ids: NDArray[np.int64] = plan.token_ids
        self._next = int(plan.positions.max()) + 1
        self._stale = False
        self._pending: tuple[int, ...] = ()
        self._finalizer = weakref.finalize(self, parts.pool.give_back, buffer)

    # What comes next

    def logits(self, patience: Patience | None = None) -> Tensor:
        """Scores of the token that comes next, ``[vocabulary]``.

        After :meth:`mask` or :meth:`drop` the last token is computed again, because it had seen
        modules that must no longer be seen.
        """
        if self._pending:
            return self.extend((), patience)
        if self._stale:
            token = torch.tensor([int(self._token_ids[-1])])
            self._logits = self._step(token, self.length - 1, patience or Patience())
            self._stale = False
        return self._logits

    def extend(self, token_ids: Collection[int], patience: Patience | None = None) -> Tensor:
        """Add tokens after the last one.

        The last token of an answer is computed with them, if it was not computed yet.

        Args:
            token_ids: The tokens, at least one.
            patience: How long to wait; forever where ``None``.

        Returns:
            Scores of the token that comes next, ``[vocabulary]``.

        Raises:
            ConfigurationError: There are no tokens, or one is unknown to the model.
            PromptTooLongError: The tokens reach beyond the model's last position.
            GenerationTimeoutError: It took too long; no token was added.
        """
        ids = (*self._pending, *token_ids)
        if not ids:
            raise ConfigurationError("at least one token is needed to extend a prompt, got none")
        self._parts.encoder.check_tokens(ids)
        limit = self._parts.decoder.limit
        if self._next + len(ids) > limit:
            raise PromptTooLongError(self._next + len(ids), limit)
        self._check_open()
        before, state = self.length, self._state()
        self._grow(before + len(ids))
        device = self.positions.device
        positions = torch.arange(self._next, self._next + len(ids), device=device)
        try:
            self.positions = torch.cat([self.positions, positions])
            if self.seen is not None:
                seen = torch.ones(len(ids), dtype=torch.bool, device=device)
                self.seen = torch.cat([self.seen, seen])
            self._numbers = np.append(self._numbers, np.full(len(ids), -1))
            self._token_ids = np.append(self._token_ids, ids)
            self.length += len(ids)
            self._next += len(ids)
            self._logits = self._step(torch.tensor(ids), before, patience or Patience())
        except BaseException:  # out of time or memory: nothing was added
            vars(self).update(state)
            raise
        self._pending = ()
        self._stale = False
        return self._logits

    def _state(self) -> dict[str, object]:
        """The attributes that :meth:`extend` changes.

        The buffer needs no copy: its content after ``length`` is never read.
        """
        names = ("positions", "seen", "_numbers", "_token_ids", "length", "_next")
        return {name: getattr(self, name) for name in names}

    def remember(self, token_id: int) -> None:
        """Keep the last token of an answer; it is computed when more tokens follow."""
        self._pending = (*self._pending, token_id)

    # Relevance without recomputation

    def mask(self, names: Collection[str]) -> None:
        """Hide modules from all tokens that are computed from now on. Their memory stays in use.

        Raises:
            ConfigurationError: The prompt has no module of a name, or ends in an argument of such a
                module.
        """
        slots = torch.from_numpy(self._slots_of("mask", names)).to(self.positions.device)
        seen = torch.ones(self.length, dtype=torch.bool, device=slots.device)
        seen[slots] = False
        self.seen = seen if self.seen is None else self.seen & seen
        self._stale = True

    def drop(self, names: Collection[str]) -> None:
        """Remove modules from memory, which also makes further tokens cheaper to compute.

        Raises:
            ConfigurationError: The prompt has no module of a name, or ends in an argument of such a
                module.
        """
        slots = self._slots_of("drop", names)
        keep = np.setdiff1d(np.arange(self.length), slots)
        with torch.inference_mode():
            kept = torch.from_numpy(keep).to(self.positions.device)
            self._buffer[:, :, :, :, : len(keep)] = self._buffer.index_select(4, kept)
            self.positions = self.positions[kept]
            self.seen = None if self.seen is None else self.seen[kept]
        self._numbers, self._token_ids = self._numbers[keep], self._token_ids[keep]
        self.length = len(keep)
        self._stale = True

    # State

    @property
    def next_position(self) -> int:
        """Position of the next token."""
        return self._next + len(self._pending)

    @property
    def visible_tokens(self) -> NDArray[np.int64]:
        """Ids of the tokens that may be seen, sorted and without duplicates."""
        seen = self._token_ids if self.seen is None else self._token_ids[self.seen.cpu().numpy()]
        return np.unique(np.append(seen, np.array(self._pending, dtype=np.int64)))

    @property
    def room(self) -> int:
        """Most tokens that an answer can have; its last token needs no position."""
        return self._parts.decoder.limit - self.next_position + 1

    @property
    def data(self) -> Tensor:
        """Keys and values, ``[layers, 2, heads, tokens, head_dim]``, in the order of positions."""
        self._check_open()
        return self._buffer[:, :, 0, :, : self.length]

    @property
    def closed(self) -> bool:
        """Whether its memory was given back."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Give its memory back. Idempotent."""
        self._finalizer()

    def _check_open(self) -> None:
        if self.closed:
            raise ConfigurationError("the prefilled prompt was closed")

    def _slots_of(self, what: str, names: Collection[str]) -> NDArray[np.int64]:
        self._check_open()
        self._owners.check(what, names)
        numbers = [at for at, name in enumerate(self._owners.of_parts) if name in names]
        slots = np.flatnonzero(np.isin(self._numbers, numbers))
        if len(slots) and slots[-1] == self.length - 1:
            raise ConfigurationError(
                f"{what} names the module whose argument the prompt ends in: nothing would be left "
                "to continue from"
            )
        return slots

    def _step(self, token_ids: Tensor, first: int, patience: Patience) -> Tensor:
        """Compute consecutive tokens, the first of which has index ``first``."""
        self._check_open()
        with torch.inference_mode():
            where = slice(first, first + len(token_ids))
            positions = self.positions[where][None]
            memory = Memory(self._buffer, where, self.length)
            seen = None if self.seen is None else self.seen[None]
            # Positions increase, so the last token sees every token unless some are hidden.
            everything = len(token_ids) == 1 and where.stop == self.length and seen is None
            sight = Sight(positions, self.positions[None], seen, everything=everything)
            decoder = self._parts.decoder
            hidden = decoder.embed(token_ids[None].to(positions.device), positions)
            hidden = run_layers(decoder, hidden, positions, memory, sight, patience)
            return decoder.logits(hidden[:, -1:])[0, 0]

    def _grow(self, tokens: int) -> None:
        if tokens <= self._buffer.shape[4]:
            return
        pool = self._parts.pool
        larger = pool.borrow(2 * tokens)
        with torch.inference_mode():
            larger[:, :, :, :, : self.length] = self._buffer[:, :, :, :, : self.length]
        self._finalizer()
        self._buffer = larger
        self._finalizer = weakref.finalize(self, pool.give_back, larger)


def prefill(
    parts: Parts,
    plan: Plan,
    strategy: Strategy,
    *,
    namespace: str,
    room: int,
    patience: Patience,
) -> Prefilled:
    """Copy a prompt's encoded modules into a buffer and compute the rest (Prompt Cache §3.4).

    Args:
        parts: The model, its buffers and its encoded modules.
        plan: The prompt.
        strategy: Chooses which tokens are computed again.
        namespace: Tenant whose modules are used.
        room: Tokens that will probably be generated after the prompt.
        patience: How long to wait.

    Raises:
        PromptTooLongError: The prompt reaches beyond the model's last position.
        GenerationTimeoutError: It took too long.
    """
    began = time.perf_counter()
    highest, limit = int(plan.positions.max()) + 1, parts.decoder.limit
    if highest > limit:
        raise PromptTooLongError(highest, limit, "counted to its highest position")
    parts.encoder.check_tokens((int(plan.token_ids.min()), int(plan.token_ids.max())))
    buffer = parts.pool.borrow(min(len(plan) + room, max(limit, len(plan))))
    try:
        with torch.inference_mode():
            run = _PrefillRun(parts, plan, buffer, namespace, patience)
            logits, chosen = run(strategy)
    except BaseException:
        parts.pool.give_back(buffer)
        raise
    about = About(
        strategy=strategy.name,
        prompt_tokens=int((~plan.masked).sum()),
        encoded_tokens=int(plan.reusable.sum()),
        recomputed_tokens=int(chosen.sum()),
        ttft=_seconds_since(began, logits),
        recomputed=chosen,
    )
    return Prefilled(parts, plan, buffer, logits, about)


def _seconds_since(began: float, computed: Tensor) -> float:
    """Seconds from ``began`` until a tensor is computed; a GPU may still be computing it."""
    if computed.is_cuda:
        torch.cuda.synchronize(computed.device)
    return time.perf_counter() - began


@dataclass(eq=False)
class _PrefillRun:
    """The computation of a single prefill."""

    parts: Parts
    plan: Plan
    buffer: Tensor
    namespace: str
    patience: Patience

    def __post_init__(self) -> None:
        self._device = self.parts.pool.device
        self._positions = torch.from_numpy(self.plan.positions).to(self._device)
        self._loaded = False
        self._first_output: Tensor | None = None  # output of the first layer for all tokens

    def __call__(self, strategy: Strategy) -> tuple[Tensor, NDArray[np.bool_]]:
        """Return the logits of the last token, and which tokens were computed again."""
        plan = self.plan
        chosen = strategy.choose(plan, self._deviations) & plan.reusable
        compute = plan.fresh | chosen
        self._load(compute)
        at = np.flatnonzero(compute)
        if self._first_output is None:
            hidden, first = self._embed(at), 0
        else:
            hidden, first = self._first_output[:, torch.from_numpy(at).to(self._device)], 1
        hidden = run_layers(
            self.parts.decoder,
            hidden,
            self._positions[None, torch.from_numpy(at).to(self._device)],
            Memory(self.buffer, _where(at, self._device), len(plan)),
            self._sight(at),
            self.patience,
            first,
        )
        return self.parts.decoder.logits(hidden[:, -1:])[0, 0], chosen

    def _load(self, compute: NDArray[np.bool_]) -> None:
        """Copy the modules into the buffer, except for runs that are computed again as a whole."""
        if self._loaded:
            return
        self._loaded = True
        positions, encoder = self.parts.decoder.positions, self.parts.encoder
        needed: dict[int, list[tuple[int, int, int]]] = {}
        for run in self.plan.runs:
            if not compute[run.slot : run.slot + run.length].all():
                needed.setdefault(run.part, []).append((run.slot, run.offset, run.length))
        for number, runs in needed.items():
            placed = self.plan.placed[number]
            assert placed is not None  # noqa: S101 - only modules have runs
            with encoder.lease(placed.module, self.namespace, self.patience) as encoded:
                for slot, offset, length in runs:
                    theirs = encoded.data[:, :, :, offset : offset + length]
                    ours = self.buffer[:, :, 0, :, slot : slot + length]
                    where = encoded.positions[offset : offset + length]
                    positions.place(theirs[:, 0], ours[:, 0], where, placed.shift)
                    ours[:, 1].copy_(theirs[:, 1], non_blocking=True)

    def _deviations(self) -> NDArray[np.float64]:
        """Compute the first layer for all tokens, and compare keys and values of the second layer.

        Returns:
            The sum of squared differences for each token; 0 for tokens that are not reused.
        """
        plan, decoder = self.plan, self.parts.decoder
        deviations = np.zeros(len(plan))
        if len(decoder.layers) < 2:  # noqa: PLR2004 - the first layer's keys know no context
            return deviations
        self._load(plan.fresh)
        at = np.flatnonzero(~plan.masked)
        index = torch.from_numpy(at).to(self._device)
        positions = self._positions[None, index]
        sight = self._sight(at)
        hidden = self._embed(at)
        arguments = decoder.prepare(hidden, positions, sight)
        memory = Memory(self.buffer, _where(at, self._device), len(plan))
        hidden = decoder.run(0, hidden, memory, arguments)
        self.patience.check()
        try:
            decoder.run(1, hidden, Thrower(), arguments)
        except KeysAndValues as taken:
            both = torch.stack([taken.keys[0], taken.values[0]])
        away = (both - self.buffer[1, :, 0].index_select(2, index)).float()
        deviations[at] = np.where(
            plan.fresh[at], 0, away.square().sum(dim=(0, 1, 3)).double().cpu().numpy()
        )
        full = torch.zeros(1, len(plan), hidden.shape[-1], dtype=hidden.dtype, device=self._device)
        full[:, index] = hidden
        self._first_output = full
        return deviations

    def _embed(self, at: NDArray[np.int64]) -> Tensor:
        index = torch.from_numpy(at).to(self._device)
        token_ids = torch.from_numpy(self.plan.token_ids).to(self._device)[None, index]
        return self.parts.decoder.embed(token_ids, self._positions[None, index])

    def _sight(self, at: NDArray[np.int64]) -> Sight:
        positions, masked = self._positions[None], self.plan.masked
        if len(at) == len(self.plan):
            return Sight(positions, positions, triangle=True)
        index = torch.from_numpy(at).to(self._device)
        seen = torch.from_numpy(~masked).to(self._device)[None] if masked.any() else None
        everything = len(at) == 1 and at[0] == len(self.plan) - 1 and seen is None
        return Sight(positions[:, index], positions, seen, everything=everything)


def _where(at: NDArray[np.int64], device: torch.device) -> slice | Tensor:
    """An index into a buffer; consecutive tokens get a slice, which is faster."""
    if at[-1] - at[0] + 1 == len(at):
        return slice(int(at[0]), int(at[-1]) + 1)
    return torch.from_numpy(at).to(device)
