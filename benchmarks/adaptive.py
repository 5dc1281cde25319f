"""Per-query configuration: delay and throughput beside fixed configurations and other choosers.

All answer the same questions, arriving as the same Poisson process, on one engine with the same
memory, one after the other with an empty cache. Profiles are replayed from a recorded file, so that
only the choice and what follows from it differ. Compared (RAGServe §7.1, figures 10 to 12 and 16):

- every fixed configuration of a grid, all calls of a question at once;
- one of them with one call after another, as a plain loop over chunks does (vLLM in the paper), and
  all at once (Parrot-like: batching only);
- quality only (AdaptiveRAG-like): the largest configuration that suits, whatever memory is free;
- the middle of what suits (profiler-median), one call after another and all at once;
- full: best fit.

Every choice of best fit is held to brute force. The profiler's share of the delay (figure 18) is
measured with the engine itself as the profiler, unloaded and saturated. Rates are multiples of what
the engine bears of ``stuff`` with two chunks, the least of the grid: above 1 all of it saturates.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from parts.adaptive.serving import CheckedBestFit, Served, System, serve
from parts.adaptive.workload import RECORDED, Material, Workload, f1, record_profiles
from parts.stats.intervals import median_ratio
from parts.stats.tables import print_table

from ragcache_integrations.adaptive import (
    AdaptiveSettings,
    EngineAsker,
    LLMProfiler,
    Profiler,
    SynthesisConfig,
)
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_workbench.evaluation.scores import Interval

MECHANICS = "mechanics only: no answer quality (random weights)"
PATIENT = 600.0

Answers = dict[str, tuple[str, ...]]

FULL = System("full: best fit", AdaptiveSettings(profile_timeout=PATIENT))
QUALITY = System("quality only (AdaptiveRAG-like)", FULL.settings, quality_only=True)
MEDIAN = System("profiler-median, batched", AdaptiveSettings(mode="median"))
MEDIAN_SERIAL = replace(MEDIAN, name="profiler-median, call after call", max_concurrency=1)


def fixed(method: str, chunks: int, words: int | None = None, *, serial: bool = False) -> System:
    """A fixed configuration."""
    config = SynthesisConfig(method, chunks, words)  # type: ignore[arg-type] # one of them
    name = f"fixed {method} {chunks}" + (f" x {words}" if words else "")
    settings = AdaptiveSettings(mode="fixed", config=config)
    if serial:
        return System(f"{name}, call after call", settings, max_concurrency=1)
    return System(name, settings)


GRID = (
    *(fixed("stuff", chunks) for chunks in (2, 3, 4, 6, 9, 12)),
    *(fixed("map_rerank", chunks) for chunks in (2, 4, 6, 9)),
    *(fixed("map_reduce", chunks, 45) for chunks in (2, 4, 6, 9)),
)
QUICK_GRID = GRID[1:2]
PARROT = fixed("map_reduce", 4, 45)
PLAIN = fixed("map_reduce", 4, 45, serial=True)
BASE = GRID[0]


class Bench:
    """The engine, the questions, and what was measured.

    Args:
        options: The command line's.
        engine: Answers.
        material: What is asked.
    """

    def __init__(
        self, options: argparse.Namespace, engine: RAGCacheEngine, material: Material
    ) -> None:
        self.options = options
        self.engine = engine
        self.material = material
        self.best_fit = CheckedBestFit()
        self.base_rate = 0.0

    def run(
        self,
        system: System,
        rate: float | None,
        seed: int,
        profiler: Profiler | None = None,
        count: int | None = None,
    ) -> Served:
        """Serve questions at a multiple of the base rate; ``None`` for all at once."""
        count = count or self.options.requests
        workload = Workload.draw(list(self.material.answers), count, seed)
        pipeline = system.pipeline(
            self.engine,
            profiler or self.material.profiler,
            self.best_fit,
            answer_tokens=self.options.answer_tokens,
            ignore_eos=self.options.model is None,
        )
        self.engine.reset_cache()
        arrivals = [0.0] * count
        if rate is not None:
            arrivals = workload.arrivals(rate * self.base_rate)
        return serve(pipeline, self.material.corpus, workload.questions, arrivals)

    def measure_base(self) -> None:
        """Find the rate that the engine bears; the first run warms up."""
        self.run(BASE, None, seed=99, count=4 if self.options.quick else 8)
        count = 12 if self.options.quick else 96
        # Between the quarters: at first all are read, in the end few are left to be batched.
        ends = sorted(self.run(BASE, None, seed=98, count=count).delays)
        first, last = ends[count // 4], ends[3 * count // 4]
        self.base_rate = (3 * count // 4 - count // 4) / (last - first)
        print(f"{BASE.name}: {self.base_rate:.2f} answers a second", flush=True)

    def compare(self, systems: tuple[System, ...], rate: float) -> dict[str, Served]:
        """Serve the same questions with each system, over all seeds."""
        served = {system.name: Served() for system in systems}
        order = list({system.name: system for system in systems}.values())  # some are in two roles
        for seed in range(self.options.seeds):
            for system in order:
                served[system.name].extend(self.run(system, rate, seed))
            order.reverse()
        return served


def table(title: str, served: dict[str, Served], answers: Answers | None) -> None:
    """Print what each system did; with the right answers, also how good its own were."""
    full = served[FULL.name]
    rows = []
    for name, one in served.items():
        ratio = median_ratio(one.delays, full.delays)
        methods = "/".join(map(str, one.methods().values()))
        cells: list[Any] = [name, statistics.median(one.delays), _p90(one.delays)]
        cells += [str(ratio), one.throughput, one.chunks, methods]
        rows.append([*cells, quality(one, answers)] if answers else cells)
    head = ["way of choosing", "median s", "p90 s", "median / full", "answers/s", "chunks"]
    head += ["rerank/stuff/reduce", *(["F1"] if answers else [])]
    print_table(title, head, rows)


def _p90(delays: list[float]) -> float:
    return statistics.quantiles(delays, n=10)[-1]


def quality(served: Served, answers: Answers) -> float | None:
    """Mean F1 over the questions whose answers are known."""
    scores = [
        f1(answer.text, answers[question])
        for question, answer in zip(served.questions, served.answers, strict=True)
        if answers[question]
    ]
    return statistics.fmean(scores) if scores else None


def closest(served: dict[str, Served], grid: tuple[System, ...]) -> dict[str, Interval]:
    """Delay ratios of those fixed configurations that read as many chunks as full, or more."""
    full = served[FULL.name]
    return {
        system.name: median_ratio(served[system.name].delays, full.delays)
        for system in grid
        if system.name in served and served[system.name].chunks >= full.chunks
    }


def saturation(
    bench: Bench, rates: tuple[float, ...], grid: tuple[System, ...], others: tuple[System, ...]
) -> dict[str, Any]:
    """Delay and throughput by rate; the last rate saturates."""
    result: dict[str, Any] = {}
    answers = bench.material.answers if bench.options.model is not None else None
    for rate in rates:
        served = bench.compare((FULL, *others, *grid), rate)
        table(f"{rate:g} times the base rate", served, answers)
        full = served[FULL.name]
        ratios = closest(served, grid)
        worst = min(ratios, key=lambda name: ratios[name].value) if ratios else None
        print(f"full: {full.chunks:.2f} chunks on average, {full.reasons()}")
        result[f"{rate:g}"] = {
            "full": {"median_s": statistics.median(full.delays), "chunks": full.chunks},
            "closest_fixed": worst,
            "delay_ratio": ratios[worst].as_list(4) if worst else None,
            "delay_ratios": {name: ratio.as_list(4) for name, ratio in ratios.items()},
            "f1": {name: quality(one, answers) for name, one in served.items()}
            if answers
            else None,
            "throughput_ratio": full.throughput / served[worst].throughput if worst else None,
            "gain_by_part": {
                system.name: statistics.median(served[system.name].delays) for system in others
            },
        }
        if worst:
            print(
                f"smallest delay ratio to a fixed one that reads as much: {worst}: {ratios[worst]}"
            )
    last = result[f"{rates[-1]:g}"]
    return {
        "delay_ratio": last["delay_ratio"],
        "throughput_ratio": last["throughput_ratio"],
        "rates": result,
    }


def profiler_share(bench: Bench, rates: tuple[float, float], count: int) -> dict[str, Any]:
    """The profiler's share of the delay, with the engine itself as the profiler."""
    shares: dict[str, float] = {}
    rows: list[list[Any]] = []
    for name, rate in zip(("unloaded", "saturated"), rates, strict=True):
        profiler = LLMProfiler(EngineAsker(bench.engine), "Articles of Wikipedia.", 400)
        served = bench.run(FULL, rate, seed=0, profiler=profiler, count=count)
        shares[name] = round(served.profiler_share, 4)
        rows.append([name, rate, served.profiler_share, served.profiler_wait_share])
    print_table(
        "the profiler's share of the delay, medians (RAGServe: at most 0.1)",
        ["load", "rate", "at work", "waited for"],
        rows,
    )
    return {"profiler_share": shares}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--model", help="path or hub name; a tiny random one by default")
    parser.add_argument("--requests", type=int, default=150, help="for each way, rate and seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kv-tokens", type=int, default=8192, help="room of the KV cache")
    parser.add_argument("--answer-tokens", type=int, default=32)
    parser.add_argument("--rates", type=float, nargs="+", default=(0.4, 0.8, 1.25))
    parser.add_argument(
        "--fixed", nargs="+", metavar="NAME", help="only best fit and these, such as 'stuff 2'"
    )
    parser.add_argument("--data", type=Path, help="a folder of data sets; bundled if not given")
    parser.add_argument("--dataset", choices=("nq", "pubmedqa", "qmsum"), default="nq")
    parser.add_argument("--profiles", type=Path, help="recorded profiles of its questions")
    parser.add_argument("--record", action="store_true", help="write that file, and end")
    options = parser.parse_args()
    if options.record:
        print(json.dumps({"recorded": record_profiles(options.profiles or RECORDED)}))
        return
    grid, rates = GRID, tuple(options.rates)
    others: tuple[System, ...] = (QUALITY, MEDIAN, MEDIAN_SERIAL, PARROT, PLAIN)
    if options.quick:
        options.requests, options.seeds = 12, 1
        grid, rates, others = QUICK_GRID, (1.25,), ()
    if options.fixed:
        others = ()
        grid = tuple(one for one in GRID if one.name.removeprefix("fixed ") in options.fixed)
        if len(grid) < len(options.fixed):
            known = ", ".join(repr(one.name.removeprefix("fixed ")) for one in GRID)
            parser.error(f"--fixed must name some of {known}, got {options.fixed}")
    if options.data is None:
        material = Material.bundled(options.profiles or RECORDED)
    else:
        material = Material.read(options.data, options.dataset, options.profiles)
    print(MECHANICS if options.model is None else f"model: {options.model}")
    arguments = {"block_size": 32, "enforce_eager": True}
    arguments["num_gpu_blocks_override"] = options.kv_tokens // 32 + 1
    with RAGCacheEngine(
        options.model,
        kv_cache_gib=0.5,
        max_model_len=min(4096, options.kv_tokens),
        dtype="float32",
        vllm_args=arguments,
    ) as engine:
        bench = Bench(options, engine, material)
        bench.measure_base()
        result = saturation(bench, rates, grid, others)
        unloaded, count = (0.25, 3) if options.quick else (0.05, 40)
        result |= profiler_share(bench, (unloaded, rates[-1]), count)
        result["best_fit_violations"] = bench.best_fit.violations
        result["best_fit_choices"] = bench.best_fit.choices
    print(f"\nchoices held to brute force: {bench.best_fit.choices}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
