"""The knowledge tree beside stock vLLM's prefix cache: the same prompts, host process and model.

Stock is ``RAGCacheEngine(knowledge_tree=False)``: unmodified vLLM with prefix caching on, in the
process in which ours runs too. All live at once, answer the same stretch of the trace in turns,
and keep what they cached; the first requests warm up and are not counted. Ratios are stock over
ours, of medians, with 95 % intervals from drawing the pairs of requests again.

Two comparisons are printed: (a) stock with as much KV memory as our GPU tier alone, which stands
for a small GPU next to a large host; (b) stock with as much memory as we have in all. On a CPU both
tiers are the same memory, and the engine makes one of them, which points without a host tier
measure; the other points keep two, and pay for copies that a GPU would make while it computes.
Requests arrive as a Poisson process at a share of the rate that stock in (a) can bear.

Documents are the bundled Natural Questions passages, as they are or joined to long ones, popular by
Zipf's law. Hit rates of large sweeps come from ``benchmarks/knowledge_tree_simulator.py``; some
points of it are confirmed on the real engine here. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from parts.servers.scheduling import scheduling_microseconds
from parts.servers.serving import Served, serve
from parts.stats.intervals import geometric_mean_ratio, mean_ratio, median_ratio
from parts.traffic.corpora import (
    bundled_documents,
    join_documents,
)
from parts.traffic.traces import document_stream

from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.resources import load_questions
from ragcache_workbench.evaluation.scores import Interval
from ragcache_workbench.simulation.simulator import simulate
from ragcache_workbench.simulation.traces import Trace, TraceRequest
from ragcache_workbench.workload_report.run import read_model_facts

BLOCK = 32
OUTPUT_TOKENS = 8
GIB = 1 << 30
TURN = 12
FALLBACK_TOKEN_BYTES = 1 << 17
"""Of a model that does not tell: a 7B model's with grouped attention (RAGCache table 1)."""
POLICIES = ("lrfu", "pgdsf", "gdsf", "lru", "lfu")


@dataclass(frozen=True)
class Corpus:
    """Documents with their texts and lengths in tokens."""

    texts: dict[str, str]
    tokens: dict[str, int]

    @property
    def total(self) -> int:
        """Tokens of all documents."""
        return sum(self.tokens.values())


@dataclass(frozen=True)
class Point:
    """One setting of the comparison.

    Attributes:
        long: Whether documents are joined to long ones, or as they are.
        top_k: Documents per request.
        share: GPU tier, as a share of the documents' tokens.
        host_share: Host tier, likewise; 0 for none.
        load: Arrivals, as a share of what stock can bear; ``None`` for one after another.
        exponent: Zipf's; ``None`` where no document ever comes again.
    """

    long: bool = True
    top_k: int = 2
    share: float = 0.05
    host_share: float = 0.5
    load: float | None = 0.5
    exponent: float | None = 1.0

    def __str__(self) -> str:
        return (
            f"{'long' if self.long else 'short'} top-{self.top_k} cache {self.share:.0%}"
            f" host {self.host_share:.0%} load {self.load or 'single'}"
            f" {'unique' if self.exponent is None else f'zipf {self.exponent}'}"
        )


STOCK, TOTAL, OURS = "stock", "stock with the memory of both tiers", "ours"


class Compared(dict[str, Served]):
    """What each engine did at a point, over all seeds."""

    def ratio(self, baseline: str = STOCK) -> Interval:
        """The median TTFT of stock over ours."""
        return median_ratio(self[baseline].ttft, self[OURS].ttft)


