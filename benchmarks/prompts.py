"""Prompts that the KV cache can reuse: document order, chat history, relevance checks.

- ``order``: share of document tokens found in a cached prefix, and microseconds a request, for
  each order, online and batch, on streams of real questions over an exact index, beside
  ContextPilot 0.5.0 in the same run: k from 2 to 10, unlimited caches and small ones (stock vLLM's
  LRU over blocks of 16, and the knowledge tree's PGDSF), and what limits on the order cost: of how
  many requests documents are moved, and what is cached still.
  ``popularity`` is ``cached_first`` with ``uncached="popularity"``, ``look_ahead`` its
  ``arrange_all`` over 32 requests at a time.
- ``core``: microseconds a request of what ``cached_first`` is made of, the search for the longest
  cached path and the entering of what is sent, without the checks and statistics around it.
- ``engine``: the same orders on the real engine: cached tokens as it reports them, and TTFT. What
  is cached does not depend on the model: ``--counts-only`` serves more requests, with the
  beginnings of passages and one layer of the model, and says nothing of times. ``--quick`` takes
  one layer, too, in all parts.
- ``history``: recomputed tokens and TTFT over 200 turns, half truncation against drop-oldest;
  ``--counts-only`` likewise.
- ``relevance``: one joint request against parallel ones, cold and warm.

MiniLM embeddings (kept in the user's cache folder). Without ``--data`` the questions and passages
are the bundled sample's. The last line is one JSON object. Where ContextPilot is not installed its
figures are ``null``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from parts.prompts import history_tokens, relevance_checks
from parts.prompts.contextpilot_peer import has_contextpilot
from parts.prompts.document_orders import ORDERS, Ordered, core_us, order_all, order_limited
from parts.prompts.order_in_engine import Reported, on_engine
from parts.stats.intervals import geometric_mean_ratio
from parts.stats.tables import Cell, print_table
from parts.traffic.embedded import Embedder
from parts.traffic.questions import load_corpus
from parts.traffic.retrieval_streams import RetrievalStream, load_mmlu, question_texts, retrieve

from ragcache_integrations.core.texts import estimate_tokens
from ragcache_integrations.engine import RAGCacheEngine

K = 5
BLOCK = 32
SMALL = (0.05, 0.2)
LIMITS: tuple[dict[str, Any], ...] = (
    *({}, {"pin_top": 1}, {"max_displacement": 1}, {"max_displacement": 2}, {"pin_top": 2}),
    *({"order": "auto", "min_saved_share": share} for share in (0.1, 0.2, 0.4)),
)
PAIRS = {
    "cached_first": "contextpilot",
    "popularity": "contextpilot",
    "look_ahead": "contextpilot",
    "batch": "contextpilot_batch",
}
NAMES = (
    *("relevance", "cached_first", "popularity", "look_ahead", "contextpilot"),
    *("batch", "contextpilot_batch"),
)
ON_ENGINE = ("relevance", "cached_first", "contextpilot", "batch", "contextpilot_batch")


class Bench:
    """The material, at the size that was asked for.

    Args:
        options: The command line's.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.quick: bool = options.quick
        self.seeds = range(1 if self.quick else options.seeds)
        self.length = 300 if self.quick else 1000
        self.counts_only: bool = options.counts_only
        self.served = 30 if self.quick else self.length if self.counts_only else 150
        self.corpus = load_corpus(options.data)
        self.questions = dict(self.corpus.questions)
        if options.data is not None:
            self.questions["mmlu"] = load_mmlu(options.data)
        self.embed = Embedder(show_progress=not self.quick)
        self.passages: Sequence[str] = self.corpus.passages
        if self.quick:  # embedding takes longest: the beginnings of some will do
            self.questions = {name: asked[:150] for name, asked in self.questions.items()}
            self.passages = self.passages[:500]
        self.texts = {str(row): text for row, text in enumerate(self.passages)}
        self.lengths = {row: estimate_tokens(text) for row, text in self.texts.items()}
        self._streams: dict[int, list[RetrievalStream]] = {}

    def streams(self, seed: int) -> list[RetrievalStream]:
        """What is retrieved for every stream."""
        if seed not in self._streams:
            texts = dict(question_texts(self.questions, self.length, seed))
            cut = [text[:200] for text in self.passages] if self.quick else self.passages
            self._streams[seed] = retrieve(self.corpus, cut, texts, self.embed)
        return self._streams[seed]

    @cached_property
    def engine(self) -> RAGCacheEngine:
        """The engine, whose cache has room for all that is sent."""
        room = 1.0 if self.quick else 6.0
        arguments: dict[str, Any] = {"block_size": BLOCK}
        if self.quick:
            arguments["enforce_eager"] = True
        if self.quick or self.counts_only:
            arguments |= {"load_format": "dummy", "hf_overrides": {"num_hidden_layers": 1}}
        # Not every CPU has instructions for shorter numbers; what is cached is the same.
        return RAGCacheEngine(kv_cache_gib=room, dtype="float32", vllm_args=arguments)

    def close(self) -> None:
        """End the engine if there is one."""
        if "engine" in vars(self):
            self.engine.close()


