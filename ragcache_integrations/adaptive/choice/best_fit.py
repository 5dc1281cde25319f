"""The best configuration that fits the free memory (RAGServe §4.3).

A question's prompts and chunks are measured in tokens, and the memory of the answers that are being
made is reserved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, assert_never

from ragcache_integrations.adaptive.asker import Asker
from ragcache_integrations.adaptive.synthesis import SynthesisSettings, Window
from ragcache_integrations.adaptive.types import Synthesis, SynthesisConfig
from ragcache_integrations.core.checks import check_int, check_number, is_whole
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel

from .load import MemoryLoad
from .mapping import RANK, PrunedSpace

__all__ = [
    "BestFit",
    "Call",
    "CallPlan",
    "Choice",
    "ChunkFacts",
    "Measures",
    "PromptSizes",
    "Reason",
    "Reservations",
    "Situation",
    "next_step",
    "size",
]


MAX_REMEMBERED = 10_000
"""Number of chunks whose lengths are kept, since popular ones are retrieved again and again."""


class Measures:
    """Counts tokens by the model's tokenizer, and keeps the lengths of chunks. Thread-safe.

    Args:
        asker: The model, which counts.
        settings: Its prompts are measured.
    """

    def __init__(self, asker: Asker, settings: SynthesisSettings) -> None:
        self._asker = asker
        self._settings = settings
        self._lock = make_lock()
        self._lengths: Memo[str, int] = Memo(MAX_REMEMBERED)  # by the hash of the text

    def sizes(self, question: str, space: PrunedSpace) -> PromptSizes:
        """Measure the prompts of a space's methods without their chunks."""
        count, prompts = self._asker.count_prompt, self._settings.prompts
        methods = space.methods
        limits = self._asker.limits()
        scored = self._settings.ranking == "self_rated" or not self._asker.logprob_support.available
        stuff = mapper = reduce = rerank = 0
        if "stuff" in methods:
            stuff = count(prompts.stuff(question, ()))
        if "map_reduce" in methods:
            mapper = count(prompts.map(question, (), 100))
            reduce = count(prompts.combine(question, ()))
        if "map_rerank" in methods:
            rerank = count(prompts.rerank(question, (), scored=scored))
        return PromptSizes(
            stuff=stuff,
            mapper=mapper,
            reduce=reduce,
            rerank=rerank,
            answer=self._settings.max_tokens or limits.answer_tokens,
            separator=Window(self._asker, self._settings).separator,
            window=self._settings.context_window or limits.context_window,
        )

    def lengths(self, chunks: Sequence[PromptDocument]) -> tuple[int, ...]:
        """Return the length of each chunk in tokens."""
        return tuple(map(self._length, chunks))

    def _length(self, chunk: PromptDocument) -> int:
        key = content_id(chunk.text)
        with self._lock:
            known = self._lengths.get(key)
        if known is not None:
            return known
        length = max(1, self._asker.count_tokens(chunk.text))
        with self._lock:
            self._lengths[key] = length
        return length


