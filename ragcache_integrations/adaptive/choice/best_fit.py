"""The best configuration that fits the memory which is free now (RAGServe §4.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ragcache_integrations.adaptive.types import Synthesis, SynthesisConfig
from ragcache_integrations.core.checks import is_number, is_whole
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel

from .mapping import PrunedSpace

__all__ = [
    "BestFit",
    "Call",
    "CallPlan",
    "Choice",
    "ChunkFacts",
    "PromptSizes",
    "Reason",
    "Situation",
    "size",
]

Reason = Literal["fits", "fallback", "late", "queued"]

_RANK: dict[Synthesis, int] = {"map_rerank": 0, "stuff": 1, "map_reduce": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSizes:
    """What stands in the prompts besides the chunks, and how long answers may be, in tokens.

    Attributes:
        stuff: Instructions and question of the one prompt of ``stuff``.
        mapper: Those of one of ``map_reduce``'s mappers.
        reduce: Those of its last prompt.
        rerank: Those of one of ``map_rerank``'s prompts.
        answer: The longest answer.
        separator: What stands behind every chunk and summary.
        window: Context window of the model; ``None`` where it is not known. A chunk that is too
            long for it by itself is cut.

    Raises:
        ConfigurationError: A number is out of its range.
    """

    stuff: int
    mapper: int
    reduce: int
    rerank: int
    answer: int
    separator: int = 0
    window: int | None = None

    def __post_init__(self) -> None:
        lowest = {"stuff": 0, "mapper": 0, "reduce": 0, "rerank": 0, "separator": 0, "answer": 1}
        for name, low in lowest.items():
            value = getattr(self, name)
            if not is_whole(value) or value < low:
                msg = f"{name} must be a whole number of at least {low}, got {value!r}"
                raise ConfigurationError(msg)
        if self.window is not None and (not is_whole(self.window) or self.window < 2):  # noqa: PLR2004 - prompt and answer
            msg = f"window must be a whole number of at least 2, or None, got {self.window!r}"
            raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """What is known of the chunks that were retrieved, the most relevant first; in tokens.

    Attributes:
        tokens: Length of each.
        path_cached: ``path_cached[n]``: how much of the beginning of a prompt with the first n
            chunks is in the KV cache. Empty for nothing.
        path_in_use: Likewise, what of it running requests hold.
        alone_cached: ``alone_cached[i]``: how much of the beginning of a prompt with chunk i alone
            is in the KV cache. Empty for nothing.
        alone_in_use: Likewise, what of it running requests hold.

    Raises:
        ConfigurationError: There are no chunks, one is shorter than a token, or there are too few
            or too many numbers.
    """

    tokens: tuple[int, ...]
    path_cached: tuple[int, ...] = ()
    path_in_use: tuple[int, ...] = ()
    alone_cached: tuple[int, ...] = ()
    alone_in_use: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.tokens or not all(is_whole(token) and token >= 1 for token in self.tokens):
            msg = f"there must be chunks, each of at least 1 token, got {self.tokens!r}"
            raise ConfigurationError(msg)
        count = len(self.tokens)
        for name in ("path_cached", "path_in_use", "alone_cached", "alone_in_use"):
            values = getattr(self, name)
            length = count + name.startswith("path")
            if not values:
                object.__setattr__(self, name, (0,) * length)
            elif len(values) != length:
                msg = f"{name} must have {length} numbers, got {len(values)}"
                raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model, in tokens.

    Attributes:
        prompt: Length of its prompt.
        output: The longest answer.
        cached: Prompt tokens whose KV is cached; they save time.
        in_use: Those of them that running requests hold; they save memory, too.
    """

    prompt: int
    output: int
    cached: int = 0
    in_use: int = 0

    @property
    def need(self) -> int:
        """KV memory that it needs besides what is there for others."""
        return self.prompt + self.output - self.in_use


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The calls of a configuration.

    Attributes:
        first: Those that can run side by side.
        last: What follows when all of them have ended; ``None`` where nothing does.
    """

    first: tuple[Call, ...]
    last: Call | None = None

    @property
    def need(self) -> int:
        """Memory without which it waits: its largest call's; the others run as they fit."""
        return max(call.need for call in self.calls)

    @property
    def footprint(self) -> int:
        """Memory that it takes when there is enough for all of its calls."""
        return max(sum(call.need for call in self.first), self.last.need if self.last else 0)

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls."""
        return (*self.first, *([self.last] if self.last else []))

    @property
    def longest(self) -> int:
        """Tokens of its longest call, prompt and answer."""
        return max(call.prompt + call.output for call in self.calls)


def size(config: SynthesisConfig, chunks: ChunkFacts, sizes: PromptSizes) -> CallPlan:
    """What calls a configuration makes, and how long they are.

    Args:
        config: The configuration; of no more chunks than there are.
        chunks: What was retrieved.
        sizes: What stands in the prompts besides.
    """
    count, behind = config.num_chunks, sizes.separator
    if config.method == "stuff":
        prompt = sizes.stuff + sum(chunks.tokens[:count]) + count * behind
        known = chunks.path_cached[count], chunks.path_in_use[count]
        cut = sizes.window if count == 1 else None
        return CallPlan((_call(prompt, sizes.answer, cut, *known),))
    frame, output, last = sizes.rerank, sizes.answer, None
    if config.intermediate_length is not None:
        frame, output = sizes.mapper, config.summary_tokens
        last = Call(sizes.reduce + count * (output + behind), sizes.answer)
    mappers = tuple(
        _call(
            frame + chunks.tokens[place] + behind,
            output,
            sizes.window,
            chunks.alone_cached[place],
            chunks.alone_in_use[place],
        )
        for place in range(count)
    )
    return CallPlan(mappers, last)


def _call(prompt: int, output: int, window: int | None, cached: int, in_use: int) -> Call:
    if window is not None:
        prompt = min(prompt, max(window - output, 1))
    return Call(prompt, output, min(cached, prompt), min(in_use, prompt))


@dataclass(frozen=True, slots=True)
class Situation:
    """What a configuration has to fit.

    Attributes:
        free_tokens: KV memory that a new request could get now, in tokens; negative where what
            waits already needs more than there is.
        latency_budget: The most seconds that the answer may take; ``None`` for no limit.
        queue_seconds: How long what waits already will take before it is this request's turn.
        pace: How long things take here, as a multiple of what the cost model says.
    """

    free_tokens: int
    latency_budget: float | None = None
    queue_seconds: float = 0.0
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What best fit chose, and why.

    Attributes:
        config: The configuration.
        reason: ``fits``: the largest of the space that fits. ``fallback``: nothing of the space
            fits, so the cheapest of the right method, with as many chunks as do. ``late``: not
            even one chunk comes within the budget, or within the window. ``queued``: not even one
            finds room; it waits.
        plan: The calls it makes.
        need: Memory without which it would wait, in tokens.
        seconds: How long it should take, waiting included.
        free_tokens: What was free.
        considered: Configurations of the space.
    """

    config: SynthesisConfig
    reason: Reason
    plan: CallPlan
    need: int
    seconds: float
    free_tokens: int
    considered: int


