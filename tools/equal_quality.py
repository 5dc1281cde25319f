"""What is gained at equal quality over the best fixed setting; what falls short comes first.

Quality is equal where the whole interval of its paired difference is above -0.03.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.bench.gain_cells import Results, command_of, percent, result
from tools.results import link

__all__ = ["AIMS", "METIS", "PROMPT_CACHE", "PROXIMITY", "Aim", "Finding", "equal_quality_table"]

PROXIMITY = "papers/run proximity nq --data kept_out --sample 260 --seeds 1 --k 2"
PROMPT_CACHE = (
    "papers/run prompt-cache nq --data kept_out --sample 1028 --seeds 1 "
    "--set document_cache_gib=8 --set disk_cache_gib=42 --set disk_cache_dir=documents_kv"
)
METIS = (
    "papers/run metis nq --data kept_out --sample 1028 --seeds 1 --set users=8 "
    "--set profiler=heuristic --prices input=0.15,cached_input=0.075,output=0.6"
)
BOUND = -0.03


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        gain: The gain with its interval, in the unit of the aim.
        difference: The paired difference in quality with its interval.
        words: Which setting it is, and what it is compared with.
    """

    gain: list[float]
    difference: list[float]
    words: str


@dataclass(frozen=True)
class Aim:
    """A row: what we aim at, and what was found.

    Attributes:
        gain: What is gained.
        least: The least that we aim at.
        arguments: The command that measured it.
        read: Reads it from what the command recorded; ``None`` if no setting answers as well.
        show: Writes a gain.
    """

    gain: str
    least: float
    arguments: str
    read: Callable[[Results], Finding | None]
    show: Callable[[float], str]

    def row(self, results: Results) -> tuple[float, str]:
        """Return how much of the aim was reached, and the row in Markdown."""
        finding = self.read(results)
        cells = [self.gain, self.show(self.least)]
        reached = 0.0
        if finding is None or finding.difference[1] <= BOUND:
            cells += ["**none at equal quality**", "", ""]
        else:
            value, low, high = finding.gain
            reached = value / self.least
            cells += [
                f"**{self.show(value)}** [{self.show(low)}, {self.show(high)}]",
                "{:+.3f} [{:+.3f}, {:+.3f}]".format(*finding.difference),
                finding.words,
            ]
        return reached, f"| {' | '.join([*cells, link(command_of(self.arguments))])} |"


def _query_cache(results: Results) -> Finding | None:
    found = result(results, PROXIMITY).found["headline"]["zipf_lsh"]
    if found["setting"] is None:
        return None
    setting = found["setting"].partition(", ")[2]
    words = f"rephrased questions by Zipf's law; {setting}, compared with no cache"
    return Finding(found["searches_saved"], found["quality_difference"], words)


def _anywhere(results: Results) -> Finding | None:
    found = result(results, PROMPT_CACHE).found["headline"]
    if not found.get("equal_quality"):
        return None
    words = (
        "no question comes twice; five passages encoded ahead, "
        f"{found['setting'].partition(', ')[2]}, compared with stock vLLM's prefix cache, one "
        "request after another"
    )
    return Finding(found["times_as_fast"], found["quality_difference"], words)


def _per_query(results: Results) -> Finding | None:
    found = result(results, METIS).found["headline"]
    name = found["best_adaptive"]
    own = found["adaptive"][name]
    if not own["equal_quality"]:
        return None
    words = f"{name}, compared with {found['best_fixed']}, the best fixed one; eight users"
    return Finding(own["times_as_fast"], own["quality_difference"], words)


AIMS = (
    Aim("searches saved by the query cache", 0.3, PROXIMITY, _query_cache, percent),
    Aim("first token sooner by reuse anywhere", 2.5, PROMPT_CACHE, _anywhere, "{:.2f}".format),
    Aim("delay shorter by per-query configuration", 1.5, METIS, _per_query, "{:.2f}".format),
)


def equal_quality_table(results: Results, aims: Sequence[Aim] = AIMS) -> str:
    """Return the table in Markdown; what reaches the least of its aim comes first."""
    rows = sorted(aim.row(results) for aim in aims)
    head = "| gain | aim | found | difference in F1 | compared | all figures |"
    return "\n".join([head, "| --- | --- | --- | --- | --- | --- |", *(row for _, row in rows)])
