"""RAGServe (METIS) §7: quality against delay, per-query configuration next to fixed ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ragcache_workbench.evaluation.report import measure
from ragcache_workbench.evaluation.runs import EvalRun, series
from ragcache_workbench.evaluation.scores import Interval
from ragcache_workbench.evaluation.settings import SUMMARY_WORDS

from .base import Cell, Claim, Form, Preset, Table, Tables, Variant, claims_table, quality_cell
from .results import Results, interval_of

__all__ = ["METIS"]

MOST_CHUNKS = 8
FIXED = {
    "stuff 1": {"synthesis": "stuff", "k": 1},
    "stuff 2": {"synthesis": "stuff", "k": 2},
    "stuff 4": {"synthesis": "stuff", "k": 4},
    "stuff 8": {"synthesis": "stuff", "k": 8},
    "map_rerank 4": {"synthesis": "map_rerank", "k": 4},
    "map_reduce 4": {"synthesis": "map_reduce", "k": 4},
}
BY_MODEL = "adaptive, profiler: the model"
BY_WORDS = "adaptive, profiler: heuristic"
LEARNING = "adaptive, golden feedback"
GRADUAL = "adaptive, gradual"
GRADUAL_STUFF = "adaptive, gradual, stuff alone"
_ADAPTIVE = {"synthesis": "adaptive", "k": MOST_CHUNKS}
ADAPTIVE = {
    BY_WORDS: {**_ADAPTIVE, "profiler": "heuristic"},
    GRADUAL: {**_ADAPTIVE, "mode": "gradual"},
    GRADUAL_STUFF: {**_ADAPTIVE, "mode": "gradual", "method": "stuff"},
    BY_MODEL: {**_ADAPTIVE, "profiler": "llm"},
    LEARNING: {**_ADAPTIVE, "profiler": "llm"},
}
CHUNKS = "adaptive, number of chunks alone"
METHOD = "adaptive, and the method"
LENGTH = "adaptive, and the length of summaries"
STEPS = {
    CHUNKS: {**_ADAPTIVE, "mode": "largest", "method": "stuff"},
    METHOD: {**_ADAPTIVE, "mode": "largest", "intermediate_length": SUMMARY_WORDS},
    LENGTH: {**_ADAPTIVE, "mode": "largest"},
}
"""What is chosen for each question, one knob more with each; the last step is ``adaptive``."""
GOLDEN_EVERY, GOLDEN_EVERY_QUICK = 30, 3
"""The paper's (§5), and one for the few questions of the small form."""
DELAY = "end_to_end"
COSTS = "Costs are those of profiles and answers, without what golden feedback costs in addition."


def _variants(form: Form) -> tuple[Variant, ...]:
    learning = {"golden_every": GOLDEN_EVERY_QUICK if form.quick else GOLDEN_EVERY}
    return tuple(
        Variant(
            name,
            {"retriever": "plain", **knobs, **(learning if name == LEARNING else {})},
            without=("profiler",) if name in FIXED else (),
        )
        for name, knobs in (FIXED | ADAPTIVE | STEPS).items()
    )


def _tables(results: Results) -> Tables:
    fixed = best_fixed(results)
    headline = {
        "quality": results.quality_name,
        "best_fixed": fixed,
        "best_adaptive": best_adaptive(results, fixed),
        "adaptive": {name: _headline(results, fixed, name) for name in ADAPTIVE},
        "knob_by_knob": {
            name: {
                **_gains(results, fixed, name),
                "over_the_step_before": _gains(results, before, name),
            }
            for before, name in _steps(results, fixed)
        },
    }
    tables = (
        _delays(results, fixed),
        _knob_by_knob(results, fixed),
        _profilers(results),
        claims_table("RAGServe", _claims(results, fixed)),
    )
    return Tables(tables, headline)


def best_fixed(results: Results) -> str:
    """The fixed configuration to beat: the fastest that answers as well as the best one.

    With random weights, the fastest.
    """
    qualities = {name: results.quality(name) for name in FIXED}
    best = max(FIXED, key=lambda name: quality.value if (quality := qualities[name]) else 0.0)
    fastest = results.best(best, FIXED, lambda name: _negative(results.mean(name, DELAY)))
    return fastest or best


