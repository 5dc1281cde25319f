"""Plain and staged searches of the same index for the same queries, one beside the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from parts.stats.intervals import median_ratio
from ragcache_integrations.vector_search import Stage, StagedIndex, StagePlan
from ragcache_workbench.evaluation.scores import Interval

__all__ = ["Compared", "compare", "threads"]

BLOCK = 50
CLOSE = 1e-5  # distances as near as this are the same: FAISS and we sum in different orders


@dataclass(frozen=True)
class Compared:
    """What was seen.

    Attributes:
        plain: Seconds of FAISS's own search, per query.
        staged: Seconds of all stages, until the last was taken.
        first: Seconds until the first stage.
        settled: Seconds until the documents are the final ones and stay so.
        counts: Stages per query.
        equal: Whether the last stage is FAISS's result, equal distances being equal.
        final_after: By number of the stage: share of the queries whose documents are final then.
    """

    plain: NDArray[np.float64]
    staged: NDArray[np.float64]
    first: NDArray[np.float64]
    settled: NDArray[np.float64]
    counts: NDArray[np.int64]
    equal: NDArray[np.bool_]
    final_after: tuple[float, ...]

    @cached_property
    def overhead(self) -> Interval:
        """Median time of the staged search over that of the plain one."""
        return median_ratio(self.staged.tolist(), self.plain.tolist())

    @property
    def equal_share(self) -> float:
        """Share of the queries whose last stage is FAISS's result."""
        return float(self.equal.mean())

    def as_dict(self) -> dict[str, Any]:
        """Figures for JSON; times in milliseconds."""

        def median(seconds: NDArray[np.float64]) -> float:
            return round(float(np.median(seconds)) * 1e3, 4)

        return {
            "queries": len(self.plain),
            "equal_share": self.equal_share,
            "overhead": self.overhead.as_list(4),
            "plain_ms": median(self.plain),
            "staged_ms": median(self.staged),
            "first_stage_ms": median(self.first),
            "final_documents_ms": median(self.settled),
            "stages": round(float(self.counts.mean()), 2),
            "final_after": [round(one, 4) for one in self.final_after],
        }


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let FAISS compute in so many threads meanwhile."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def compare(
    ours: StagedIndex,
    queries: NDArray[np.float32],
    k: int,
    plan: StagePlan,
    *,
    seed: int = 0,
) -> Compared:
    """Search for every query plainly and in stages.

    In blocks, of which the plain or the staged searches come first by chance: what one search
    brings into the processor's caches would make the very next one for the same query faster.

    Args:
        ours: An index, set up; the plain searches are those of the FAISS index in it.
        queries: Shape (queries, d).
        k: Documents wanted.
        plan: How the searches are cut.
        seed: Of the order.
    """
    index = ours.index
    rng = np.random.default_rng(seed)
    for query in queries[:BLOCK]:  # warm up
        _plain(index, query, k)
        _staged(ours, query, k, plan)
    plain: list[tuple[float, NDArray[np.float32], NDArray[np.int64]]] = []
    staged: list[tuple[list[float], list[Stage]]] = []
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK]
        if rng.integers(2):
            plain += [_plain(index, query, k) for query in block]
            staged += [_staged(ours, query, k, plan) for query in block]
        else:
            staged += [_staged(ours, query, k, plan) for query in block]
            plain += [_plain(index, query, k) for query in block]
    most = max(len(stages) for _, stages in staged)
    # A search that is over stays as it is.
    finals = np.array([_finals(stages, most) for _, stages in staged])
    return Compared(
        plain=np.array([seconds for seconds, _, _ in plain]),
        staged=np.array([ends[-1] for ends, _ in staged]),
        first=np.array([ends[0] for ends, _ in staged]),
        settled=np.array(
            [ends[int(np.argmax(_finals(stages, len(stages))))] for ends, stages in staged]
        ),
        counts=np.array([len(stages) for _, stages in staged]),
        equal=np.array(
            [
                _same(distances, labels, stages[-1])
                for (_, distances, labels), (_, stages) in zip(plain, staged, strict=True)
            ]
        ),
        final_after=tuple(finals.mean(axis=0).tolist()),
    )


def _plain(
    index: Any, query: NDArray[np.float32], k: int
) -> tuple[float, NDArray[np.float32], NDArray[np.int64]]:
    began = time.perf_counter()
    distances, labels = index.search(query[None], k)
    return time.perf_counter() - began, distances[0], labels[0]


def _staged(
    index: StagedIndex, query: NDArray[np.float32], k: int, plan: StagePlan
) -> tuple[list[float], list[Stage]]:
    ends, stages = [], []
    began = time.perf_counter()
    for stage in index.stages(query, k, plan=plan):
        ends.append(time.perf_counter() - began)
        stages.append(stage)
    return ends, stages


def _finals(stages: list[Stage], most: int) -> list[bool]:
    """Whether the documents after each stage are the final ones, and stay so."""
    found: list[bool] = []
    for stage in reversed(stages):
        found.append(stage.ids == stages[-1].ids and (not found or found[-1]))
    return found[::-1] + [True] * (most - len(stages))


def _same(distances: NDArray[np.float32], labels: NDArray[np.int64], stage: Stage) -> bool:
    if stage.ids == tuple(str(one) for one in labels.tolist()):
        return True
    there = labels >= 0
    return len(stage.ids) == there.sum() and bool(
        np.allclose(stage.distances, distances[there], rtol=CLOSE, atol=CLOSE)
    )
