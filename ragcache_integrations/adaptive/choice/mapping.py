"""From a profile to the configurations worth choosing from (RAGServe §4.2, algorithm 1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ragcache_integrations.adaptive.profile import QueryProfile
from ragcache_integrations.adaptive.types import Synthesis, SynthesisConfig
from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError

__all__ = ["DEFAULT_SPACE", "LEEWAY", "PrunedSpace", "RecentSpaces", "Region", "pruned_space"]

LEEWAY = 3
"""The most chunks per piece of information: retrieval does not always rank the right ones first."""

LENGTH_STEP = 10
"""Step between the summary lengths that are considered, in words."""

REMEMBERED = 10
"""Number of confident questions whose spaces replace that of an unsure one (RAGServe §5)."""


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
    """

    regions: tuple[Region, ...]

    def __post_init__(self) -> None:
        if not self.regions:
            msg = "a space needs at least one region"
            raise ConfigurationError(msg)

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

    @classmethod
    def union(cls, spaces: Iterable[PrunedSpace]) -> PrunedSpace:
        """The space of all configurations of some spaces.

        Raises:
            ConfigurationError: There are no spaces.
        """
        return cls(tuple(dict.fromkeys(region for space in spaces for region in space.regions)))


def pruned_space(profile: QueryProfile) -> PrunedSpace:
    """Map a profile to the configurations that suit it, by RAGServe's algorithm 1.

    Without joint reasoning the method is ``map_rerank``; with joint reasoning it is ``stuff`` for
    simple questions, and ``stuff`` or ``map_reduce`` for complex ones. The number of chunks ranges
    from that of the pieces of information to three times as many, the summaries over the profile's
    own range.
    """
    methods: tuple[Synthesis, ...]
    if not profile.joint_reasoning:
        methods = ("map_rerank",)
    elif profile.complexity == "low":
        methods = ("stuff",)
    else:
        methods = ("stuff", "map_reduce")
    chunks = (profile.pieces, LEEWAY * profile.pieces)
    return PrunedSpace(
        tuple(
            Region(method, chunks, profile.summary_words if method == "map_reduce" else None)
            for method in methods
        )
    )


DEFAULT_SPACE = pruned_space(QueryProfile("low", joint_reasoning=True, pieces=3))
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