Orders = dict[tuple[str, int], list[Ordered]]


def order(bench: Bench) -> dict[str, Any]:
    """Cached shares and times."""
    found: dict[int, Orders] = {}
    for k in (K,) if bench.quick else (K, 2, 3, 10):
        found[k] = {
            (stream.name, seed): order_all(stream.top(k), bench.lengths)
            for seed in bench.seeds
            for stream in bench.streams(seed)
        }
        print_shares(f"share of document tokens cached, k = {k}, unlimited cache", bench, found[k])
    result = {
        **in_short(bench, found[K], K),
        "order_by_k": {str(k): in_short(bench, orders, k) for k, orders in found.items() if k != K},
        "order_small_cache": small_caches(bench),
    }
    if not bench.quick:
        result["order_limited"] = limited(bench)
    return result


def in_short(bench: Bench, orders: Orders, k: int) -> dict[str, Any]:
    """Means over streams and seeds, and ratios to the peer's."""
    names = [one.name for one in next(iter(orders.values()))]
    by_name: dict[str, list[Ordered]] = {name: [] for name in names}
    for several in orders.values():
        for one in several:
            by_name[one.name].append(one)
    shares = {
        name: [share(bench, one, one.cached_tokens(bench.lengths)) for one in several]
        for name, several in by_name.items()
    }
    result: dict[str, Any] = {
        "order": means(shares, NAMES),
        "order_us": means(
            {name: [one.us for one in several] for name, several in by_name.items()}, NAMES[1:]
        ),
    }
    for ours, theirs in PAIRS.items():
        if theirs not in by_name:
            continue
        pairs = [
            (one.cached_tokens(bench.lengths), other.cached_tokens(bench.lengths))
            for one, other in zip(by_name[ours], by_name[theirs], strict=True)
        ]
        ratio = geometric_mean_ratio(pairs, average=np.mean)
        single = [sum(one) / sum(other) for one, other in pairs]
        times = [
            one.us / other.us for one, other in zip(by_name[ours], by_name[theirs], strict=True)
        ]
        result[f"{ours}_over_{theirs}"] = {
            "share": ratio.as_list(4),
            "worst_stream": round(min(single), 4),
            "time": round(statistics.geometric_mean(times), 5),
            "worst_time": round(max(times), 5),
        }
        print(
            f"k = {k}, {ours} over {theirs}: share {ratio}, worst {min(single):.3f}; "
            f"time {statistics.geometric_mean(times):.4f}"
        )
    return result


def share(bench: Bench, ordered: Ordered, cached: Sequence[int]) -> float:
    """Share of the stream's document tokens."""
    return sum(cached) / sum(bench.lengths[one] for sent in ordered.sent for one in sent)