def best_adaptive(results: Results, fixed: str) -> str:
    """The fastest adaptive setting that answers as well as the fixed one; by the model if none."""
    faster = results.best(fixed, ADAPTIVE, lambda name: results.times_as_fast(fixed, name, DELAY))
    return faster or BY_MODEL


def _negative(interval: Interval | None) -> float | None:
    return None if interval is None else -interval.value


def _headline(results: Results, fixed: str, name: str) -> dict[str, object]:
    return {
        "equal_quality": results.is_equal(fixed, name),
        **_gains(results, fixed, name),
        "profiler_share": Cell(interval_of(profiler_shares(results.runs[name]))).plain,
    }


def _gains(results: Results, base: str, name: str) -> dict[str, object]:
    return {
        "quality_difference": Cell(results.quality_difference(base, name)).plain,
        "times_as_fast": Cell(results.times_as_fast(base, name, DELAY)).plain,
    }


def _delays(results: Results, fixed: str) -> Table:
    priced = any("cost" in run.figures for runs in results.runs.values() for run in runs)
    rows = []
    for name in (*FIXED, *ADAPTIVE):
        cost = (Cell(results.figure(name, "cost"), "money"),) if priced else ()
        rows.append((*_quality_and_delay(results, fixed, name), *cost))
    columns = ("configuration", measure(results.quality_name).words, "difference", "delay, ms")
    more = ("times as fast", *(("cost",) if priced else ()))
    note = (
        f"Compared with {fixed}: the fastest of the fixed configurations that answer as well as "
        "the best of them."
    )
    gradual = (
        "Gradual: the fewest chunks that suit the question are read first, and more of them, up to "
        "those of adaptive, only while the model says that the answer is not in them."
    )
    costs = (COSTS,) if priced else ()
    return Table("Quality and delay", (*columns, *more), tuple(rows), (note, gradual, *costs))


def _quality_and_delay(results: Results, fixed: str, name: str) -> tuple[Cell, ...]:
    """The cells of a setting: quality and delay, each also compared with the fixed one."""
    difference, times = _compared(results, None if name == fixed else fixed, name)
    return (
        Cell(name),
        quality_cell(results.quality(name)),
        difference,
        Cell(results.mean(name, DELAY), "ms"),
        times,
    )


def _compared(results: Results, base: str | None, name: str) -> tuple[Cell, Cell]:
    """The difference in quality and the ratio of delays; unknown without a base."""
    difference = None if base is None else results.quality_difference(base, name)
    times = None if base is None else results.times_as_fast(base, name, DELAY)
    return Cell(difference, "difference"), Cell(times, "times")


def _steps(results: Results, fixed: str) -> Iterator[tuple[str, str]]:
    """Each step with the one before, which is the fixed configuration for the first."""
    return itertools.pairwise((fixed, *STEPS, _last_step(results)))


def _last_step(results: Results) -> str:
    by_words = results.runs[LENGTH][0].settings.profiler == "heuristic"
    return BY_WORDS if by_words else BY_MODEL


def _knob_by_knob(results: Results, fixed: str) -> Table:
    """Figure 16: what every further knob adds."""
    rows = [
        (*_quality_and_delay(results, fixed, fixed), *_compared(results, None, fixed), Cell(None))
    ]
    for before, name in _steps(results, fixed):
        changed = None if before == fixed else interval_of(_changed_choices(results, before, name))
        steps = (*_compared(results, before, name), Cell(changed, "share"))
        rows.append((*_quality_and_delay(results, fixed, name), *steps))
    columns = ("chosen", measure(results.quality_name).words, "difference", "delay, ms")
    more = ("times as fast", "difference, step", "times as fast, step", "other choice")
    steps_are = (
        f"Compared with {fixed}, and each step with the row above it. The first reads as many "
        "chunks as suit the question, by stuff; the second chooses the method, too, with summaries "
        f"of {SUMMARY_WORDS} words; the third their length. These take the largest configuration "
        "that suits the question; the last row takes the largest that fits into the free memory."
    )
    choice_means = (
        "Other choice: questions that this step answers in another configuration than the row "
        "above. Where there are none, differences in time are those of the machine."
    )
    load_means = (
        "Where few questions are answered at a time, enough memory is free, and the last step "
        "changes nothing: set a rate to measure it. Where the free memory is unknown, as of most "
        "models other than the bundled engine's, that step takes the median."
    )
    return Table(
        "Knob by knob", (*columns, *more), tuple(rows), (steps_are, choice_means, load_means)
    )


