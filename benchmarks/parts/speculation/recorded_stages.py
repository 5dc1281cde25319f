"""What real staged searches gave and when, to be replayed in the place of a store elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.vector_search import StagedIndex, StagePlan

__all__ = ["RecordedStages", "Recording", "load", "record", "save"]

RecordedStages = list[tuple[float, tuple[str, ...]]]
"""Of one query: after each stage, the seconds computed so far and the ids in order; the last is
the final one."""


@dataclass(frozen=True)
class Recording:
    """Stages of many searches.

    Attributes:
        about: What was searched and how: kind, vectors, dimension, nprobe or efSearch, k.
        queries: One list of stages per query.
    """

    about: dict[str, Any]
    queries: list[RecordedStages]

    def agreeing(self, stage: int = 0) -> float:
        """Share of the queries whose documents after a stage, from 0, are the final ones."""
        same = [query[min(stage, len(query) - 1)][1] == query[-1][1] for query in self.queries]
        return float(np.mean(same))

    def seconds(self) -> float:
        """Median time of a whole search."""
        return float(np.median([query[-1][0] for query in self.queries]))


def record(
    index: StagedIndex,
    queries: NDArray[np.float32],
    k: int,
    about: dict[str, Any],
    plan: StagePlan | None = None,
) -> Recording:
    """Search and note every stage; a first round warms up.

    Args:
        index: What is searched.
        queries: Shape (queries, d).
        k: Documents wanted.
        about: What is searched, in words and numbers.
        plan: How the searches are cut.
    """
    for query in queries[:20]:
        list(index.stages(query, k, plan=plan))
    found = [
        [(stage.elapsed, stage.ids) for stage in index.stages(query, k, plan=plan)]
        for query in queries
    ]
    return Recording({**about, "k": k}, found)


def save(recording: Recording, path: Path) -> None:
    """Write a recording as JSON."""
    path.write_text(json.dumps(asdict(recording)), encoding="utf-8")


def load(path: Path) -> Recording:
    """Read what :func:`save` wrote."""
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows: Sequence[Sequence[tuple[float, Sequence[str]]]] = read["queries"]
    queries = [[(elapsed, tuple(ids)) for elapsed, ids in stages] for stages in rows]
    return Recording(read["about"], queries)
