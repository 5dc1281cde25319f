"""What to do after an evaluation, in a sentence for each group of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_workbench.evaluation.runs import EvalRun, answer_scores, compare
from ragcache_workbench.evaluation.scores import FEWEST, Interval

from .labels import labels_of, main_quality, measure

__all__ = ["Verdict", "verdicts"]

TOLERATED = 0.02
"""So much lower a quality still counts as the same, if the whole interval is above it."""

WORTHWHILE = 0.05
"""The least share of searches, or of prompt tokens, that is worth a component."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do.

    Attributes:
        text: The sentence.
        pays: Whether something is to be kept; ``None`` where that is open.
    """

    text: str
    pays: bool | None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A run compared with the first.

    Attributes:
        label: Its knobs.
        searches: The share of the first run's searches that it saves.
        tokens: The share of the first run's computed prompt tokens that it saves; 0 if what was
            cached before the runs may explain it.
        quality: How much its quality differs; ``None`` if that is unknown.
        questions: Number of different questions that were asked.
    """

    label: str
    searches: float
    tokens: float
    quality: Interval | None
    questions: int

    @property
    def gain(self) -> str:
        saved = (self.searches, "searches"), (self.tokens, "prompt tokens to compute")
        return next((f"{share:.0%} fewer {of}" for share, of in saved if share >= WORTHWHILE), "")

    @property
    def pays(self) -> bool | None:
        if not self.gain or (self.quality is not None and self.quality.high < 0):
            return False
        if self.quality is None or self.quality.low < -TOLERATED:
            return None
        return True if self.questions >= FEWEST else None

    @property
    def rank(self) -> tuple[int, float, float]:
        return [False, None, True].index(self.pays), self.searches, self.tokens


def verdicts(runs: Sequence[EvalRun]) -> list[Verdict]:
    """Say what to do, for each group of runs of the same questions, or for a single run.

    Nothing that the order of the runs may explain has a part in it: neither times, since what else
    the machine does changes, nor tokens of a cache that a run found as another run left it.
    """
    if len(runs) == 1:
        return [_alone(runs[0])]
    groups: dict[str, list[EvalRun]] = defaultdict(list)
    for run in runs:
        groups[run.config["workload"]["digest"]].append(run)
    return [_compared(members) for members in groups.values() if len(members) > 1]


def _alone(run: EvalRun) -> Verdict:
    title, rate = run.config["dataset"]["title"], run.figures.get("cache_hit_rate")
    if rate is None:
        return Verdict(
            f"{title} without a query cache: repeat it with one to see what it saves.", None
        )
    recall = run.figures.get("k_recall")
    found = "" if recall is None else f", and {recall:.1%} of the store's documents were found"
    if rate < WORTHWHILE:
        text = (
            f"The query cache does not pay off here: {rate:.0%} fewer searches. Try a higher "
            "tolerance, or leave it out."
        )
        return Verdict(text, pays=False)
    text = (
        f"The query cache saves {rate:.0%} of the searches{found}. A run with --retriever plain "
        "shows whether the answers are as good."
    )
    return Verdict(text, pays=None)


def _compared(runs: Sequence[EvalRun]) -> Verdict:
    base, *others = runs
    base_label, *labels = (label or "the same settings" for label in labels_of(runs))
    name = main_quality(runs)
    quality = _quality_differences(runs, name)
    questions = len({record.question for record in base.records})
    candidates = [
        _Candidate(
            label,
            _fewer(_searches(base), _searches(run)),
            _fewer(_computed_tokens(base), _computed_tokens(run))
            if all(each.began_empty and "prompt_tokens" in each.figures for each in (base, run))
            else 0.0,
            quality.get(run.name),
            questions,
        )
        for run, label in zip(others, labels, strict=True)
    ]
    best = max(candidates, key=lambda candidate: candidate.rank)
    words = "quality" if name is None else measure(name).words
    return _sentence(best, base_label, words)


def _quality_differences(runs: Sequence[EvalRun], name: str | None) -> dict[str, Interval]:
    """How quality differs from the first run's, by the names of the others.

    It is left out where it is unknown, or nothing was right in either run.
    """
    if name not in answer_scores(runs) or any(run.quality is None for run in runs):
        return {}
    return {
        comparison.other.name: comparison.difference
        for comparison in compare(runs, metrics=[str(name)])
        if comparison.baseline_mean or comparison.other_mean
    }


def _sentence(best: _Candidate, base: str, quality: str) -> Verdict:
    if not best.gain:
        text = f"Keep {base}: no other run saves searches or prompt tokens."
        return Verdict(text, pays=False)
    gain = f"{best.label}: {best.gain} than {base}"
    if best.quality is None:
        text = f"{gain}. These runs do not show what it does to the answers: ask your own model."
        return Verdict(text, None)
    points, low, high = (100 * end for end in best.quality.as_list())
    interval = f"{points:+.1f} points, between {low:+.1f} and {high:+.1f}"
    if best.pays is False:
        text = f"{gain}, but worse answers ({quality} {interval}): keep {base}."
        return Verdict(text, pays=False)
    few = f"but {best.questions:,} different questions are too few to show"
    if best.quality.low < -TOLERATED:
        text = (
            f"{gain}, {few} whether the answers suffer ({quality} {interval}): ask more before "
            "you keep it."
        )
        return Verdict(text, None)
    same = f"the same {quality} within ±{max(abs(low), abs(high)):.1f} points"
    better = f"{quality} {points:.1f} points higher" if low > 0 else same
    if best.pays is None:
        text = f"{gain}, {better}, {few} it: ask at least {FEWEST} before you keep it."
        return Verdict(text, None)
    return Verdict(f"{gain}, {better}: keep it.", pays=True)


def _searches(run: EvalRun) -> float:
    return 1 - (run.figures.get("cache_hit_rate") or 0.0)


def _computed_tokens(run: EvalRun) -> float:
    return (run.figures.get("prompt_tokens") or 0) - (run.figures.get("tokens_saved") or 0)


def _fewer(before: float, after: float) -> float:
    return 1 - after / before if before else 0.0
