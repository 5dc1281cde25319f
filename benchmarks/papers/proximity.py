"""Proximity §4: hit rate, recall, quality and retrieval latency over tolerance and capacity."""

from __future__ import annotations

from dataclasses import replace

from ragcache_workbench.evaluation.report import measure, rephrased_by
from ragcache_workbench.evaluation.settings import CACHE_KNOBS

from .base import (
    Cell,
    Claim,
    Form,
    Preset,
    Table,
    Tables,
    Variant,
    claims_table,
    quality_cell,
)
from .results import Results, reduction

__all__ = ["PROXIMITY"]

NO_CACHE = "no cache"
LSH = {"cache_index": "lsh", "num_hyperplanes": 8, "bucket_capacity": 20}
"""Proximity §4.3.5 and §4.5.1."""


def _variants(form: Form) -> tuple[Variant, ...]:
    variants = _with_caches(form)
    return tuple(replace(v, knobs={**v.knobs, "answer_once": True}) for v in variants)


def _with_caches(form: Form) -> tuple[Variant, ...]:
    tolerances = (0.1, 0.3, 0.5) if form.quick else (0.1, 0.2, 0.3, 0.5)
    capacities = (10, 100) if form.quick else (10, 100, 300)
    uniform = [
        Variant(
            f"uniform, FLAT, tolerance {tolerance:g}, capacity {capacity}",
            {
                "workload": "uniform",
                "retriever": "cache",
                "guard": False,
                "cache_index": "flat",
                "eviction": "fifo",
                "rerank_factor": 1,
                "tolerance": tolerance,
                "capacity": capacity,
            },
        )
        for tolerance in tolerances
        for capacity in capacities
    ]
    zipf = [
        Variant(
            f"zipf, {index}, tolerance {tolerance:g}",
            {
                "workload": "zipf",
                "retriever": "cache",
                "guard": False,
                "eviction": "lru",
                "rerank_factor": 4,
                "tolerance": tolerance,
                **knobs,
            },
        )
        for index, knobs in (("FLAT", {"cache_index": "flat", "capacity": 1000}), ("LSH", LSH))
        for tolerance in tolerances
    ]
    return (_without_cache("uniform"), *uniform, _without_cache("zipf"), *zipf)


def _without_cache(workload: str) -> Variant:
    knobs = {"workload": workload, "retriever": "plain"}
    return Variant(f"{workload}, {NO_CACHE}", knobs, without=CACHE_KNOBS)


def _tables(results: Results) -> Tables:
    uniform = _figures(results, "uniform")
    zipf = _figures(results, "zipf")
    best = _best(results, "uniform", "FLAT")
    best_zipf = _best(results, "zipf", "LSH")
    claims = (*_uniform_claims(results, best), *_zipf_claims(results, best_zipf))
    headline = {
        "quality": results.quality_name,
        "uniform": _headline(results, "uniform", best),
        "zipf_lsh": _headline(results, "zipf", best_zipf),
    }
    return Tables((uniform, zipf, claims_table("Proximity", claims)), headline)


def _figures(results: Results, workload: str) -> Table:
    base, names = _names(results, workload)
    rows = tuple(
        (
            Cell(name.removeprefix(f"{workload}, ")),
            quality_cell(results.quality(name)),
            Cell(None if name == base else results.quality_difference(base, name), "difference"),
            Cell(results.mean(name, "cache_hit_rate"), "share"),
            Cell(results.mean(name, "k_recall"), "share"),
            Cell(results.mean(name, "retrieval"), "ms"),
            Cell(None if name == base else results.times_as_fast(base, name, "retrieval"), "times"),
        )
        for name in (base, *names)
    )
    columns = (
        *("setting", measure(results.quality_name).words, "difference", "hit rate", "k-recall"),
        *("retrieval, ms", "times as fast"),
    )
    # All settings have the same stream for a seed.
    stream = results.runs[base]
    if workload == "uniform":
        title = f"Workload uniform: each question {results.repeated(base)}"
        return Table(title, columns, rows)
    different = len({record.question for record in stream[0].records})
    rephrased = f"Questions are rephrased {rephrased_by(stream)}."
    length = (
        f"The stream has {len(stream[0].records):,} questions, {different:,} of them different; "
        "the paper's has 10,000, of 500."
    )
    title = "Workload zipf: questions by Zipf's law, rephrased"
    return Table(title, columns, rows, (rephrased, length))


def _names(results: Results, workload: str) -> tuple[str, list[str]]:
    """The setting without a cache, and those with one."""
    base = f"{workload}, {NO_CACHE}"
    return base, [name for name in results.runs if name.startswith(workload) and name != base]


def _best(results: Results, workload: str, index: str) -> str | None:
    """The setting that saves most searches and answers as well as without a cache."""
    base, names = _names(results, workload)
    members = [name for name in names if f", {index}," in name]
    return results.best(base, members, lambda name: results.mean(name, "cache_hit_rate"))