class Bench:
    """Engines, kept while the next point can use them, and what was measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.model = options.model or str(default_model_path())
        self.measured: dict[Point, Compared] = {}
        facts = read_model_facts(self.model)
        # They are for 16-bit numbers.
        scale = 2 if options.dtype == "float32" else 1
        self.token_bytes = scale * (facts.kv_bytes_per_token or FALLBACK_TOKEN_BYTES)
        # People's own, which differ from the first word on: what they share would be cached, too.
        self.questions = [question.text for question in load_questions()]
        texts = dict(itertools.islice(bundled_documents().items(), options.documents))
        lengths = {name: facts.count_tokens(text) for name, text in texts.items()}
        low, high = options.document_tokens
        # Two long documents or five short ones, with a question.
        self.context = -(-(2 * high + 160) // BLOCK) * BLOCK
        joined, part_of = join_documents(lengths, low=low, high=high, seed=0)
        whole = dict.fromkeys(joined, "")
        for name, text in texts.items():
            whole[part_of[name]] += text + "\n\n"
        self.corpora = {True: Corpus(whole, joined), False: Corpus(texts, lengths)}

    @contextmanager
    def engine(
        self, gpu_tokens: int, *, host_tokens: int = 0, **knobs: Any
    ) -> Iterator[RAGCacheEngine]:
        """An engine with room for so many tokens; never less than for one request."""
        blocks = -(-max(gpu_tokens, self.context) // BLOCK) + 1
        if host_tokens:
            knobs["host_cache_gib"] = host_tokens * self.token_bytes / GIB
        arguments: dict[str, Any] = {
            "block_size": BLOCK,
            "enforce_eager": True,
            "num_gpu_blocks_override": blocks,
        }
        if self.options.dummy_weights:
            arguments["load_format"] = "dummy"
        with RAGCacheEngine(
            self.model,
            max_model_len=self.context,
            dtype=self.options.dtype,
            kv_cache_gib=self.options.kv_cache_gib,
            vllm_args=arguments,
            **knobs,
        ) as engine:
            yield engine

    @contextmanager
    def engines(self, point: Point) -> Iterator[dict[str, RAGCacheEngine]]:
        """Stock, ours, and stock with as much memory as both of our tiers, started side by side."""
        total = self.corpora[point.long].total
        gpu, host = int(point.share * total), int(point.host_share * total)
        wanted = {STOCK: self.engine(gpu, knowledge_tree=False)}
        if host:
            wanted[TOTAL] = self.engine(gpu + host, knowledge_tree=False)
        wanted[OURS] = self.engine(gpu, host_tokens=host)
        with ExitStack() as stack, ThreadPoolExecutor(len(wanted)) as threads:
            started = {name: threads.submit(one.__enter__) for name, one in wanted.items()}
            for one in wanted.values():
                stack.push(one.__exit__)
            yield {name: one.result() for name, one in started.items()}

    def prompts(self, point: Point, requests: int, seed: int) -> tuple[Trace, list[Prompt]]:
        """A trace and its prompts."""
        corpus = self.corpora[point.long]
        if point.exponent is None:
            names = np.random.default_rng(seed).permutation(list(corpus.tokens)).tolist()
            ids = [names[i * point.top_k : (i + 1) * point.top_k] for i in range(requests)]
            trace = Trace(
                tuple(
                    TraceRequest(tuple((name, corpus.tokens[name]) for name in one)) for one in ids
                )
            )
        else:
            trace = document_stream(
                corpus.tokens,
                top_k=point.top_k,
                requests=requests,
                exponent=point.exponent,
                seed=seed,
            )
        prompts = [
            Prompt.rag(
                self.questions[number % len(self.questions)],
                [PromptDocument(corpus.texts[name], name) for name, _ in request.documents],
                system="Answer from the documents, and from nothing else.",
            )
            for number, request in enumerate(trace.requests)
        ]
        return trace, prompts

    def compare(self, points: Sequence[Point], requests: int, seeds: int) -> None:
        """Measure points that differ in their load alone, one after another in each trace."""
        with self.engines(points[0]) as engines:
            for point in points:
                self.measured[point] = Compared({name: Served() for name in engines})
            for seed in range(seeds):
                self._compare_seed(points, engines, requests, seed)
        for point in points:
            compared = self.measured[point]
            medians = [1e3 * statistics.median(one.ttft) for one in compared.values()]
            shown = [f"{compared.ratio(name)!s:24}" for name in engines if name != OURS]
            print(
                f"{point!s:52} {' '.join(f'{one:8.1f}' for one in medians)} ms  {' '.join(shown)}",
                flush=True,
            )

    def _compare_seed(
        self,
        points: Sequence[Point],
        engines: dict[str, RAGCacheEngine],
        requests: int,
        seed: int,
    ) -> None:
        first = self.options.warm_up
        timed = first // 2
        _, prompts = self.prompts(points[0], first + requests * len(points), seed)
        for engine in engines.values():
            engine.reset_cache()
            serve(engine, prompts[: first - timed], None, output_tokens=1)
        # The last of the warm-up also tell the rate that stock can bear.
        warm = [
            serve(engine, prompts[first - timed : first], None, OUTPUT_TOKENS)
            for engine in engines.values()
        ]
        rate = timed / warm[0].seconds
        sides = list(engines.items())
        for number, point in enumerate(points):
            gaps = None
            if point.load is not None:
                draw = np.random.default_rng([seed, 1])
                gaps = draw.exponential(1 / (point.load * rate), size=requests)
            begin = first + number * requests
            for turn in range(0, requests, TURN):
                stretch = prompts[begin + turn : begin + min(turn + TURN, requests)]
                arrivals = None
                if gaps is not None:
                    arrivals = np.cumsum(gaps[turn : turn + len(stretch)]).tolist()
                for name, engine in sides:
                    served = serve(engine, stretch, arrivals, OUTPUT_TOKENS)
                    self.measured[point][name].extend(served)
                sides.reverse()


def time_to_first_token(bench: Bench, requests: int, seeds: int, *, quick: bool) -> dict[str, Any]:
    """Comparisons (a) and (b)."""
    print(f"\n{'time to first token':52} {STOCK}, {TOTAL}, {OURS}: stock / ours")
    base = Point()
    if quick:
        groups = [[replace(base, top_k=1)]]
    else:
        groups = [
            [replace(base, load=load) for load in (0.3, 0.5, 0.7)],
            [replace(base, top_k=1, load=load) for load in (0.3, 0.7)],
            *([replace(base, long=False, top_k=k)] for k in (3, 5)),
            *([replace(base, share=share)] for share in (0.02, 0.10, 0.20)),
            *([replace(base, share=share, host_share=0)] for share in (0.05, 0.10, 0.20, 0.55)),
            *([replace(base, top_k=1, share=share, host_share=0)] for share in (0.05, 0.10, 0.20)),
            *([replace(base, long=False, top_k=k, share=0.1, host_share=0)] for k in (3, 5)),
        ]
    for group in groups:
        chosen = [
            point for point in group if any(one in str(point) for one in bench.options.points)
        ]
        if chosen:
            bench.compare(chosen, requests, seeds)
    found = bench.measured
    if not found:
        raise SystemExit(f"no point's name contains any of {', '.join(bench.options.points)}")
    best = max(found, key=lambda point: found[point].ratio().value)
    worst = min(found, key=lambda point: found[point].ratio().low)
    # Without a host tier both have the same memory anyway.
    totals = {point: TOTAL if TOTAL in one else STOCK for point, one in found.items()}
    same = geometric_mean_ratio(
        [(found[point][total].ttft, found[point][OURS].ttft) for point, total in totals.items()]
    )
    lowest = min(found, key=lambda point: found[point].ratio(totals[point]).low)
    equal = [
        token == other
        for compared in found.values()
        for token, other in zip(compared[STOCK].tokens, compared[OURS].tokens, strict=True)
    ]
    print(f"(a) best: {best}: {found[best].ratio()}\n(a) worst: {worst}: {found[worst].ratio()}")
    mean = geometric_mean_ratio([(one[STOCK].ttft, one[OURS].ttft) for one in found.values()])
    print(f"(a) geometric mean over {len(found)} points: {mean}")
    print(f"(b) worst: {lowest}: {found[lowest].ratio(totals[lowest])}")
    print(f"(b) geometric mean over {len(found)} points: {same}")
    return {
        "ttft_ratio_best": found[best].ratio().as_list(4),
        "ttft_ratio_worst": found[worst].ratio().as_list(4),
        "ttft_ratio_mean": mean.as_list(4),
        "ttft_ratio_same_total_memory": same.as_list(4),
        "ttft_ratio_same_total_memory_worst": found[lowest].ratio(totals[lowest]).as_list(4),
        "exact": {"prompts": len(equal), "equal": sum(equal)},
        "points": {
            str(point): {name: one.ratio(name).as_list(4) for name in one if name != OURS}
            for point, one in found.items()
        },
    }


def nothing_to_reuse(bench: Bench, requests: int, seeds: int) -> dict[str, Any]:
    """Throughput where no document ever comes again: what the tree costs."""
    point = Point(long=False, host_share=0, exponent=None, load=None)
    total = bench.corpora[point.long].total
    seconds: dict[str, list[float]] = {"stock": [], "ours": []}
    with (
        bench.engine(int(point.share * total), knowledge_tree=False) as stock,
        bench.engine(int(point.share * total)) as ours,
    ):
        sides = [("stock", stock), ("ours", ours)]
        for seed in range(seeds):
            _, prompts = bench.prompts(point, requests, seed)
            for begin in range(0, requests, TURN):
                for name, engine in sides:
                    stretch = prompts[begin : begin + TURN]
                    began = time.perf_counter()
                    serve(engine, stretch, [0.0] * len(stretch), OUTPUT_TOKENS)
                    seconds[name].append(time.perf_counter() - began)
                sides.reverse()
    warm = len(seconds["ours"]) // seeds  # the first seed warms up
    if seeds > 1:
        seconds = {name: values[warm:] for name, values in seconds.items()}
    ratio = median_ratio(seconds["stock"], seconds["ours"])
    print(f"\nthroughput with nothing to reuse, ours over stock: {ratio}")
    return {"throughput_ratio_nothing_to_reuse": ratio.as_list(4)}


def policies_simulated(bench: Bench, requests: int) -> dict[str, Any]:
    """PGDSF over LRU at one point, in the simulator alone."""
    point = Point(long=False, share=0.05, host_share=0)
    trace, _ = bench.prompts(point, requests, seed=0)
    tokens = max(int(point.share * bench.corpora[point.long].total), bench.context)
    rates = [
        simulate(
            trace,
            gpu_blocks=-(-tokens // BLOCK),
            block_size=BLOCK,
            policy=policy,
            output_tokens=OUTPUT_TOKENS,
        ).stats.token_hit_rate
        for policy in ("pgdsf", "lru")
    ]
    print(
        f"\nhit rate by tokens in the simulator, {point}: PGDSF {rates[0]:.3f}, LRU {rates[1]:.3f}"
    )
    return {"pgdsf_over_lru_hit_rate": round(rates[0] / rates[1], 4)}


def policies(bench: Bench, requests: int) -> dict[str, Any]:
    """The real engine's hit rates beside the simulator's, by documents and by tokens."""
    print(f"\n{'hit rates: engine / simulator':44} {'documents':>17} {'tokens':>17} {'TTFT':>9}")
    points = [(0.02, 0.8), (0.05, 1.0), (0.10, 1.2)]
    differences, ratios = [], {}
    for share, exponent in points:
        point = Point(share=share, host_share=0, exponent=exponent, load=None)
        total = bench.corpora[point.long].total
        tokens = max(int(share * total), bench.context)
        found: dict[str, float] = {}
        for policy in POLICIES:
            with bench.engine(tokens, policy=policy, reorder_window=None) as engine:
                trace, prompts = bench.prompts(point, requests, seed=0)
                trace = measured_lengths(engine, trace, prompts)
                served = serve(engine, prompts, None, OUTPUT_TOKENS)
                real = engine.stats().tree
            if real is None:
                continue
            simulated = simulate(
                trace,
                gpu_blocks=-(-tokens // BLOCK),
                block_size=BLOCK,
                policy=policy,
                output_tokens=OUTPUT_TOKENS,
            ).stats
            pairs = [
                (real.document_hit_rate, simulated.document_hit_rate),
                (real.token_hit_rate, simulated.token_hit_rate),
            ]
            differences += [abs(one - other) for one, other in pairs]
            found[policy] = real.token_hit_rate
            shown = " ".join(f"{one:8.3f}/{other:8.3f}" for one, other in pairs)
            name = f"{policy} cache {share:.0%} zipf {exponent}"
            print(f"{name:44} {shown} {1e3 * statistics.median(served.ttft):6.1f} ms", flush=True)
        with bench.engine(tokens, knowledge_tree=False) as engine:
            served = serve(engine, prompts, None, OUTPUT_TOKENS)
        name = f"stock's block LRU cache {share:.0%} zipf {exponent}"
        cached = sum(served.cached) / sum(
            trace.prompt_tokens(request) for request in trace.requests
        )
        print(
            f"{name:44} {'':17} {cached:8.3f} of all"
            f"  {1e3 * statistics.median(served.ttft):5.1f} ms"
        )
        ratios[f"{share:.0%} zipf {exponent}"] = found["pgdsf"] / found["lru"]
    print(f"largest difference between engine and simulator: {max(differences):.4f}")
    return {
        "pgdsf_over_lru_hit_rate": round(statistics.geometric_mean(ratios.values()), 4),
        "pgdsf_over_lru_hit_rate_by_point": {
            name: round(ratio, 4) for name, ratio in ratios.items()
        },
        "engine_against_simulator": round(max(differences), 4),
    }


def measured_lengths(engine: RAGCacheEngine, trace: Trace, prompts: Sequence[Prompt]) -> Trace:
    """The trace with the lengths that the prompts have in tokens, separators included."""
    requests = []
    system = 0
    for request, prompt in zip(trace.requests, prompts, strict=True):
        rendered = engine.render(prompt)
        spans = rendered.documents
        system = spans[0].start
        ends = [system, *(span.end for span in spans)]
        lengths = [end - start for start, end in itertools.pairwise(ends)]
        names = [name for name, _ in request.documents]
        requests.append(
            replace(
                request,
                documents=tuple(zip(names, lengths, strict=True)),
                question_tokens=len(rendered.token_ids) - ends[-1],
            )
        )
    return Trace(tuple(requests), system)


def reordering(bench: Bench, requests: int, seeds: int) -> dict[str, Any]:
    """In the order of arrival against a window of 32, saturated and not, small cache and large."""
    print(f"\n{'reordering: mean TTFT':44} {'arrival':>11} {'window 32':>11}  arrival / window")
    result: dict[str, Any] = {}
    for share in (0.02, 0.20):
        total = bench.corpora[True].total
        with (
            bench.engine(int(share * total), reorder_window=None) as plain,
            bench.engine(int(share * total), reorder_window=32) as ordered,
        ):
            for load in (0.5, 1.5):
                point = Point(share=share, host_share=0, load=load)
                plain_ttft: list[float] = []
                ordered_ttft: list[float] = []
                sides = [(plain, plain_ttft), (ordered, ordered_ttft)]
                for seed in range(seeds):
                    _, prompts = bench.prompts(point, 2 * requests, seed)
                    seconds = {}
                    for engine, _ in sides:
                        engine.reset_cache()
                        seconds[engine] = serve(
                            engine, prompts[:requests], None, OUTPUT_TOKENS
                        ).seconds
                    rate = load * requests / seconds[plain]
                    gaps = np.random.default_rng([seed, 2]).exponential(1 / rate, size=requests)
                    arrivals = np.cumsum(gaps).tolist()
                    for engine, ttft in sides:
                        served = serve(engine, prompts[requests:], arrivals, OUTPUT_TOKENS)
                        ttft.extend(served.ttft)
                    sides.reverse()
                means = [1e3 * statistics.fmean(one) for one in (plain_ttft, ordered_ttft)]
                ratio = mean_ratio(plain_ttft, ordered_ttft)
                name = f"cache {share:.0%} load {load}"
                result[name] = ratio.as_list(4)
                print(f"{name:44} {means[0]:8.1f} ms {means[1]:8.1f} ms  {ratio}", flush=True)
    return {"reordering_mean_ttft_ratio": result}


def scheduling(sizes: Sequence[int]) -> dict[str, Any]:
    """What the tree and the queue take for one request."""
    scheduling_microseconds(sizes[0])  # warms up
    times = {str(nodes): round(scheduling_microseconds(nodes), 1) for nodes in sizes}
    print(f"\nscheduling time per request by nodes in the tree, in microseconds: {times}")
    return {"scheduling_us": times}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--model", help="path or hub name; a tiny random one by default")
    parser.add_argument("--dummy-weights", action="store_true", help="do not load any weights")
    parser.add_argument("--dtype", default="float32", help="float32 lets answers be compared")
    parser.add_argument("--kv-cache-gib", type=float, default=0.5, help="is cut to the cache sizes")
    parser.add_argument("--requests", type=int, default=24, help="for each point and seed")
    parser.add_argument(
        "--warm-up", type=int, default=100, help="requests before them, not counted"
    )
    parser.add_argument(
        "--document-tokens",
        type=int,
        nargs=2,
        default=(200, 800),
        metavar=("LOW", "HIGH"),
        help="length of the long documents (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--points",
        default=("",),
        nargs="+",
        help="only those of time to first token whose name contains one of these",
    )
    parser.add_argument("--documents", type=int, default=600, help="how many of the passages")
    parser.add_argument(
        "--only",
        choices=("ttft", "overhead", "policies", "reordering", "scheduling"),
        help="one part of it",
    )
    options = parser.parse_args()
    requests, seeds = options.requests, options.seeds
    if options.quick:
        requests, seeds = 16, 1
        options.warm_up, options.documents, options.document_tokens = 36, 150, (200, 500)

    def wanted(part: str) -> bool:
        return options.only in (None, part)

    result: dict[str, Any] = {}
    if wanted("scheduling"):
        result |= scheduling((100, 10000) if options.quick else (100, 1000, 10000))
    bench = Bench(options)
    if wanted("ttft"):
        result |= time_to_first_token(bench, requests, seeds, quick=options.quick)
    if wanted("policies"):
        if options.quick:
            result |= policies_simulated(bench, requests=2000)
        else:
            result |= policies(bench, options.warm_up + 2 * requests)
    if wanted("overhead") and not options.quick:
        result |= nothing_to_reuse(bench, 2 * requests, seeds + 1)
    if wanted("reordering") and not options.quick:
        result |= reordering(bench, requests, seeds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
