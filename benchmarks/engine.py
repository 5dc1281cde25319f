"""Our engine beside stock vLLM: the same prompts, the same KV memory, both with prefix caching.

Both live at once and answer in turns, the order alternating, so that a drifting machine hits both.
A turn is several questions long, and ours waits until stock vLLM's worker, which spins for a second
after its last request, has gone to sleep.
Stock vLLM is ``AsyncLLM`` as it comes (``ragcache_workbench/demo/engines.py``).
Prompts are questions over retrieved passages with Zipf popularity, so that some find their prefix
cached.

The last line is one JSON object: medians in ms, the median of the paired ratios ours / stock, and a
95 % bootstrap interval of that median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import parts  # noqa: F401 - says which model computes

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.engine import Message, Prompt, PromptDocument, RAGCacheEngine
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.resources import load_passages, load_questions
from ragcache_workbench.demo.engines import StockEngine
from ragcache_workbench.evaluation.scores import bootstrap_interval
from ragcache_workbench.simulation.traces import zipf_ranks

KV_CACHE_GIB = 0.25
OUTPUT_TOKENS = 8
DOCUMENTS = 4
TURN = 20
STOCK_SPIN_SECONDS = 1.1
SYSTEM = "Answer from the documents."


@dataclass
class Timings:
    """Per request, in ms."""

    ttft: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)
    cached_tokens: int = 0


def prompts(count: int, seed: int) -> Iterator[Prompt]:
    """Questions with Zipf(0.8) popularity, each over the same passages whenever it is asked."""
    generator = np.random.default_rng(seed)
    passages, questions = load_passages(), load_questions()
    order = generator.permutation(len(questions))
    for rank in zipf_ranks(len(questions), count, 0.8, generator):
        number = int(order[rank])
        chosen = [passages[(number * DOCUMENTS + i) % len(passages)] for i in range(DOCUMENTS)]
        yield Prompt.rag(
            questions[number].text,
            [PromptDocument(passage.text, passage.id) for passage in chosen],
            system=SYSTEM,
        )


def plain(message: Message) -> dict[str, str]:
    """A message as stock vLLM takes it."""
    return {"role": message.role, "content": message.text}


def ask_ours(engine: RAGCacheEngine, prompt: Prompt, timings: Timings) -> None:
    """Answer with our engine."""
    began = time.perf_counter()
    stream = engine.stream(prompt, SamplingOptions(max_tokens=OUTPUT_TOKENS))
    first = next(stream)
    timings.ttft.append(1e3 * (time.perf_counter() - began))
    stream.result()
    timings.total.append(1e3 * (time.perf_counter() - began))
    timings.cached_tokens += first.usage.cached_tokens if first.usage else 0


def ask_stock(engine: StockEngine, prompt: Prompt, timings: Timings) -> None:
    """Answer with stock vLLM."""
    began = time.perf_counter()
    chunks = engine.stream([plain(message) for message in prompt.messages], OUTPUT_TOKENS)
    first = next(chunks)
    timings.ttft.append(1e3 * (time.perf_counter() - began))
    for _ in chunks:
        pass
    timings.total.append(1e3 * (time.perf_counter() - began))
    timings.cached_tokens += first.cached_tokens


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 40 requests")
    parser.add_argument("--model", help="path or hub name; a tiny random one by default")
    parser.add_argument("--requests", type=int, default=200, help="for each seed")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    requests, seeds = (40, 1) if arguments.quick else (arguments.requests, arguments.seeds)
    model = arguments.model or str(default_model_path())

    ours, stock = Timings(), Timings()
    with (
        RAGCacheEngine(model, kv_cache_gib=KV_CACHE_GIB) as our_engine,
        StockEngine(model, KV_CACHE_GIB) as stock_engine,
    ):
        turns: list[Callable[[Prompt], None]] = [
            lambda prompt: ask_ours(our_engine, prompt, ours),
            lambda prompt: ask_stock(stock_engine, prompt, stock),
        ]
        for prompt in prompts(10, seed=-1 % 2**32):  # warm-up
            ask_ours(our_engine, prompt, Timings())
            ask_stock(stock_engine, prompt, Timings())
        for seed in range(seeds):
            our_engine.reset_cache()
            stock_engine.reset_cache()
            asked = list(prompts(requests, seed))
            for start in range(0, len(asked), TURN):
                for turn in turns:
                    time.sleep(STOCK_SPIN_SECONDS)
                    for prompt in asked[start : start + TURN]:
                        turn(prompt)
                turns.reverse()

    result: dict[str, object] = {
        "requests": len(ours.ttft),
        "cached_tokens": {"ours": ours.cached_tokens, "stock": stock.cached_tokens},
    }
    print(f"{'':8}{'ours':>10}{'stock':>10}{'ratio':>8}  95 % interval")
    for name in ("ttft", "total"):
        mine, theirs = getattr(ours, name), getattr(stock, name)
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        ratio, *bounds = bootstrap_interval(np.median, [ratios]).as_list(4)
        medians = statistics.median(mine), statistics.median(theirs)
        print(f"{name:8}{medians[0]:8.1f}ms{medians[1]:8.1f}ms{ratio:8.3f}  {bounds}")
        result[f"{name}_ms"] = {"ours": round(medians[0], 2), "stock": round(medians[1], 2)}
        result[f"{name}_ratio"] = ratio
        result[f"{name}_ratio_interval"] = bounds
    print(json.dumps(result))


if __name__ == "__main__":
    main()
