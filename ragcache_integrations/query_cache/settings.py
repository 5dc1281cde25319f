"""What the caches in memory and in Redis have in common: arguments, checked, and changes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Generic, Literal, TypeVar, get_args

from numpy.typing import ArrayLike

from ragcache_integrations.core.checks import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_seconds,
    check_share,
    check_text,
    or_none,
)
from ragcache_integrations.errors import ConfigurationError

from .types import Eviction, Metric, VectorSource
from .validation import check_below_one, check_tolerance

__all__ = ["BaseQueryCache", "Settings"]

T = TypeVar("T")

_MOST_HYPERPLANES = 24  # a table of 2**24 buckets


@dataclass(frozen=True)
class Settings:
    """See :class:`~ragcache_integrations.query_cache.cache.QueryCache`."""

    dim: int
    capacity: int
    tolerance: float | Literal["auto"]
    index: Literal["flat", "lsh"] = "flat"
    eviction: Eviction = "lru"
    metric: Metric = "l2"
    num_hyperplanes: int = 8
    bucket_capacity: int = 20
    rerank_factor: int = 4
    guarantee: Literal["exact"] | float | None = None
    ttl: float | None = None
    vectors: VectorSource | None = None
    _: KW_ONLY
    multi_probe: int = 0
    max_rerank_factor: int | None = None
    exact_search: bool = False
    unit_vectors: bool = False
    longest: float | None = None
    target_recall: float = 0.95
    max_violation: float = 0.01
    start_tolerance: float | None = None
    unranked_tolerance: float | None = None
    tenant_of: Callable[[Hashable], Hashable] | None = None
    tag: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each argument, then what they mean together."""
        check_int("dim", self.dim, 1)
        check_int("capacity", self.capacity, 1)
        check_tolerance(self.tolerance)
        check_choice("index", self.index, ("flat", "lsh"))
        check_choice("eviction", self.eviction, get_args(Eviction))
        check_choice("metric", self.metric, get_args(Metric))
        check_int("num_hyperplanes", self.num_hyperplanes, 1, _MOST_HYPERPLANES)
        check_int("bucket_capacity", self.bucket_capacity, 1)
        check_int("multi_probe", self.multi_probe, 0, self.num_hyperplanes)
        check_int("rerank_factor", self.rerank_factor, 1)
        check_int("seed", self.seed, 0)
        or_none(check_int)("max_rerank_factor", self.max_rerank_factor, self.rerank_factor)
        check_flag("exact_search", self.exact_search)
        check_flag("unit_vectors", self.unit_vectors)
        check_share("target_recall", self.target_recall)
        check_below_one("max_violation", self.max_violation)
        if self.start_tolerance is not None:
            check_tolerance(self.start_tolerance, name="start_tolerance")
        or_none(check_number)("unranked_tolerance", self.unranked_tolerance, 0, also="None")
        for name, given in (("tenant_of", "a cache key"), ("vectors", "a list of ids")):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigurationError(f"{name} must be callable with {given}, got {function!r}")
        check_text("tag", self.tag)
        check_seconds("ttl", self.ttl)
        or_none(check_number)("longest", self.longest, 0, above=True, also="None")
        self._check_guarantee()

    def _check_guarantee(self) -> None:
        guarantee = self.guarantee
        if guarantee is None:
            return
        if not isinstance(guarantee, str) or guarantee != "exact":
            check_share("guarantee", guarantee, also="'exact'")
        needs = {
            "exact_search=True (a search of all documents by this very metric: no IVF with fewer "
            "probes than clusters, no HNSW, no MMR, no hybrid or filtered-afterwards search)": (
                self.exact_search
            ),
            "vectors, to read the documents' vectors": self.vectors is not None,
            "longest, the length of the longest document vector, under metric='ip'": (
                self.metric != "ip" or self.longest is not None
            ),
        }
        missing = [need for need, there in needs.items() if not there]
        if missing:
            raise ConfigurationError(f"guarantee={guarantee!r} needs {'; and '.join(missing)}")

    @property
    def planes(self) -> int:
        """How many hyperplanes make the buckets; 0 where all keys are in one."""
        return self.num_hyperplanes if self.index == "lsh" else 0

    @property
    def probes(self) -> int:
        """How many neighbouring buckets are searched, too."""
        return self.multi_probe if self.index == "lsh" else 0

    @property
    def lifetime(self) -> int | None:
        """``ttl`` in nanoseconds; at most a century or so, to fit clocks of 64 bits."""
        return None if self.ttl is None else int(min(self.ttl * 1e9, 2.0**62))

    @property
    def required_bound(self) -> float | None:
        """The recall that a hit must be proven to have."""
        return 1.0 if self.guarantee == "exact" else self.guarantee

    @property
    def unit(self) -> bool:
        """Whether documents and queries are unit vectors."""
        return self.metric == "cosine" or (self.metric == "l2" and self.unit_vectors)

    @property
    def proves(self) -> bool:
        """Whether a recall can be proven at all."""
        possible = self.metric != "ip" or self.longest is not None
        return self.exact_search and self.vectors is not None and possible


class BaseQueryCache(Generic[T]):
    """A query cache, to which the changes of its store are reported."""

    _settings: Settings

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self._settings.dim

    @property
    def metric(self) -> Metric:
        """How documents are ranked."""
        return self._settings.metric

    def documents_added(self, ids: Sequence[str], vectors: ArrayLike | None = None) -> None:
        """Note that the store got new documents; call it when the store has them.

        Entries keep answering those queries whose answer the new documents cannot change, see
        :mod:`~ragcache_integrations.query_cache.entries.entry`.

        Args:
            ids: Ids of the new documents.
            vectors: Their vectors, shape (len(ids), dim). Where ``None``, they are read through the
                cache's ``vectors``; where that cannot be, every entry is dropped.

        Raises:
            ConfigurationError: ``vectors`` cannot be used. Every entry was dropped then.
        """
        self._change((), tuple(ids), vectors)

    def documents_removed(self, ids: Sequence[str]) -> None:
        """Note that documents are gone from the store; call it when they are.

        Args:
            ids: Ids of the documents that are gone.
        """
        self._change(tuple(ids), (), None)

    def documents_updated(self, ids: Sequence[str], vectors: ArrayLike | None = None) -> None:
        """Note that documents changed; call it when the store has the new ones.

        Args:
            ids: Ids of the documents that changed.
            vectors: Their vectors now; as for :meth:`documents_added`.

        Raises:
            ConfigurationError: As for :meth:`documents_added`.
        """
        self._change(tuple(ids), tuple(ids), vectors)

    @abstractmethod
    def _change(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> None:
        """Follow a change; ``vectors`` are those of the documents added."""
