"""From a profile to the configurations worth choosing from (RAGServe §4.2, algorithm 1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from ragcache_integrations.adaptive.profile import QueryProfile
from ragcache_integrations.adaptive.types import Synthesis, SynthesisConfig
from ragcache_integrations.core.checks import check_choice, check_int, is_whole
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "DEFAULT_PROFILE",
    "DEFAULT_SPACE",
    "LEEWAY",
    "RANK",
    "Held",
    "PrunedSpace",
    "RecentSpaces",
    "Region",
    "pruned_space",
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

    Raises:
        ConfigurationError: A range is empty, or ``words`` does not match the method.
    """

    method: Synthesis
    chunks: tuple[int, int]
    words: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, limits in (("chunks", self.chunks), ("words", self.words)):
            if limits is None:
                continue
            low, high = limits
            if not is_whole(low) or not is_whole(high) or not 1 <= low <= high:
                msg = f"{name} must be two rising whole numbers from 1, got {limits!r}"
                raise ConfigurationError(msg)
        if (self.method == "map_reduce") != (self.words is not None):
            msg = f"map_reduce alone has summaries, got {self.method} with words={self.words!r}"
            raise ConfigurationError(msg)

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
"""That of every question until there is a confident profile."""

DEFAULT_SPACE = pruned_space(DEFAULT_PROFILE)
"""Used until there is a confident profile: ``stuff`` with 3 to 9 chunks, as most RAG systems do."""


class RecentSpaces:
    """Replaces the space of a question whose profile is unsure or missing (RAGServe §5).

    Thread-safe.

    Args:
        default: The space until there is a confident profile.
    """

    def __init__(self, default: PrunedSpace = DEFAULT_SPACE) -> None:
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

    def __len__(self) -> int:
        return len(self._spaces)
