"""The best configuration that fits the free memory (RAGServe §4.2 and §4.3, algorithm 1).

A question's profile prunes the configurations to those that suit it. Its prompts and chunks are
measured in tokens, and the largest configuration that fits is chosen.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never, get_args

from ragcache_integrations.core.checks import check_choice, check_int, check_number
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel

from .asker import Asker
from .profile import QueryProfile
from .synthesis import SynthesisSettings, Window
from .types import Synthesis, SynthesisConfig

__all__ = [
    "DEFAULT_PROFILE",
    "LEEWAY",
    "RANK",
    "BestFit",
    "Call",
    "CallPlan",
    "Choice",
    "ChunkFacts",
    "Held",
    "Measures",
    "PromptSizes",
    "PrunedSpace",
    "Reason",
    "RecentSpaces",
    "Region",
    "Situation",
    "next_step",
    "pruned_space",
    "size",
    "size_order",
]


LEEWAY = 3
"""The most chunks per piece of information: retrieval does not always rank the right ones first."""

LENGTH_STEP = 10
"""Step between the summary lengths that are considered, in words."""

REMEMBERED = 10
"""Number of confident questions whose spaces replace that of an unsure one (RAGServe §5)."""


RANK: dict[Synthesis, int] = {"map_rerank": 0, "stuff": 1, "map_reduce": 2}
"""Methods of as many chunks by what they cost, the cheapest first."""


def size_order(config: SynthesisConfig) -> tuple[int, int, int]:
    """Sort key, from the smallest configuration to the largest (RAGServe §4.3).

    The number of chunks counts first, then the length of the summaries, then the method.
    """
    return config.num_chunks, config.intermediate_length or 0, RANK[config.method]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Knobs that have the same value for every question; ``None`` where the question decides.

    Attributes:
        method: The synthesis method.
        num_chunks: The number of chunks to read; at least 1.
        intermediate_length: The most words of each summary of ``map_reduce``; at least 1.

    Raises:
        ConfigurationError: A value is out of its range or not for the method, or nothing is left
            for a question to decide.
    """

    method: Synthesis | None = None
    num_chunks: int | None = None
    intermediate_length: int | None = None

    def __post_init__(self) -> None:
        if self.method is not None:
            check_choice("method", self.method, get_args(Synthesis), also="None")
        for name in ("num_chunks", "intermediate_length"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1, also="None")
        if self.method is None:
            return
        reduces = self.method == "map_reduce"
        if self.intermediate_length is not None and not reduces:
            raise ConfigurationError(
                f"intermediate_length is for map_reduce, got {self.intermediate_length!r} with "
                f"method={self.method!r}"
            )
        if self.num_chunks is not None and (self.intermediate_length is not None or not reduces):
            raise ConfigurationError(
                f"method={self.method!r} and num_chunks={self.num_chunks!r} leave nothing to "
                "choose for a question: use mode='fixed' with a config"
            )


@dataclass(frozen=True, slots=True)
class Region:
    """Configurations of one method.

    Attributes:
        method: The synthesis method.
        chunks: Lower and upper limit of the number of chunks; at least 1.
        words: Lower and upper limit of a summary in words; ``None`` for methods without summaries.
    """

    method: Synthesis
    chunks: tuple[int, int]
    words: tuple[int, int] | None = None

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """The summary lengths to consider, shortest first; ``(None,)`` without summaries."""
        if self.words is None:
            return (None,)
        low, high = self.words
        return (*range(low, high, LENGTH_STEP), high)


