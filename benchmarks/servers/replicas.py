"""Two replicas behind a router: by document, by session, and in turns.

Two ``ragcache serve`` processes on this machine, each on its share of the cores and with a small
cache of its own, stand behind a router that is installed here (HAProxy, nginx, vllm-router,
configured as in ``docs/scaling.md``); where there is none, the client makes the same choice, and
says so. The same requests at the same times are sent in each way, the caches emptied in between.

Documents are Natural Questions passages (with ``--data``, PubMedQA's abstracts too), joined to
longer ones, popular by Zipf's law. ``questions`` stand by themselves; ``conversations`` have three
turns, each with new documents behind the earlier turns. Requests arrive as a Poisson process at a
share of the rate that the replicas bear in turns; the first ones of each run warm up and are not
counted. The hit rate is the share of prompt tokens that the servers report as cached. TTFT ratios
are in turns over the other way, of medians; differences and ratios have 95 % intervals from drawing
the pairs of requests again. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from parts.servers.routers import BALANCE_FACTOR, ROUTERS, Route, installed, route
from parts.servers.servers import Server, start_together
from parts.stats.intervals import median_ratio
from parts.stats.tables import print_table
from parts.traffic.corpora import (
    bundled_documents,
    join_documents,
    read_documents,
)
from parts.traffic.routed_traffic import (
    KEYS,
    Delivered,
    Turn,
    deliver,
    hit_rate_difference,
    make_turns,
)

from ragcache_integrations.core.prompt import PromptRenderer
from ragcache_integrations.engine.tiny_model import default_model_path

BLOCK = 32
OUTPUT_TOKENS = 8
IN_TURNS = "round robin"
BY_DOCUMENT = "document"
UNBOUNDED = "document, no bound"
CONVERSATION_TURNS = 3
START_SECONDS = 300.0
QUESTION_TOKENS = 96
"""Room for the question and what the chat template adds, per turn."""


@dataclass(frozen=True)
class Side:
    """One way of bringing requests to replicas."""

    name: str
    key: str
    through: Route


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    options: argparse.Namespace
    texts: Mapping[str, str]
    renderer: PromptRenderer
    servers: Sequence[Server]
    sides: Sequence[Side]
    model: str

    def turns(self, kind: str, requests: int, seed: int) -> list[Turn]:
        """The requests of a run."""
        return make_turns(
            self.texts,
            requests=requests,
            turns=CONVERSATION_TURNS if kind == "conversations" else 1,
            top_k=self.options.top_k,
            exponent=self.options.exponent,
            sessions=self.options.sessions,
            seed=seed,
        )

    def run(
        self, side: Side, turns: Sequence[Turn], gaps: Sequence[float] | None
    ) -> tuple[Delivered, float]:
        """Empty the caches, warm up and measure; without gaps, as fast as the replicas can.

        Returns:
            What became of the requests behind the warm-up, and the seconds that these took.
        """
        for server in self.servers:
            server.reset_cache()
        warm_up = self.options.warm_up
        settings: dict[str, Any] = {"model": self.model, "output_tokens": OUTPUT_TOKENS}
        ask = KEYS[side.key]
        together = 2 * len(self.servers)
        first, rest = turns[:warm_up], turns[warm_up:]
        deliver(side.through, ask, first, self.renderer, concurrency=together, **settings)
        before = self._answered()
        arrivals = None if gaps is None else np.cumsum(gaps[: len(rest)]).tolist()
        delivered, seconds = deliver(
            side.through,
            ask,
            rest,
            self.renderer,
            arrivals=arrivals,
            concurrency=together,
            **settings,
        )
        served = [now - then for now, then in zip(self._answered(), before, strict=True)]
        delivered.busiest.append(max(served) / sum(served))
        return delivered, seconds

    def _answered(self) -> list[float]:
        return [server.metric("vllm:request_success_total") for server in self.servers]


def compare(bench: Bench, kind: str) -> dict[str, Delivered]:
    """Send the same requests in each way, over all seeds."""
    options = bench.options
    delivered = {side.name: Delivered() for side in bench.sides}
    total = options.warm_up + options.requests
    in_turns = next(side for side in bench.sides if side.name == IN_TURNS)
    _, seconds = bench.run(in_turns, bench.turns(kind, total, seed=999), None)
    rate = options.load * options.requests / seconds
    print(f"\n{kind}: {rate:.2f} requests a second, {options.load:g} of what round robin bears")
    order = list(bench.sides)
    for seed in range(options.seeds):
        turns = bench.turns(kind, total, seed)
        gaps = np.random.default_rng([seed, 3]).exponential(1 / rate, options.requests).tolist()
        for side in order:
            run, _ = bench.run(side, turns, gaps)
            delivered[side.name].extend(run)
        order.append(order.pop(0))
        rates = {name: one.hit_rate for name, one in delivered.items()}
        shown = ", ".join(f"{name} {value:.3f}" for name, value in rates.items())
        print(f"hit rates after seed {seed}: {shown}", flush=True)
    return delivered


def show(kind: str, delivered: Mapping[str, Delivered]) -> dict[str, Any]:
    """Print a table, and give its figures."""
    baseline = delivered[IN_TURNS]
    rows: list[list[Any]] = []
    figures: dict[str, Any] = {}
    for name, one in delivered.items():
        difference = hit_rate_difference(one, baseline)
        ratio = median_ratio(baseline.ttft, one.ttft)
        median, late = one.milliseconds(0.5), one.milliseconds(0.9)
        busiest = float(np.mean(one.busiest))
        rows.append([name, one.hit_rate, str(difference), median, late, str(ratio), busiest])
        figures[name] = {
            "hit_rate": round(one.hit_rate, 4),
            "minus_round_robin": difference.as_list(4),
            "ttft_median_ms": round(median, 2),
            "ttft_p90_ms": round(late, 2),
            "ttft_ratio": ratio.as_list(4),
            "busiest_share": round(busiest, 4),
        }
    head = ["by", "hit rate", "minus round robin", "median ms", "p90 ms", "round robin / it"]
    print_table(f"{kind}: {len(baseline.ttft)} requests", [*head, "busiest"], rows)
    return figures


def load_texts(options: argparse.Namespace, renderer: PromptRenderer) -> dict[str, str]:
    """Long documents by id."""
    documents = bundled_documents()
    if options.data is not None:
        documents = read_documents(options.data / "nq" / "passages.jsonl.gz")
        documents |= read_documents(options.data / "pubmedqa" / "pubmedqa.json")
    names = np.random.default_rng(0).permutation(list(documents))[: options.documents].tolist()
    lengths = {name: len(renderer.tokenize(documents[name])) for name in names}
    low, high = options.document_tokens
    joined, part_of = join_documents(lengths, low=low, high=high, seed=0)
    texts = dict.fromkeys(joined, "")
    for name in names:
        texts[part_of[name]] += documents[name] + "\n\n"
    return texts


def server_arguments(
    options: argparse.Namespace, texts: Mapping[str, str], renderer: PromptRenderer, turns: int
) -> tuple[list[str], int]:
    """Those of a replica with room for a share of the documents, and that room in tokens."""
    lengths = [len(renderer.tokenize(text)) for text in texts.values()]
    turn = options.top_k * max(lengths) + QUESTION_TOKENS
    context = -(-(turns * turn + OUTPUT_TOKENS) // BLOCK) * BLOCK
    room = max(int(options.share * sum(lengths)), context)
    arguments = [
        *(options.model, "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", str(context), "--block-size", str(BLOCK)),
        *("--num-gpu-blocks-override", str(-(-room // BLOCK) + 1)),
    ]
    return arguments, room


def open_sides(stack: ExitStack, name: str, replicas: Sequence[str], *, quick: bool) -> list[Side]:
    """The ways that are compared."""
    affine = stack.enter_context(route(name, replicas))
    in_turns = affine
    if name == "vllm-router":  # without a key, it goes by the request's content
        in_turns = stack.enter_context(route(name, replicas, affine=False))
    sides = [
        Side(IN_TURNS, IN_TURNS, in_turns),
        Side("session", "session", affine),
        Side(BY_DOCUMENT, BY_DOCUMENT, affine),
    ]
    if name in {"haproxy", "client"} and not quick:
        unbounded = stack.enter_context(route(name, replicas, factor=0))
        sides.append(Side(UNBOUNDED, BY_DOCUMENT, unbounded))
    return sides


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--router", choices=ROUTERS, help="the first that is installed by default")
    parser.add_argument("--model", default="", help="path or hub name; a tiny random one if none")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--data", type=Path, help="a folder of data sets; bundled if not given")
    parser.add_argument("--documents", type=int, default=600, help="how many of the passages")
    parser.add_argument(
        "--document-tokens", type=int, nargs=2, default=(200, 500), metavar=("LOW", "HIGH")
    )
    parser.add_argument("--share", type=float, default=0.1, help="of the documents, in each cache")
    parser.add_argument("--top-k", type=int, default=2, help="documents in a turn")
    parser.add_argument("--exponent", type=float, default=1.0, help="Zipf's")
    parser.add_argument("--sessions", type=int, default=16, help="at a time")
    parser.add_argument("--requests", type=int, default=80, help="for each way and seed")
    parser.add_argument("--warm-up", type=int, default=60, help="requests before them")
    parser.add_argument("--load", type=float, default=0.6, help="of what round robin bears")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", choices=("questions", "conversations"), help="one part of it")
    options = parser.parse_args()
    if options.quick:
        options.requests, options.warm_up, options.seeds, options.load = 14, 10, 1, 0.8
        options.documents, options.only = 120, "questions"
    options.model = options.model or str(default_model_path())
    return options


def main() -> None:
    """Run and print."""
    options = parse()
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds; not for --help

    renderer = PromptRenderer(AutoTokenizer.from_pretrained(options.model))
    texts = load_texts(options, renderer)
    kinds = [options.only] if options.only else ["questions", "conversations"]
    turns = CONVERSATION_TURNS if "conversations" in kinds else 1
    arguments, room = server_arguments(options, texts, renderer, turns)
    router = options.router or installed()
    where = "the client itself, there being no router" if router == "client" else router
    if router in {"haproxy", "client"}:
        where += f", at most {BALANCE_FACTOR} % of the mean load on a replica"
    print(f"{options.replicas} replicas with room for {room} tokens each; {len(texts)} documents")
    print(f"routed by {where}", flush=True)
    environment = {"VLLM_SERVER_DEV_MODE": "1"}  # lets the cache be emptied
    result: dict[str, Any] = {"router": router, "replicas": options.replicas}
    with ExitStack() as stack:
        servers = stack.enter_context(
            start_together(options.replicas, arguments, environment, START_SECONDS)
        )
        addresses = [server.address for server in servers]
        sides = open_sides(stack, router, addresses, quick=options.quick)
        bench = Bench(options, texts, renderer, servers, sides, servers[0].model)
        for kind in kinds:
            result[kind] = show(kind, compare(bench, kind))
    for kind, name in itertools.product(kinds, ("session", BY_DOCUMENT)):
        low, high = result[kind][name]["minus_round_robin"][1:]
        print(f"{kind}, by {name}: hit rate {low:+.3f} to {high:+.3f} compared with round robin")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
