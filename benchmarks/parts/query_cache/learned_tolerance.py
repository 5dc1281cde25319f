"""``tolerance="auto"`` beside the best fixed tolerance in hindsight, on the same stream.

A violation is a hit whose true recall is below the target. Shadow checks count as store calls.
The fixed tolerances are chosen with the stream's true answers in hand, which nobody has: among
those of a grid whose violation rate keeps the bound, and among those that violate no more often
than learning did, the ones that save most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parts.query_cache.qualities import Asked, Knobs, Result, run
from parts.stats.tables import Cell, print_table

__all__ = ["GRID", "Learned", "learn", "print_learned", "summary"]

GRID = tuple(np.round(np.arange(0.0, 1.25, 0.05), 2).tolist())
STARTS = (1.2, 0.0)
"""Far too high and far too low."""


@dataclass(frozen=True)
class Learned:
    """One stream.

    Attributes:
        name: Of the stream.
        auto: What learning did; for every start without proofs, and with them (hits that are
            proven are then served beyond the tolerance too).
        fixed: What fixed tolerances did, without proofs.
    """

    name: str
    auto: tuple[Result, ...]
    fixed: tuple[Result, ...]

    def best(self, violation_rate: float) -> Result:
        """What the fixed tolerance did that saves most at so many violations."""
        allowed = [one for one in self.fixed if _rate(one) <= violation_rate]
        # Tolerance 0 hits nothing where no text comes twice, so that there is always one.
        return max(allowed, key=lambda one: one.replayed.calls_saved)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The main figures of every run, for JSON."""
        bound = self.fixed[0].knobs.max_violation
        best = self.best(bound)
        return [
            {
                "stream": self.name,
                "start": auto.knobs.start_tolerance,
                "proofs": auto.knobs.exact_search,
                "violation_rate": round(_rate(auto), 5),
                "checks": auto.replayed.checks,
                "calls_saved": round(auto.replayed.calls_saved, 5),
                "best_fixed_tolerance": best.knobs.tolerance,
                "best_fixed_violation_rate": round(_rate(best), 5),
                "best_fixed_calls_saved": round(best.replayed.calls_saved, 5),
                "auto_over_fixed": _over(auto, best),
                "auto_over_fixed_at_same_rate": _over(auto, self.best(_rate(auto))),
            }
            for auto in self.auto
        ]


def _rate(result: Result) -> float:
    return result.replayed.below(result.knobs.target_recall)


def _over(auto: Result, fixed: Result) -> float:
    # Where no fixed tolerance saves anything, there is nothing to learn.
    saved = fixed.replayed.calls_saved
    return round(auto.replayed.calls_saved / saved, 4) if saved else 1.0


def learn(name: str, asked: Asked, base: Knobs, grid: Sequence[float] = GRID) -> Learned:
    """Replay a stream with a learning cache from either start, and with fixed tolerances.

    Args:
        name: Of the stream.
        asked: The stream.
        base: Settings, apart from the tolerance and proofs.
        grid: The fixed tolerances.
    """
    plain = replace(base, exact_search=False)
    fixed = [run(asked, replace(plain, tolerance=one), f"fixed {one}") for one in grid]
    auto = tuple(
        run(
            asked,
            replace(base, tolerance="auto", start_tolerance=start, exact_search=proofs),
            f"auto from {start}",
        )
        for proofs in (False, True)
        for start in STARTS
    )
    return Learned(name, auto, tuple(fixed))


def print_learned(title: str, learned: Sequence[Learned]) -> None:
    """Print a table."""
    rows: list[list[Cell]] = []
    for one in learned:
        rows += [list(found.values()) for found in one.runs]
    head = (
        "stream",
        "from",
        "proofs",
        "violations",
        "checks",
        "saved",
        "best fixed",
        "violations",
        "saved",
    )
    print_table(title, [*head, "auto / fixed", "at same rate"], rows)


def summary(learned: Sequence[Learned]) -> dict[str, Any]:
    """The worst of several runs: largest violation rate, smallest savings beside the best fixed."""
    runs = [found for one in learned for found in one.runs]
    worst = min(runs, key=lambda found: found["auto_over_fixed"])
    knobs = learned[0].fixed[0].knobs
    return {
        "target_recall": knobs.target_recall,
        "violation_rate": max(found["violation_rate"] for found in runs),
        "max_violation": knobs.max_violation,
        "calls_saved": worst["calls_saved"],
        "best_fixed_calls_saved": worst["best_fixed_calls_saved"],
        "auto_over_fixed": worst["auto_over_fixed"],
        "auto_over_fixed_at_same_rate": min(one["auto_over_fixed_at_same_rate"] for one in runs),
        "runs": runs,
    }
