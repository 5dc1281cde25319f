"""Three agents that share an engine with other users: LRU, the knowledge tree, and hints.

A planner, a writer and a critic each have a long fixed prompt (tools, examples) and the text so
far. Between two of their steps, while tools answer, other users' requests push out what was cached.
The systems have the same memory in both tiers, live at once, and answer the same runs in turns, the
order reversed each time:

- the tree with LRU;
- the tree as it is by default;
- the same with hints: each step says which steps its graph leads to (KVFlow,
  https://arxiv.org/abs/2507.07400);
- stock vLLM, whose prefix cache is LRU, with the memory of both tiers as one.

The first run of each seed warms up and is not counted. Ratios are of mean times to the first token
of the agents' steps, above 1 where hints are faster, with 95 % intervals from drawing pairs of
steps again. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from parts.servers.serving import Served, serve
from parts.stats.intervals import mean_ratio, median_ratio
from parts.traffic.corpora import bundled_documents, bundled_questions, join_documents
from parts.traffic.traces import document_stream
from parts.workflows.agents import AGENTS, runs_of
from parts.workflows.serving import Schedule, serve_run

from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_workbench.evaluation.scores import Interval
from ragcache_workbench.workload_report.run import read_model_facts

BLOCK = 32
OUTPUT_TOKENS = 4
GIB = 1 << 30
REST_SECONDS = 0.3
"""After a run, in which what is computed ahead ends, before another system's turn."""
FALLBACK_TOKEN_BYTES = 1 << 17

LRU, TREE, HINTS, STOCK = "LRU", "tree", "hints", "stock"
POLICIES = {LRU: "lru", TREE: "lrfu", HINTS: "lrfu"}


class Bench:
    """The texts, and the systems."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.model = options.model or str(default_model_path())
        facts = read_model_facts(self.model)
        # They are for 16-bit numbers.
        scale = 2 if options.dtype == "float32" else 1
        self.token_bytes = scale * (facts.kv_bytes_per_token or FALLBACK_TOKEN_BYTES)
        self.questions = bundled_questions()
        passages = bundled_documents()
        names = iter(passages)
        lengths = {name: facts.count_tokens(text) for name, text in passages.items()}
        self.rules = {
            agent: _text_of(names, passages, lengths, options.rules_tokens) for agent in AGENTS
        }
        self.passages = [passages[name] for name in itertools.islice(names, 100)]
        rest = {name: lengths[name] for name in itertools.islice(names, options.documents)}
        low, high = options.document_tokens
        joined, part_of = join_documents(rest, low=low, high=high, seed=0)
        self.documents = dict.fromkeys(joined, "")
        for name in rest:
            self.documents[part_of[name]] += passages[name] + "\n\n"
        self.tokens = joined
        longest = options.rules_tokens + 300 * options.sections + 300 + 2 * high
        self.context = -(-longest // BLOCK) * BLOCK

    @contextmanager
    def engines(self) -> Iterator[dict[str, RAGCacheEngine]]:
        """The systems, started side by side."""
        gpu, host = self.options.gpu_tokens, self.options.host_tokens
        makers = {
            name: self._engine(gpu, policy=policy, host_cache_gib=host * self.token_bytes / GIB)
            for name, policy in POLICIES.items()
        }
        if not self.options.quick:
            makers[STOCK] = self._engine(gpu + host, knowledge_tree=False)
        with ExitStack() as stack, ThreadPoolExecutor(len(makers)) as threads:
            started = {name: threads.submit(maker.__enter__) for name, maker in makers.items()}
            for maker in makers.values():
                stack.push(maker.__exit__)
            yield {name: engine.result() for name, engine in started.items()}

    @contextmanager
    def _engine(self, tokens: int, **knobs: Any) -> Iterator[RAGCacheEngine]:
        arguments: dict[str, Any] = {
            "block_size": BLOCK,
            "enforce_eager": True,
            "num_gpu_blocks_override": -(-max(tokens, self.context) // BLOCK) + 1,
        }
        with RAGCacheEngine(
            self.model,
            max_model_len=self.context,
            dtype=self.options.dtype,
            kv_cache_gib=self.options.kv_cache_gib,
            vllm_args=arguments,
            **knobs,
        ) as engine:
            yield engine

    def others(self, requests: int, seed: int) -> list[Prompt]:
        """Other users' questions over two documents each."""
        trace = document_stream(
            self.tokens, top_k=2, requests=requests, exponent=self.options.exponent, seed=seed
        )
        return [
            Prompt.rag(
                self.questions[number % len(self.questions)],
                [PromptDocument(self.documents[name], name) for name, _ in request.documents],
                system="Answer from the documents, and from nothing else.",
            )
            for number, request in enumerate(trace.requests)
        ]


class Measured(dict[str, tuple[Served, Served]]):
    """What each system did: the agents' steps, and the other requests."""

    def ratio(self, baseline: str, *, users: bool = False, median: bool = False) -> Interval:
        """The baseline's time to the first token over that with hints."""
        average = median_ratio if median else mean_ratio
        slow, fast = (self[name][users].ttft for name in (baseline, HINTS))
        return average(slow, fast)


