"""RAGCache §7: TTFT over request rates and top-k, by replacement policy, and with reordering."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ragcache_integrations.core.checks import check_number
from ragcache_workbench.evaluation.report import measure, rephrased_by
from ragcache_workbench.evaluation.runs import series, throughputs
from ragcache_workbench.evaluation.scores import Interval

from .base import Cell, Claim, Form, Preset, Table, Tables, Variant, claims_table, quality_cell
from .results import Results

__all__ = ["RAGCACHE"]

STOCK, TREE = "stock vLLM", "knowledge tree"
RATES = {"a quarter of the rate": 0.25, "half the rate": 0.5, "the whole rate": 1.0}
LOW, HALF, WHOLE = RATES
USUAL_K = 2
"""RAGCache §7."""
TOP_K = (1, 3, 5)
"""At the lowest rate, which five documents a question do not exceed where two are at the limit."""
BASELINES = ("gdsf", "lru", "lfu")
POLICIES = ("pgdsf", *BASELINES)
GROWTH = 2.0
"""A queue grew if the last third of the requests waited more than this many times the first's."""
NOT_OF_STOCK = (
    *("host_cache_gib", "disk_cache_gib", "disk_cache_dir", "cache_depth", "frequency_window"),
)


def _variants(form: Form) -> tuple[Variant, ...]:
    """What is compared runs one after another, so that a machine that changes misleads less."""
    rate = check_number("rate", form.knobs["rate"], 0, above=True)
    policies = [
        _variant(f"{TREE}, {policy}", HALF, rate, {"knowledge_tree": True, "policy": policy})
        for policy in POLICIES
    ]
    unordered = _variant(
        f"{TREE}, order of arrival",
        WHOLE,
        rate,
        {"knowledge_tree": True, "policy": "lrfu", "reorder_window": None},
    )
    return (
        *_pair(LOW, rate),
        *_pair(HALF, rate),
        *policies,
        *_pair(WHOLE, rate),
        unordered,
        *(variant for k in TOP_K for variant in _pair(LOW, rate, k)),
    )


def _pair(words: str, rate: float, k: int = USUAL_K) -> tuple[Variant, Variant]:
    """Both systems at one rate, with one number of documents."""
    tree = {"knowledge_tree": True, "policy": "lrfu"}
    return (
        _variant(STOCK, words, rate, {"knowledge_tree": False}, k),
        _variant(TREE, words, rate, tree, k),
    )


def _variant(
    system: str, words: str, rate: float, knobs: Mapping[str, Any], k: int = USUAL_K
) -> Variant:
    return Variant(
        _name(system, words, k),
        {"retriever": "plain", "workload": "zipf", "rate": rate * RATES[words], "k": k, **knobs},
        without=() if knobs["knowledge_tree"] else NOT_OF_STOCK,
    )


def _name(system: str, words: str, k: int = USUAL_K) -> str:
    return f"{system}, top-{k}, {words}"


def _tables(results: Results) -> Tables:
    headline = {
        "times_as_fast_as_stock": {
            words: Cell(_ratio(results, _name(STOCK, words), _name(TREE, words))).plain
            for words in RATES
        },
        "queue_grew": [name for name in results.runs if _queue_grew(results, name)],
        "throughput": {system: _throughput(results, system) for system in (STOCK, TREE)},
        "policies": {policy: _hit_rate(results, _of_policy(policy)) for policy in POLICIES}
        | {"lrfu": _hit_rate(results, _name(TREE, HALF))},
    }
    return Tables((_figures(results), claims_table("RAGCache", _claims(results))), headline)


def _of_policy(policy: str) -> str:
    return _name(f"{TREE}, {policy}", HALF)


def _ratio(results: Results, base: str, name: str) -> Interval | None:
    return results.times_as_fast(base, name, "ttft")


def _queue_grew(results: Results, name: str) -> bool:
    """Whether requests came faster than they were answered, so that the last waited the longest."""
    for run in results.runs[name]:
        delays = [delay for delay in series(run, "ttft") if delay is not None]
        third = len(delays) // 3
        if third:
            first, last = statistics.fmean(delays[:third]), statistics.fmean(delays[-third:])
            if last > GROWTH * first:
                return True
    return False


def _borne(results: Results, pairs: Iterable[tuple[str, str]]) -> list[Interval | None]:
    """The ratios of the pairs in which both settings bear the rate."""
    return [
        _ratio(results, base, name)
        for base, name in pairs
        if not _queue_grew(results, base) and not _queue_grew(results, name)
    ]


def _hit_rate(results: Results, name: str) -> float | None:
    """Documents whose KV cache was in a tier, over those retrieved (RAGCache §7.3)."""
    rates = [results.figure(name, f"{tier}_hit_rate") for tier in ("gpu", "host")]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _throughput(results: Results, system: str) -> float | None:
    """Requests per second within five times the TTFT of the lowest rate, mean of the seeds."""
    runs = [run for words in RATES for run in results.runs[_name(system, words)]]
    measured = [point.throughput for point in throughputs(runs)]
    return sum(measured) / len(measured) if measured else None