def _changed_choices(results: Results, before: str, name: str) -> Iterator[tuple[str, float]]:
    """1 for each question whose configuration is not that of another setting, else 0.

    A question that failed has none, and does not count.
    """
    for first, second in zip(results.runs[before], results.runs[name], strict=True):
        for old, new in zip(first.records, second.records, strict=True):
            if old.error or new.error:
                continue
            yield new.question, float(old.configuration != new.configuration)


def _profilers(results: Results) -> Table:
    rows = []
    for name in ADAPTIVE:
        better = list(_missed(results, name))
        right = interval_of((question, float(missed <= 0)) for question, missed in better)
        lost = interval_of((question, missed) for question, missed in better if missed > 0)
        noise = results.is_noise
        rows.append(
            (
                Cell(name),
                quality_cell(None) if noise else Cell(right, "share"),
                quality_cell(None) if noise else Cell(lost),
                Cell(interval_of(profiler_shares(results.runs[name])), "share"),
            )
        )
    columns = ("profiler", "right", "lost where wrong", "share of the delay")
    right_means = (
        "Right: none of the fixed configurations answers the question better. The best of six is "
        "sometimes better by chance, so that no profiler is always right."
    )
    share_means = (
        "Share of the delay: the time from the question to the first call for its answer, without "
        "the retrieval, which runs at the same time."
    )
    notes = (right_means, share_means)
    return Table("The profiler", columns, tuple(rows), notes)


def _missed(results: Results, name: str) -> Iterator[tuple[str, float]]:
    """By how much the best fixed configuration answers each question better; at least 0."""
    metric = results.quality_name
    for seed, run in enumerate(results.runs[name]):
        fixed = [series(results.runs[other][seed], metric) for other in FIXED]
        for record, own, *others in zip(run.records, series(run, metric), *fixed, strict=True):
            known = [score for score in others if score is not None]
            if own is not None and known:
                yield record.question, max(0.0, max(known) - own)


def profiler_shares(runs: tuple[EvalRun, ...]) -> Iterator[tuple[str, float]]:
    """What the profiler adds to each question's delay, as a share of it."""
    for record in itertools.chain.from_iterable(run.records for run in runs):
        first, model, whole = (
            record.ttft_seconds,
            record.model_ttft_seconds,
            record.end_to_end_seconds,
        )
        if record.disturbed or first is None or model is None or not whole:
            continue
        yield record.question, max(0.0, first - model - record.retrieval_seconds) / whole


