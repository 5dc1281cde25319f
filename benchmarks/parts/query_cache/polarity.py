"""Questions of opposite meaning: how often one is served what was fetched for the other.

The cache has seen a stream before (so that a learned tolerance is learned). Then one question of
each pair is searched for and inserted, and the other one is looked up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parts.query_cache.qualities import DEPTH, Asked, K, Knobs
from parts.query_cache.replay import POOR, replay
from parts.stats.tables import Cell, print_table

__all__ = ["MODES", "polarity"]

MODES = {
    "tau 0.3": Knobs(tolerance=0.3),
    "tau 0.5": Knobs(tolerance=0.5),
    "tau 0.5, rho 4": Knobs(tolerance=0.5, rerank_factor=4),
    "tau 0.5, rho 1": Knobs(tolerance=0.5, rerank_factor=1),
    "exact": Knobs(tolerance=1.0, guarantee="exact"),
    "auto": Knobs(tolerance="auto"),
}


def polarity(
    asked: Asked, ones: NDArray[np.float32], others: NDArray[np.float32]
) -> dict[str, dict[str, float | None]]:
    """Look pairs up in every mode and print the table.

    Args:
        asked: The stream that the caches have seen.
        ones: Embeddings of the pairs' first questions, shape (pairs, dim).
        others: Of their second ones.

    Returns:
        By mode: the share of the second questions that were served, the mean true recall of what
        they were served, and the share of that whose recall is below 0.8.
    """
    store = asked.store
    inserted, true = store.answer(ones, DEPTH), store.answer(others, DEPTH)
    found: dict[str, dict[str, float | None]] = {}
    table: list[list[Cell]] = []
    for name, knobs in MODES.items():
        cache = knobs.cache(store)
        replay(cache, asked.queries, store, asked.answers, k=K)
        hits: list[int] = []
        served: list[list[int]] = []
        for number, (one, other) in enumerate(zip(ones, others, strict=True)):
            wanted = cache.fetch_count(K, one)
            cache.insert(one, store.candidates(inserted.documents[number, :wanted]), k=K)
            hit = cache.lookup(other, K)
            if hit is not None:
                hits.append(number)
                served.append([candidate.document for candidate in hit.candidates])
        recall = store.recall(others[hits], served, true.pick(hits))
        figures = {
            "served": len(hits) / len(ones),
            "recall": float(recall.mean()) if recall.size else None,
            "below_0.8": float((recall < POOR).mean()) if recall.size else None,
        }
        found[name] = {
            measure: None if figure is None else round(figure, 4)
            for measure, figure in figures.items()
        }
        table.append([name, *found[name].values()])
    apart = float(np.median(np.linalg.norm(ones.astype(np.float64) - others, axis=1)))
    print_table(
        f"polarity: {len(ones)} pairs, median distance {apart:.3f}, rho 20 unless said",
        ["", "served", "true recall", "< 0.8"],
        table,
    )
    return found