def _figures(results: Results) -> Table:
    rows = []
    for name, runs in results.runs.items():
        base = name.replace(name.partition(", top-")[0], STOCK)
        compared = base in results.runs and base != name
        rows.append(
            (
                Cell(name),
                Cell(f"{runs[0].settings.rate:g}"),
                quality_cell(results.quality(name)),
                Cell(results.mean(name, "ttft"), "ms"),
                Cell(_ratio(results, base, name) if compared else None, "times"),
                Cell(_hit_rate(results, name), "share"),
                Cell("grew" if _queue_grew(results, name) else None),
            )
        )
    columns = (
        *("setting", "requests/s", measure(results.quality_name).words, "TTFT, ms"),
        *("times as fast as stock", "documents' KV cached", "queue"),
    )
    note = (
        "Where the queue grew, requests came faster than they were answered. How much sooner the "
        "first token came there depends on how long the run is, so that the ranges below leave it "
        "out; reordering needs such a queue."
    )
    # With a trace of some minutes, the streams of two rates are not the same.
    streams = [run for runs in results.runs.values() for run in runs]
    rephrased = f"Questions are rephrased {rephrased_by(streams)}."
    return Table("Time to first token", columns, tuple(rows), (note, rephrased))


def _claims(results: Results) -> tuple[Claim, ...]:
    tree, unordered = _name(TREE, WHOLE), _name(f"{TREE}, order of arrival", WHOLE)
    return (
        Claim(
            "TTFT, times lower than stock vLLM, over the rates that both bear",
            "1.2 to 4",
            "figures 13 and 14, §7.1",
            _range(_borne(results, [(_name(STOCK, words), _name(TREE, words)) for words in RATES])),
        ),
        Claim(
            "throughput within five times each system's own TTFT at the lowest rate, over stock "
            "vLLM's",
            "1.3 to 2.1",
            "§7.1",
            _throughputs(results),
        ),
        Claim(
            "TTFT, times lower than stock vLLM, over top-k where both bear the rate",
            "1.7 to 3.1 (MMLU, top-1, 3 and 5)",
            "figure 15, §7.2",
            _range(_borne(results, [(_name(STOCK, LOW, k), _name(TREE, LOW, k)) for k in TOP_K])),
        ),
        *(
            Claim(
                f"hit rate of PGDSF over {policy.upper()}; of our LRFU",
                paper,
                "figure 17, §7.3",
                _hit_rates(results, policy),
            )
            for policy, paper in zip(
                BASELINES, ("1.02 to 1.32", "1.06 to 1.62", "1.06 to 1.75"), strict=True
            )
        ),
        Claim(
            "TTFT, times lower by PGDSF than by GDSF, LRU and LFU",
            "1.05 to 1.29",
            "table 2, §7.3",
            _range(
                _borne(results, [(_of_policy(policy), _of_policy("pgdsf")) for policy in BASELINES])
            ),
        ),
        Claim(
            "TTFT, times lower by reordering at a high rate",
            "1.2 to 2.1",
            "figure 18, §7.3",
            Cell(_ratio(results, unordered, tree), "times"),
        ),
        Claim(
            "TTFT, times lower by speculation",
            "up to 1.6",
            "figure 19, §7.3",
            Cell("not here: benchmarks/speculation.py measures it"),
        ),
    )


def _range(ratios: list[Interval | None]) -> Cell:
    """The lowest and the highest of some ratios, each with its interval."""
    known = sorted((ratio for ratio in ratios if ratio is not None), key=lambda ratio: ratio.value)
    if not known:
        return Cell(None)
    ends = known[:1] + known[1:][-1:]
    return Cell(" to ".join(Cell(ratio, "times").text for ratio in ends))


def _throughputs(results: Results) -> Cell:
    stock, tree = (_throughput(results, system) for system in (STOCK, TREE))
    if not stock or tree is None:
        return Cell(None)
    return Cell(f"{tree / stock:.2f} ({tree:.3g} and {stock:.3g} requests/s, up to the whole rate)")


def _hit_rates(results: Results, policy: str) -> Cell:
    base = _hit_rate(results, _of_policy(policy))
    ours = [_hit_rate(results, name) for name in (_of_policy("pgdsf"), _name(TREE, HALF))]
    if not base or None in ours:
        return Cell(None)
    return Cell("; ".join(f"{(rate or 0.0) / base:.2f}" for rate in ours))


RAGCACHE = Preset(
    name="ragcache",
    paper="RAGCache §7",
    measures="time to first token over request rates, top-k, policies and reordering",
    datasets=("mmlu", "nq"),
    setting=(
        "Mistral-7B and LLaMA2-7B on an NVIDIA A10G with 192 GiB of host memory for the cache, "
        "traces of one hour, Wikipedia as documents"
    ),
    differs=(
        "Popular questions are drawn by Zipf's law and rephrased. Stock vLLM has its own prefix "
        "caching here, which the paper's does not mention. There is a host tier only with "
        "host_cache_gib, and the policies differ only where the KV cache is too small."
    ),
    variants=_variants,
    tables=_tables,
    usual={"sample": 250, "corpus": "all", "rate": 2.0},
    usual_quick={
        "sample": 8,
        "rate": 4.0,
        "max_tokens": 4,
        "kv_cache_gib": 0.2,
        "max_model_len": 4096,
    },
)