def _claims(results: Results, fixed: str) -> tuple[Claim, ...]:
    own = best_adaptive(results, fixed)
    shares = list(profiler_shares(results.runs[BY_MODEL]))
    mean = Cell(interval_of(shares), "share").text
    most = max((share for _, share in shares), default=None)
    return (
        Claim(
            "delay, times lower than the best fixed configuration, at equal quality",
            "1.64 to 2.54 (four data sets)",
            "figure 10, §7.2",
            _at_equal_quality(results, fixed, own),
        ),
        Claim(
            "quality above the fixed configuration of the most similar delay",
            "12 to 18 % (four data sets)",
            "figure 10, §7.2",
            _above_similar_delay(results, own),
        ),
        Claim(
            "the profiler's share of the delay",
            "0.03 to 0.06 on average, at most 0.1 more",
            "figure 18, §7.4",
            Cell(f"{mean}, at most {Cell(most, 'share').text}"),
        ),
        Claim(
            "cost of fixed configurations over adaptive ones",
            "2.38 (of LLaMA3-70B), 6.8 (of GPT-4o)",
            "figure 13, §7.3",
            _cost(results, fixed, own),
        ),
        Claim(
            "quality that golden feedback adds",
            "4 to 6 % (QMSum, FinSec)",
            "figure 14, §7.3",
            _learnt(results),
        ),
        Claim(
            "quality above the fixed configuration, choosing the number of chunks; the method, "
            "too; the length of summaries, too",
            "5, 4, 3 % (QMSum)",
            "figure 16, §7.4",
            _by_knobs(results, fixed),
        ),
        Claim(
            "delay, times lower by choosing with the load, too",
            "2.8 (QMSum)",
            "figure 16, §7.4",
            Cell(results.times_as_fast(LENGTH, _last_step(results), DELAY), "times"),
        ),
    )


def _at_equal_quality(results: Results, fixed: str, own: str) -> Cell:
    ratio = Cell(results.times_as_fast(fixed, own, DELAY), "times").text
    if results.is_equal(fixed, own) is False:
        difference = Cell(results.quality_difference(fixed, own), "difference").text
        return Cell(f"{ratio}, but not at equal quality ({difference})")
    return Cell(f"{ratio} than {fixed} ({own})")


def _above_similar_delay(results: Results, own: str) -> Cell:
    """How much better adaptive answers are than those of a fixed configuration as slow as they."""
    delay = results.mean(own, DELAY)
    if results.is_noise or delay is None:
        return quality_cell(None)
    fixed = {name: results.mean(name, DELAY) for name in FIXED}
    known = {name: other.value for name, other in fixed.items() if other is not None}
    similar = min(known, key=lambda name: abs(known[name] - delay.value))
    share = _share_added(results, similar, own)
    return Cell(None if share is None else f"{Cell(share, 'share').text} than {similar} ({own})")


def _learnt(results: Results) -> Cell:
    """How much better answers are if the profiler learns from golden ones."""
    if results.is_noise:
        return quality_cell(None)
    return Cell(_share_added(results, BY_MODEL, LEARNING), "share")


def _by_knobs(results: Results, fixed: str) -> Cell:
    """How much better answers are than those of a fixed configuration, step by step."""
    if results.is_noise:
        return quality_cell(None)
    return Cell("; ".join(Cell(_share_added(results, fixed, name), "share").text for name in STEPS))


def _share_added(results: Results, base: str, name: str) -> Interval | None:
    """By which share of a setting's quality another's is higher."""
    quality, difference = results.quality(base), results.quality_difference(base, name)
    if quality is None or difference is None or not quality.value:
        return None
    return Interval(*(end / quality.value for end in difference.as_list()))


def _cost(results: Results, fixed: str, own: str) -> Cell:
    before, after = (results.figure(name, "cost") for name in (fixed, own))
    if not before or not after:
        return Cell("unknown: it needs prices of tokens")
    return Cell(f"{before / after:.2f} ({fixed} over {own}, of the same model)")


METIS = Preset(
    name="metis",
    paper="RAGServe (METIS) §7",
    measures="quality against delay, per-query configuration next to fixed ones",
    datasets=("nq", "qmsum", "squad", "musique", "tatqa", "finqa"),
    setting=(
        "Mistral-7B-v3 (AWQ) on an NVIDIA A40, GPT-4o for the profiles, and questions of SQuAD, "
        "Musique, KG RAG FinSec and QMSum that arrive at random (Poisson)"
    ),
    differs=(
        "Profiles come from the answering model or from rules of thumb. Without a rate, a fixed "
        "number of users each ask one question after another. Golden feedback is measured as a "
        "separate setting, because its additional answers slow the others down."
    ),
    variants=_variants,
    tables=_tables,
    usual={"sample": 350, "corpus": "all", "profiler": "llm"},
    usual_quick={"sample": 8, "profiler": "llm"},
)