@dataclass(frozen=True)
class BestFit:
    """Chooses configurations: the largest that fits (RAGServe §4.3).

    Larger is: more chunks, then longer summaries, then ``map_reduce`` over ``stuff``. A plan fits
    where its largest call finds room (mappers run as they fit, which is why ``map_reduce`` starts
    where ``stuff`` would queue), no call exceeds the window, and the answer should come within the
    budget. Where nothing of the space fits: among configurations of its methods with the shortest
    summaries, that of the most chunks that fits, the cheapest where several have as many; where
    none does, one chunk, by what needs least memory.

    Args:
        prefill: Prefill seconds by cached and new tokens.
        decode_seconds: Seconds per generated token.

    Raises:
        ConfigurationError: ``decode_seconds`` is negative.
    """

    prefill: PrefillCostModel = field(default_factory=PrefillCostModel.default)
    decode_seconds: float = 0.02

    def __post_init__(self) -> None:
        if not is_number(self.decode_seconds) or self.decode_seconds < 0:
            msg = f"decode_seconds must be a number of at least 0, got {self.decode_seconds!r}"
            raise ConfigurationError(msg)

    def choose(
        self,
        space: PrunedSpace,
        chunks: ChunkFacts,
        sizes: PromptSizes,
        situation: Situation,
    ) -> Choice:
        """Choose a configuration.

        Args:
            space: What suits the question.
            chunks: What was retrieved.
            sizes: What stands in the prompts besides.
            situation: What it has to fit.
        """
        found = len(chunks.tokens)
        considered = sorted(set(space.configurations(found)), key=_size_order, reverse=True)
        reason: Reason = "fits"
        plans = ((one, size(one, chunks, sizes)) for one in considered)
        fits = (one for one, plan in plans if self.fits(plan, situation, sizes.window))
        config = next(fits, None)
        if config is None:
            config, reason = self._cheaper(space, chunks, sizes, situation)
        plan = size(config, chunks, sizes)
        return Choice(
            config=config,
            reason=reason,
            plan=plan,
            need=plan.need,
            seconds=self.seconds(plan, situation),
            free_tokens=situation.free_tokens,
            considered=len(considered),
        )

    def fits(self, plan: CallPlan, situation: Situation, window: int | None = None) -> bool:
        """Whether a plan would start now, and end in time; the window is in tokens."""
        if plan.need > situation.free_tokens:
            return False
        if window is not None and plan.longest > window:
            return False
        budget = situation.latency_budget
        return budget is None or self.seconds(plan, situation) <= budget

    def seconds(self, plan: CallPlan, situation: Situation) -> float:
        """How long a plan should take, as long as nothing else comes.

        Prefills share the device, so that their times add up. Decoding goes side by side for as
        many calls as find room at a time. Time for what waits before it comes on top.
        """
        prefills = sum(self.prefill(call.cached, call.prompt - call.cached) for call in plan.calls)
        room = max(situation.free_tokens, plan.need, 1)
        rounds = math.ceil(sum(call.need for call in plan.first) / room)
        decoded = rounds * max(call.output for call in plan.first)
        decoded += plan.last.output if plan.last else 0
        return situation.pace * (situation.queue_seconds + prefills + decoded * self.decode_seconds)

    def _cheaper(
        self, space: PrunedSpace, chunks: ChunkFacts, sizes: PromptSizes, situation: Situation
    ) -> tuple[SynthesisConfig, Reason]:
        """What to do where nothing of the space fits."""
        cheap = _cheapest(space, min(space.max_chunks, len(chunks.tokens)))
        plans = {one: size(one, chunks, sizes) for one in cheap}
        enough = [one for one, plan in plans.items() if self.fits(plan, situation, sizes.window)]
        if enough:
            return max(enough, key=lambda one: (one.num_chunks, -_RANK[one.method])), "fallback"
        single = [one for one in cheap if one.num_chunks == 1]
        least = min(single, key=lambda one: (plans[one].need, _RANK[one.method]))
        return least, "late" if plans[least].need <= situation.free_tokens else "queued"


def _cheapest(space: PrunedSpace, chunks: int) -> Sequence[SynthesisConfig]:
    """Each method of a space with its shortest summaries and up to so many chunks."""
    shortest: dict[Synthesis, int | None] = {}
    for region in space.regions:
        length = region.lengths[0]
        known = shortest.setdefault(region.method, length)
        if known is not None and length is not None:
            shortest[region.method] = min(known, length)
    return [
        SynthesisConfig(method, count, length)
        for method, length in shortest.items()
        for count in range(1, chunks + 1)
    ]


def _size_order(config: SynthesisConfig) -> tuple[int, int, int]:
    return config.num_chunks, config.intermediate_length or 0, _RANK[config.method]