def means(values: Mapping[str, Sequence[float]], names: Sequence[str]) -> dict[str, float | None]:
    """Mean of each, ``None`` for what was not measured."""
    return {
        name: round(statistics.fmean(values[name]), 4) if name in values else None for name in names
    }


def print_shares(title: str, bench: Bench, orders: Orders) -> None:
    """A row for each stream: shares in the first seed, and the median time over seeds."""
    names = list(ORDERS)
    rows: list[list[Cell]] = []
    for (stream, seed), several in orders.items():
        if seed == 0:
            shares = [share(bench, one, one.cached_tokens(bench.lengths)) for one in several]
            rows.append([stream, *shares])
    times = [[one.us for one in several] for several in orders.values()]
    rows.append(
        ["us a request", *(statistics.median(column) for column in zip(*times, strict=True))]
    )
    print_table(title, ["stream", *names], rows)


def small_caches(bench: Bench) -> dict[str, Any]:
    """Shares where the cache holds a part of the documents that are asked for."""
    result: dict[str, Any] = {}
    streams = bench.streams(0)[:2] if bench.quick else bench.streams(0)
    policies = ("vllm",) if bench.quick else ("vllm", "pgdsf")
    for part in SMALL[1:] if bench.quick else SMALL:
        for policy in policies:
            rows: list[list[Cell]] = []
            shares: dict[str, list[float]] = {}
            for stream in streams:
                requests = stream.top(K)
                asked = {one for request in requests for one in request}
                tokens = int(part * sum(bench.lengths[one] for one in asked))
                found = {
                    one.name: one.cached_share(bench.lengths, tokens, policy)
                    for one in order_all(requests, bench.lengths, tokens)
                }
                rows.append([stream.name, *found.values()])
                for name, value in found.items():
                    shares.setdefault(name, []).append(value)
            title = f"share cached, k = {K}, cache {part:.0%} of the documents, {policy}"
            print_table(title, ["stream", *shares], rows)
            result[f"{part:.0%} {policy}"] = means(shares, NAMES) | {
                f"{ours}_over_{theirs}": round(
                    statistics.geometric_mean(
                        one / other for one, other in zip(shares[ours], shares[theirs], strict=True)
                    ),
                    4,
                )
                for ours, theirs in PAIRS.items()
                if theirs in shares
            }
    return result


def limited(bench: Bench) -> dict[str, dict[str, float]]:
    """What pins and limits cost, unlimited cache."""
    rows: list[list[Cell]] = []
    result = {}
    for limits in LIMITS:
        streams = [stream.top(K) for stream in bench.streams(0)]
        orders = [order_limited(requests, bench.lengths, limits) for requests in streams]
        shares = [share(bench, one, one.cached_tokens(bench.lengths)) for one in orders]
        moved = statistics.fmean(
            documents != tuple(request)
            for one, requests in zip(orders, streams, strict=True)
            for documents, request in zip(one.sent, requests, strict=True)
        )
        rows.append([orders[0].name, moved, *shares])
        cached = round(statistics.fmean(shares), 4)
        result[orders[0].name] = {"cached": cached, "requests_moved": round(moved, 4)}
    names = [stream.name for stream in bench.streams(0)]
    title = f"share cached within limits, k = {K}, unlimited cache"
    print_table(title, ["limit", "requests moved", *names], rows)
    return result


def core(bench: Bench) -> dict[str, Any]:
    """Times of the search for the longest cached path."""
    result: dict[str, float] = {}
    rows: list[list[Cell]] = []
    for k in (K,) if bench.quick else (2, 3, K, 10):
        streams = {
            (stream.name, seed): core_us(stream.top(k), bench.lengths)
            for seed in bench.seeds
            for stream in bench.streams(seed)
        }
        result[f"k {k}"] = round(statistics.median(streams.values()), 4)
        rows.append([k, result[f"k {k}"], min(streams.values()), max(streams.values())])
    print_table("core of cached_first, us a request", ["k", "median", "least", "most"], rows)
    return {"order_core_us": result}