def measure(bench: Bench, engines: dict[str, RAGCacheEngine], seeds: int) -> Measured:
    """Run the workflow on each system in turns."""
    measured = Measured({name: (Served(), Served()) for name in engines})
    options = bench.options
    for seed in range(seeds):
        runs = runs_of(bench.rules, bench.passages, sections=options.sections, seed=seed)
        steps = next(runs)
        between = options.between * len(steps)
        others = iter(bench.others(options.warm_up + between * (options.runs + 1), seed))
        first = list(itertools.islice(others, options.warm_up))
        rate = 0.0
        for name, engine in engines.items():
            engine.reset_cache()
            served = serve(engine, first, None, OUTPUT_TOKENS)
            if name == LRU:  # what it can bear says how often requests arrive
                rate = options.load * len(first) / served.seconds
        sides = list(engines.items())
        for number in range(options.runs + 1):
            stretch = list(itertools.islice(others, between))
            schedule = _schedule(len(steps), stretch, rate, [seed, number])
            for name, engine in sides:
                outcome = serve_run(
                    engine, steps, stretch, schedule, OUTPUT_TOKENS, hints=name == HINTS
                )
                time.sleep(REST_SECONDS)
                if number:
                    for whole, part in zip(measured[name], outcome, strict=True):
                        whole.extend(part)
            sides.reverse()
            steps = next(runs)
        print(f"seed {seed}: {_medians(measured)}", flush=True)
    return measured


def report(measured: Measured) -> dict[str, Any]:
    """Print what was measured, and return it."""
    print(
        f"\n{'agents':8} {'mean TTFT':>12} {'median':>12} {'cached':>8}"
        f" {'others: mean TTFT':>18}  mean TTFT / hints"
    )
    for name, (agents, users) in measured.items():
        mean, median = statistics.fmean(agents.ttft), statistics.median(agents.ttft)
        print(
            f"{name:8} {1e3 * mean:9.1f} ms {1e3 * median:9.1f} ms {agents.cached_share:8.3f}"
            f" {1e3 * statistics.fmean(users.ttft):15.1f} ms"
            f"  {'-' if name == HINTS else measured.ratio(name)}"
        )
    equal = [
        len(set(answers)) == 1
        for place in (0, 1)
        for answers in zip(*(served[place].tokens for served in measured.values()), strict=True)
    ]
    result: dict[str, Any] = {}
    for name in measured.keys() - {HINTS}:
        key = name.lower()
        result[f"{key}_over_hints"] = measured.ratio(name).as_list(4)
        result[f"{key}_over_hints_median"] = measured.ratio(name, median=True).as_list(4)
        result[f"{key}_over_hints_others"] = measured.ratio(name, users=True).as_list(4)
    return {
        **dict(sorted(result.items())),
        "cached_share": {
            name: round(agents.cached_share, 4) for name, (agents, _) in measured.items()
        },
        "answers": {"prompts": len(equal), "equal": sum(equal)},
        "steps": len(measured[HINTS][0].ttft),
    }


def _text_of(
    names: Iterator[str], passages: dict[str, str], lengths: dict[str, int], tokens: int
) -> str:
    """A text of passages that nothing else uses, with so many tokens at least."""
    text, length = "", 0
    while length < tokens:
        name = next(names)
        text += passages[name] + "\n\n"
        length += lengths[name]
    return text


def _schedule(steps: int, others: list[Prompt], rate: float, seed: list[int]) -> Schedule:
    """Other requests arrive at random, and steps begin at random within equal times."""
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1 / rate, size=len(others)))
    starts = (np.arange(steps) + draw.uniform(0.25, 0.75, size=steps)) * arrivals[-1] / steps
    return Schedule(starts.tolist(), arrivals.tolist())


def _medians(measured: Measured) -> str:
    return ", ".join(
        f"{name} {1e3 * statistics.median(agents.ttft):.1f} ms"
        for name, (agents, _) in measured.items()
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than 90 seconds")
    parser.add_argument("--model", help="path or hub name; a tiny random one by default")
    parser.add_argument("--dtype", default="float32", help="float32 lets answers be compared")
    parser.add_argument("--kv-cache-gib", type=float, default=0.5, help="is cut to the tier's size")
    parser.add_argument("--gpu-tokens", type=int, default=4500, help="of the GPU's tier")
    parser.add_argument("--host-tokens", type=int, default=3000, help="of the host's tier")
    parser.add_argument("--rules-tokens", type=int, default=800, help="of each agent's fixed part")
    parser.add_argument("--sections", type=int, default=2, help="of a text; five steps each")
    parser.add_argument("--runs", type=int, default=3, help="of the workflow, for each seed")
    parser.add_argument("--between", type=int, default=8, help="other requests for each step")
    parser.add_argument("--load", type=float, default=0.5, help="share of what LRU can bear")
    parser.add_argument("--exponent", type=float, default=1.0, help="of documents' popularity")
    parser.add_argument("--documents", type=int, default=400, help="passages of other users")
    parser.add_argument("--document-tokens", type=int, nargs=2, default=(200, 400))
    parser.add_argument("--warm-up", type=int, default=80, help="other requests at the beginning")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.runs, options.sections = 1, 1, 1
        options.between, options.warm_up = 4, 20
    bench = Bench(options)
    with bench.engines() as engines:
        measured = measure(bench, engines, options.seeds)
    print(json.dumps(report(measured)))


if __name__ == "__main__":
    main()