def _headline(results: Results, workload: str, best: str | None) -> dict[str, object]:
    if best is None:
        return {"setting": None, "searches_saved": None}
    base = f"{workload}, {NO_CACHE}"
    saved = reduction(results.times_as_fast(base, best, "retrieval"))
    return {
        "setting": best,
        "equal_quality": results.is_equal(base, best),
        "quality_difference": Cell(results.quality_difference(base, best)).plain,
        "searches_saved": Cell(results.mean(best, "cache_hit_rate")).plain,
        "retrieval_time_saved": Cell(saved).plain,
        "k_recall": Cell(results.mean(best, "k_recall")).plain,
    }


NONE_EQUAL = "none at equal quality"


def _uniform_claims(results: Results, best: str | None) -> tuple[Claim, ...]:
    base, names = _names(results, "uniform")
    hits, faster = Cell(NONE_EQUAL), Cell(NONE_EQUAL)
    if best is not None:
        hits = Cell(results.mean(best, "cache_hit_rate"), "share")
        faster = Cell(reduction(results.times_as_fast(base, best, "retrieval")), "share")
    return (
        Claim(
            "uniform, FLAT: hit rate, the highest at equal quality",
            _of(
                results,
                mmlu="93 % at τ ≥ 5, with a minor decrease in accuracy",
                pubmedqa="72.6 % at τ = 5, c = 200, with an accuracy close to the upper bound",
            ),
            "figure 6(b), §4.3.3",
            hits,
        ),
        Claim(
            "uniform, FLAT: retrieval time saved there",
            _of(results, mmlu="up to 59 %", pubmedqa="up to 75 %"),
            "§1",
            faster,
        ),
        Claim(
            "uniform, FLAT: hit rate from the smallest to the largest capacity",
            "6.1 % to 69.3 % (MMLU, τ = 2, c = 10 to 300)",
            "figure 6(b), §4.3.3",
            Cell(_over_capacities(results, names)),
        ),
        Claim(
            "uniform, FLAT: quality, from the lowest to the highest setting",
            _of(
                results,
                mmlu="47.9 % to 50.2 %",
                pubmedqa="37 % (τ = 10) to 88.1 % (τ = 5, c = 100)",
            ),
            "figure 6(a), §4.3.1",
            Cell(_range_of_quality(results, names)),
        ),
    )


def _zipf_claims(results: Results, best: str | None) -> tuple[Claim, ...]:
    saved, faster, recall = (Cell(NONE_EQUAL),) * 3
    if best is not None:
        base = f"zipf, {NO_CACHE}"
        saved = Cell(results.mean(best, "cache_hit_rate"), "share")
        faster = Cell(reduction(results.times_as_fast(base, best, "retrieval")), "share")
        recall = Cell(results.mean(best, "k_recall"), "share")
    return (
        Claim("zipf, LSH: searches saved at equal quality", "77.2 % (PubMedQA)", "§1", saved),
        Claim("zipf, LSH: retrieval time saved there", "72.5 % (PubMedQA)", "§1", faster),
        Claim(
            "zipf, LSH: k-recall there",
            "virtually 100 % for τ below 7.5 (PubMedQA)",
            "figure 7(b), §4.3.2",
            recall,
        ),
    )


def _of(results: Results, **papers: str) -> str:
    """The paper's figure on the data set; on another one its figures on both."""
    titles = {"mmlu": "MMLU", "pubmedqa": "PubMedQA"}
    if results.dataset in papers:
        return papers[results.dataset]
    return "; ".join(f"{figure} ({titles[name]})" for name, figure in papers.items())


def _over_capacities(results: Results, names: list[str]) -> str | None:
    """Hit rates at the tolerance where the capacity matters most."""
    by_tolerance: dict[str, list[float]] = {}
    for name in names:
        rate = results.mean(name, "cache_hit_rate")
        if rate is not None:
            by_tolerance.setdefault(name.split(", ")[2], []).append(rate.value)
    if not by_tolerance:
        return None
    most = max(by_tolerance, key=lambda words: by_tolerance[words][-1] - by_tolerance[words][0])
    low, high = (Cell(by_tolerance[most][place], "share").text for place in (0, -1))
    return f"{low} to {high} ({most})"


def _range_of_quality(results: Results, names: list[str]) -> str | None:
    values = [quality.value for name in names if (quality := results.quality(name)) is not None]
    if not values:
        return quality_cell(None).text
    return f"{Cell(min(values)).text} to {Cell(max(values)).text}"


PROXIMITY = Preset(
    name="proximity",
    paper="Proximity §4",
    measures="hit rate, k-recall, quality and retrieval latency over tolerance and capacity",
    datasets=("mmlu", "pubmedqa", "nq"),
    setting=(
        "LLaMA 3.1 Instruct on 12 cores of a Xeon Gold 6240; MMLU's econometrics over 21 million "
        "passages of Wikipedia (DPR, FAISS-HNSW), 200 and 500 questions of PubMedQA over 23.9 "
        "million snippets of PubMed (MedCPT, FAISS-FLAT); five seeds"
    ),
    differs=(
        "Tolerances are distances of another embedding model: compare the figures over them, not "
        "the tolerances. A search over fewer documents takes less time, so that a hit saves less "
        "of it. Equal prompts of all settings are answered once."
    ),
    variants=_variants,
    tables=_tables,
    usual={"sample": 200, "corpus": "all"},
    usual_quick={"sample": 10},
)