def engine(bench: Bench) -> dict[str, Any]:
    """Cached tokens and times to first token on the real engine."""
    result: dict[str, Any] = {}
    streams, texts = bench.streams(0), bench.texts
    if bench.quick:
        streams = [stream for stream in streams if "rephrased" in stream.name]
    if bench.quick or bench.counts_only:
        texts = {row: text[:300] for row, text in texts.items()}
    lengths = {row: estimate_tokens(text) for row, text in texts.items()}
    found: dict[str, dict[str, Reported]] = {}
    rows: list[list[Cell]] = []
    for stream in streams:
        orders = order_all(stream.top(K)[: bench.served], lengths)
        orders = [one for one in orders if one.name in ON_ENGINE]
        found[stream.name] = reported = on_engine(bench.engine, texts, orders)
        rows.append([stream.name, "share", *(one.share for one in reported.values())])
        if not bench.counts_only:
            rows.append(["", "TTFT ms", *(one.median_ms for one in reported.values())])
    title = f"on the engine: share of prompt tokens cached, k = {K}, {bench.served} requests"
    print_table(title, ["stream", "", *next(iter(found.values()))], rows)
    shares = {
        name: [reported[name].share for reported in found.values()]
        for name in next(iter(found.values()))
    }
    times = {
        name: [reported[name].median_ms for reported in found.values()]
        for name in next(iter(found.values()))
    }
    result["order_engine"] = {"share": means(shares, NAMES)}
    if not bench.counts_only:
        result["order_engine"]["ttft_ms"] = means(times, NAMES)
    for ours, theirs in PAIRS.items():
        if ours in shares and theirs in shares:
            pairs = [(one[ours].cached, one[theirs].cached) for one in found.values()]
            single = [sum(one) / sum(other) for one, other in pairs]
            found_ratio: dict[str, Any] = {
                "cached": round(statistics.geometric_mean(single), 4),
                "worst_stream": round(min(single), 4),
            }
            if not bench.quick:  # for an interval so few requests find too little
                interval = geometric_mean_ratio(pairs, average=np.mean)
                found_ratio["interval"] = interval.as_list(4)[1:]
            result["order_engine"][f"{ours}_over_{theirs}"] = found_ratio
            print(f"{ours} over {theirs}: cached tokens {found_ratio}")
    return result


def history(bench: Bench) -> dict[str, Any]:
    """Half truncation against drop-oldest."""
    return history_tokens.run(bench.quick, bench.engine, timed=not bench.counts_only)


def relevance(bench: Bench) -> dict[str, Any]:
    """Relevance checks, joint and parallel."""
    return relevance_checks.run(bench.quick, bench.engine)


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "order": order,
    "core": core,
    "engine": engine,
    "history": history,
    "relevance": relevance,
}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    parser.add_argument("--data", type=Path, help="folder with nq/, pubmedqa/ and mmlu/")
    parser.add_argument(
        "--counts-only",
        action="store_true",
        help="engine and history: on a model of one layer, which caches the same tokens sooner",
    )
    parser.add_argument("--seeds", type=int, default=3, help="streams of each kind")
    options = parser.parse_args()
    if not has_contextpilot():
        print("ContextPilot is not installed: pip install --no-deps contextpilot==0.5.0")
    wanted = PARTS if options.only is None else (options.only,)
    bench = Bench(options)
    result: dict[str, Any] = {}
    try:
        with ThreadPoolExecutor(1) as other:
            if options.quick and options.only != "order":
                # While questions are embedded; nothing is timed before it is there.
                starting = other.submit(lambda: bench.engine)
                bench.streams(0)
                starting.result()
        for name in wanted:
            result |= PARTS[name](bench)
    finally:
        bench.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