Reason = Literal["fits", "step", "fallback", "late", "queued"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSizes:
    """Lengths of the prompts without their chunks, and of the answers, in tokens.

    Attributes:
        stuff: Instructions and question of the single prompt of ``stuff``; at least 0.
        mapper: Those of each mapper of ``map_reduce``; at least 0.
        reduce: Those of the last prompt of ``map_reduce``; at least 0.
        rerank: Those of each prompt of ``map_rerank``; at least 0.
        answer: The longest answer; at least 1.
        separator: The separator after every chunk and summary; at least 0.
        window: Context window of the model, at least 2; ``None`` if unknown. A chunk that alone is
            too long for it is cut.

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
            check_int(name, getattr(self, name), low, unit="tokens")
        if self.window is not None:  # a token of the prompt, one of the answer
            check_int("window", self.window, 2, unit="tokens", also="None")


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """Lengths of the retrieved chunks, most relevant first, and what is cached of them, in tokens.

    Attributes:
        tokens: Length of each chunk; at least 1.
        path_cached: ``path_cached[n]`` is the length of the cached prefix of a prompt with the
            first n chunks. Empty if nothing is cached.
        path_in_use: The part of ``path_cached`` that running requests hold.
        alone_cached: ``alone_cached[i]`` is the length of the cached prefix of a prompt with chunk
            i alone. Empty if nothing is cached.
        alone_in_use: The part of ``alone_cached`` that running requests hold.
        tried: The configurations with which they were read before. What these asked about single
            chunks need not be asked again.

    Raises:
        ConfigurationError: There are no chunks, a number is out of its range, or the numbers of
            lengths differ.
    """

    tokens: tuple[int, ...]
    path_cached: tuple[int, ...] = ()
    path_in_use: tuple[int, ...] = ()
    alone_cached: tuple[int, ...] = ()
    alone_in_use: tuple[int, ...] = ()
    tried: tuple[SynthesisConfig, ...] = ()

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
                raise ConfigurationError(f"{name} must have {length} numbers, got {len(values)}")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model, in tokens.

    Attributes:
        prompt: Length of its prompt.
        output: Limit of its answer.
        cached: Prompt tokens whose KV is cached; they save time.
        in_use: The cached tokens that running requests hold; they save memory, too.
    """

    prompt: int
    output: int
    cached: int = 0
    in_use: int = 0

    @property
    def need(self) -> int:
        """KV memory that it needs in addition to what other requests hold."""
        return self.prompt + self.output - self.in_use


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The calls of a configuration.

    Attributes:
        first: The calls that can run concurrently.
        last: The call that follows when all of them have ended; ``None`` if there is none.
    """

    first: tuple[Call, ...]
    last: Call | None = None

    @property
    def need(self) -> int:
        """Memory without which it waits: that of its largest call; the others run as they fit."""
        return max(call.need for call in self.calls)

    @property
    def footprint(self) -> int:
        """Memory that it takes if there is enough for all of its calls."""
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
    """Compute the calls that a configuration makes, and their lengths.

    Args:
        config: The configuration; of no more chunks than were retrieved.
        chunks: The retrieved chunks.
        sizes: Lengths of the prompts without them.
    """
    count, separator = config.num_chunks, sizes.separator
    if config.method == "stuff":
        prompt = sizes.stuff + sum(chunks.tokens[:count]) + count * separator
        known = chunks.path_cached[count], chunks.path_in_use[count]
        cut = sizes.window if count == 1 else None
        return CallPlan((_call(prompt, sizes.answer, cut, *known),))
    if config.method == "map_rerank":
        frame, output, last = sizes.rerank, sizes.answer, None
    elif config.method == "map_reduce":
        frame, output = sizes.mapper, config.summary_tokens
        last = Call(sizes.reduce + count * (output + separator), sizes.answer)
    else:
        assert_never(config.method)
    same = (each for each in chunks.tried if config == replace(each, num_chunks=count))
    # Nobody chooses to read nothing more; what reads less than before has a size all the same.
    first = min(max((each.num_chunks for each in same), default=0), count - 1)
    mappers = tuple(
        _call(
            frame + chunks.tokens[i] + separator,
            output,
            sizes.window,
            chunks.alone_cached[i],
            chunks.alone_in_use[i],
        )
        for i in range(first, count)
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
        free_tokens: KV memory that a new request could get now, in tokens; negative if the waiting
            requests need more than there is.
        latency_budget: The most seconds that the answer may take; ``None`` for no limit.
        queue_seconds: How long the requests that already wait will take, in seconds.
        pace: Measured time of answers, as a multiple of the cost model's estimate.
    """

    free_tokens: int
    latency_budget: float | None = None
    queue_seconds: float = 0.0
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The configuration that best fit chose, and why.

    Attributes:
        config: The configuration.
        reason: ``fits``: the largest of the space that fits. ``step``: a smaller one that fits,
            after which more may be read. ``fallback``: nothing of the space fits, so the cheapest
            of the right method, with as many chunks as fit. ``late``: not even the fewest chunks,
            one unless their number is held, fit into the latency budget, or the window. ``queued``:
            not even they fit into the free memory, so that it has to wait.
        plan: The calls that it makes.
        need: Memory without which it would wait, in tokens.
        seconds: How long it should take, including the wait.
        free_tokens: The free memory at the time, in tokens.
        considered: Number of configurations in the space.
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

    Configurations are ordered by chunks, then by the length of their summaries, then by method:
    ``map_reduce`` is larger than ``stuff``. A plan fits if its largest call fits into the free
    memory (mappers run as they fit, which is why ``map_reduce`` starts where ``stuff`` would have
    to wait), no call exceeds the window, and the answer should be ready within the latency budget.
    If nothing of the space fits, the choice is among its methods with their shortest summaries:
    the one with the most chunks that fits, the cheapest method if several do. If none of them
    fits, it is the one with a single chunk that needs the least memory. A number of chunks that is
    held stays as it is.

    Args:
        prefill: Estimates prefill seconds by cached and new tokens.
        decode_seconds: Seconds per generated token; at least 0.

    Raises:
        ConfigurationError: ``decode_seconds`` is negative.
    """

    prefill: PrefillCostModel = field(default_factory=PrefillCostModel.default)
    decode_seconds: float = 0.02

    def __post_init__(self) -> None:
        check_number("decode_seconds", self.decode_seconds, 0, unit="seconds")

    def choose(
        self,
        space: PrunedSpace,
        chunks: ChunkFacts,
        sizes: PromptSizes,
        situation: Situation,
    ) -> Choice:
        """Choose a configuration.

        Args:
            space: The configurations that suit the question.
            chunks: The retrieved chunks.
            sizes: Lengths of the prompts without them.
            situation: The memory and time that it has to fit into.
        """
        considered = space.ordered(len(chunks.tokens))
        reason: Reason = "fits"
        config = next(self._fitting(reversed(considered), chunks, sizes, situation), None)
        if config is None:
            config, reason = self._cheaper(space, chunks, sizes, situation)
        plan = size(config, chunks, sizes)
        return self._choice(config, reason, plan, situation, len(considered))

    def choose_step(
        self,
        space: PrunedSpace,
        chunks: ChunkFacts,
        sizes: PromptSizes,
        situation: Situation,
        read: int,
    ) -> Choice | None:
        """Choose what to read next of a question, the smallest that fits first.

        Args:
            space: The configurations that suit the question.
            chunks: The retrieved chunks.
            sizes: Lengths of the prompts without them.
            situation: The memory and time that it has to fit into.
            read: How many chunks were read before, in which the answer was not; 0 for none.

        Returns:
            The choice; ``None`` if nothing that fits reads more than before.
        """
        most = self.choose(space, chunks, sizes, situation)
        fitting = self._fitting(space.ordered(len(chunks.tokens)), chunks, sizes, situation)
        config = next_step(fitting, most.config, read)
        if config is None:
            return None
        if config == most.config:
            return most
        plan = size(config, chunks, sizes)
        return self._choice(config, "step", plan, situation, most.considered)

    def _choice(
        self,
        config: SynthesisConfig,
        reason: Reason,
        plan: CallPlan,
        situation: Situation,
        considered: int,
    ) -> Choice:
        seconds, free = self.seconds(plan, situation), situation.free_tokens
        return Choice(config, reason, plan, plan.need, seconds, free, considered)

    def _fitting(
        self,
        options: Iterable[SynthesisConfig],
        chunks: ChunkFacts,
        sizes: PromptSizes,
        situation: Situation,
    ) -> Iterator[SynthesisConfig]:
        plans = ((option, size(option, chunks, sizes)) for option in options)
        return (option for option, plan in plans if self.fits(plan, situation, sizes.window))

    def fits(self, plan: CallPlan, situation: Situation, window: int | None = None) -> bool:
        """Whether a plan would start now and finish in time.

        Args:
            plan: The calls.
            situation: The memory and time that they have to fit into.
            window: Context window of the model in tokens; ``None`` if unknown.
        """
        if plan.need > situation.free_tokens:
            return False
        if window is not None and plan.longest > window:
            return False
        budget = situation.latency_budget
        return budget is None or self.seconds(plan, situation) <= budget

    def seconds(self, plan: CallPlan, situation: Situation) -> float:
        """Estimate how long a plan takes if no other requests come, in seconds.

        Prefills share the device, so that their times add up. As many calls as fit into the memory
        decode concurrently. The time of the requests that already wait is added.
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
        """The configuration to choose if nothing of the space fits."""
        found = len(chunks.tokens)
        fewest = min(space.fewest_chunks, found)
        cheap = _cheapest(space, range(fewest, min(space.max_chunks, found) + 1))
        plans = {config: size(config, chunks, sizes) for config in cheap}
        fitting = [
            config for config, plan in plans.items() if self.fits(plan, situation, sizes.window)
        ]
        if fitting:
            return max(
                fitting, key=lambda config: (config.num_chunks, -RANK[config.method])
            ), "fallback"
        smallest = [config for config in cheap if config.num_chunks == fewest]
        least = min(smallest, key=lambda config: (plans[config].need, RANK[config.method]))
        return least, "late" if plans[least].need <= situation.free_tokens else "queued"


def next_step(
    suitable: Iterable[SynthesisConfig], most: SynthesisConfig, read: int
) -> SynthesisConfig | None:
    """Choose what to read next: at least twice as many chunks as before, and as few as that allows.

    Args:
        suitable: The configurations that may be chosen, smallest first.
        most: The one that reads the most.
        read: How many chunks were read before; 0 for none.

    Returns:
        The configuration: ``most`` if none that reads less reads twice as many as before, and
        ``None`` if not even ``most`` reads more than before.
    """
    if most.num_chunks <= read:
        return None
    smaller = (config for config in suitable if 2 * read <= config.num_chunks < most.num_chunks)
    return next(smaller, most)


def _cheapest(space: PrunedSpace, counts: range) -> Sequence[SynthesisConfig]:
    """Each method of a space with its shortest summaries, and each of some numbers of chunks."""
    shortest: dict[Synthesis, int | None] = {}
    for region in space.regions:
        length = region.lengths[0]
        known = shortest.setdefault(region.method, length)
        if known is not None and length is not None:
            shortest[region.method] = min(known, length)
    return [
        SynthesisConfig(method, count, length)
        for method, length in shortest.items()
        for count in counts
    ]


MEMORY = 0.9
"""Weight of the old value when a running mean is updated."""

ARRIVAL_SECONDS = 0.05
"""Within this time a plan's calls reach the engine, whose load includes them from then on."""

Chosen = TypeVar("Chosen", bound=Choice | None)

PACE_LIMITS = (0.01, 100.0)
"""The least and the largest ratio that one answer counts for."""


class Reservations:
    """Reserves the memory of answers that are being made, so that no two get the same. Thread-safe.

    The free memory that an engine reports excludes neither requests that have not reached it yet
    nor those that wait in its queue. Both are subtracted: the former until they should have reached
    it, the latter by their number times the mean need of a call.

    Args:
        clock: A monotonic clock, in seconds.

    Attributes:
        pace: Running mean of the answers' measured over their estimated seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = make_lock()
        self._plans: dict[int, tuple[float, CallPlan]] = {}
        self._tickets = 0
        self._call_tokens = 0.0
        self.pace = 1.0
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._plans = {}  # they are the parent's

    @property
    def idle(self) -> bool:
        """Whether no answer is being made."""
        return not self._plans

    def choose(
        self,
        load: MemoryLoad,
        latency_budget: float | None,
        prefill: PrefillCostModel,
        choose: Callable[[Situation], Chosen],
        *,
        as_of: float | None = None,
    ) -> tuple[Chosen, int]:
        """Choose a configuration and reserve its memory, before anyone else chooses.

        Args:
            load: The load that the engine reports.
            latency_budget: Seconds that the answer may take; ``None`` for no limit.
            prefill: Estimates prefill seconds, and so how long the queue takes.
            choose: Chooses a configuration that fits a situation; ``None`` if it takes none.
            as_of: When the load was read, by the clock; ``None`` for now.

        Returns:
            The choice, and the ticket that :meth:`leave` takes; 0 for no choice.
        """
        with self._lock:
            waiting = load.waiting_requests * self._call_tokens
            since = (self._clock() if as_of is None else as_of) - ARRIVAL_SECONDS
            plans = self._plans.copy().values()
            coming = sum(plan.footprint for born, plan in plans if born >= since)
            free = load.free_tokens - waiting - coming
            queue = load.waiting_requests * prefill(0, int(self._call_tokens)) if waiting else 0.0
            choice = choose(Situation(int(free), latency_budget, queue, self.pace))
            return choice, 0 if choice is None else self._enter(choice.plan)

    def leave(self, ticket: int) -> None:
        """Release the memory of a plan whose answer is complete or cancelled. Idempotent."""
        # Without the lock: the garbage collector, which closes streams that were given up, may call
        # this in the midst of a choice.
        self._plans.pop(ticket, None)

    def note(self, estimated: float, measured: float) -> None:
        """Update the pace by an answer.

        Args:
            estimated: Seconds that it should have taken, by the cost model alone.
            measured: Seconds that it took.
        """
        if estimated <= 0:
            return
        low, high = PACE_LIMITS
        with self._lock:
            ratio = min(high, max(low, measured / estimated))
            self.pace = MEMORY * self.pace + (1 - MEMORY) * ratio

    def _enter(self, plan: CallPlan) -> int:
        self._tickets += 1
        self._plans[self._tickets] = (self._clock(), plan)
        mean = sum(call.need for call in plan.calls) / len(plan.calls)
        old = self._call_tokens
        self._call_tokens = MEMORY * old + (1 - MEMORY) * mean if old else mean
        return self._tickets