@dataclass(frozen=True, slots=True)
class PrunedSpace:
    """The configurations that suit a question.

    Attributes:
        regions: At least one; those of a union of several questions' spaces may overlap.
        fewest_chunks: The fewest chunks to read if none of the configurations fits; at least 1,
            and more only if the number of chunks is held.

    Raises:
        ConfigurationError: There is no region, or ``fewest_chunks`` is out of its range.
    """

    regions: tuple[Region, ...]
    fewest_chunks: int = 1

    def __post_init__(self) -> None:
        if not self.regions:
            raise ConfigurationError("a space needs at least one region")
        check_int("fewest_chunks", self.fewest_chunks, 1, self.max_chunks)

    @property
    def methods(self) -> tuple[Synthesis, ...]:
        """The synthesis methods, each once."""
        return tuple(dict.fromkeys(region.method for region in self.regions))

    @property
    def max_chunks(self) -> int:
        """The most chunks of any configuration."""
        return max(region.chunks[1] for region in self.regions)

    def configurations(self, count: int) -> Iterator[SynthesisConfig]:
        """Every configuration; if regions overlap, some come more than once.

        Args:
            count: Number of retrieved chunks, to which ranges are limited.
        """
        for region in self.regions:
            low, high = (min(chunks, count) for chunks in region.chunks)
            for chunks in range(low, high + 1):
                for length in region.lengths:
                    yield SynthesisConfig(region.method, chunks, length)

    def median(self, count: int) -> SynthesisConfig:
        """The median configuration: RAGServe's straw man (§4.3), which ignores the memory.

        Its method is the first one: ``stuff`` if ``map_reduce`` would suit as well, as in the
        system that figure 8 (a) warns of.

        Args:
            count: Number of retrieved chunks, to which ranges are limited.
        """
        method = self.regions[0].method
        chosen = [region for region in self.regions if region.method == method]
        low = min(min(region.chunks[0], count) for region in chosen)
        high = max(min(region.chunks[1], count) for region in chosen)
        words = [length for region in chosen for length in region.words or ()]
        length = (min(words) + max(words)) // 2 if words else None
        return SynthesisConfig(method, (low + high) // 2, length)

    def ordered(self, count: int) -> list[SynthesisConfig]:
        """Every configuration once, the smallest first.

        Args:
            count: Number of retrieved chunks, to which ranges are limited.
        """
        return sorted(set(self.configurations(count)), key=size_order)

    def largest(self, count: int) -> SynthesisConfig:
        """The largest configuration, which ignores the memory: best fit where memory is free.

        Args:
            count: Number of retrieved chunks, to which ranges are limited.
        """
        return max(self.configurations(count), key=size_order)

    @classmethod
    def union(cls, spaces: Iterable[PrunedSpace]) -> PrunedSpace:
        """The space of all configurations of some spaces.

        Raises:
            ConfigurationError: There are no spaces.
        """
        spaces = tuple(spaces)
        return cls(
            tuple(dict.fromkeys(region for space in spaces for region in space.regions)),
            min((space.fewest_chunks for space in spaces), default=1),
        )


NOTHING_HELD = Held()


def pruned_space(profile: QueryProfile, held: Held = NOTHING_HELD) -> PrunedSpace:
    """Map a profile to the configurations that suit it, by RAGServe's algorithm 1.

    Without joint reasoning the method is ``map_rerank``; with joint reasoning it is ``stuff`` for
    simple questions, and ``stuff`` or ``map_reduce`` for complex ones. The number of chunks ranges
    from that of the pieces of information to three times as many, the summaries over the profile's
    own range.

    Args:
        profile: What the question needs.
        held: Knobs that do not depend on it.
    """
    methods: tuple[Synthesis, ...]
    if held.method is not None:
        methods = (held.method,)
    elif not profile.joint_reasoning:
        methods = ("map_rerank",)
    elif profile.complexity == "low":
        methods = ("stuff",)
    else:
        methods = ("stuff", "map_reduce")
    chunks = (profile.pieces, LEEWAY * profile.pieces)
    if held.num_chunks is not None:
        chunks = (held.num_chunks, held.num_chunks)
    words = profile.summary_words
    if held.intermediate_length is not None:
        words = (held.intermediate_length, held.intermediate_length)
    return PrunedSpace(
        tuple(
            Region(method, chunks, words if method == "map_reduce" else None) for method in methods
        ),
        held.num_chunks or 1,
    )


DEFAULT_PROFILE = QueryProfile("low", joint_reasoning=True, pieces=3)
"""That of every question until there is a confident profile: ``stuff`` with 3 to 9 chunks, as most
RAG systems do."""


class RecentSpaces:
    """Replaces the space of a question whose profile is unsure or missing (RAGServe §5).

    Thread-safe.

    Args:
        default: The space until there is a confident profile.
    """

    def __init__(self, default: PrunedSpace) -> None:
        self._default = default
        self._lock = make_lock()
        self._spaces: deque[PrunedSpace] = deque(maxlen=REMEMBERED)

    def note(self, space: PrunedSpace) -> None:
        """Remember the space of a confident question."""
        with self._lock:
            self._spaces.append(space)

    def space(self) -> PrunedSpace:
        """The union of the spaces of the last ten confident questions, or the default."""
        with self._lock:
            spaces = tuple(self._spaces)
        return PrunedSpace.union(spaces) if spaces else self._default


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
    """

    stuff: int
    mapper: int
    reduce: int
    rerank: int
    answer: int
    separator: int = 0
    window: int | None = None


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
    """

    tokens: tuple[int, ...]
    path_cached: tuple[int, ...] = ()
    path_in_use: tuple[int, ...] = ()
    alone_cached: tuple[int, ...] = ()
    alone_in_use: tuple[int, ...] = ()
    tried: tuple[SynthesisConfig, ...] = ()

    def __post_init__(self) -> None:
        for name in ("path_cached", "path_in_use", "alone_cached", "alone_in_use"):
            if not getattr(self, name):
                length = len(self.tokens) + name.startswith("path")
                object.__setattr__(self, name, (0,) * length)


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
        fitting = list(self._fitting(cheap, chunks, sizes, situation))
        if fitting:
            most = max(fitting, key=lambda config: (config.num_chunks, -RANK[config.method]))
            return most, "fallback"
        smallest = (config for config in cheap if config.num_chunks == fewest)
        needs = {config: size(config, chunks, sizes).need for config in smallest}
        least = min(needs, key=lambda config: (needs[config], RANK[config.method]))
        return least, "late" if needs[least] <= situation.free_tokens else "queued"


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
    falling = sorted(space.regions, key=lambda region: region.words or (0, 0), reverse=True)
    shortest = {region.method: region.lengths[0] for region in falling}  # the last one counts
    return [
        SynthesisConfig(method, count, length)
        for method, length in shortest.items()
        for count in counts
    ]
