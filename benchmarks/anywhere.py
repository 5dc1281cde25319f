"""Reuse anywhere beside stock vLLM: the same prompts, the same model, an equal KV pool.

Stock is ``RAGCacheEngine(knowledge_tree=False)``: unmodified vLLM with its prefix caching on, warm,
and compiled as it does by default. Both engines live at once and take turns. Ratios are stock over
ours, of medians over the same requests, with 95 % intervals from drawing the pairs again; above 1
ours is faster. The first requests warm up and are not counted.

- ``lengths``: five documents of 512 tokens in a new order each time, all of them stored: the time
  to the first token by the number of link tokens, beside full prefill, vLLM's own hit of the whole
  prompt (the bound), and the engine on transformers (``modular``). How much of it is turning keys
  and writing them is measured in vLLM's worker.
- ``half``, ``low``, ``saturated``: questions of Natural Questions that each come once, over the
  five passages that a keyword search finds, as a Poisson process at half of the rate that stock
  bears, one after another, and all at the same time. *Encoded*: the passages were encoded ahead.
  *Met*: nothing was; they are computed when they are met, and encoded when the engine is idle, for
  which each stretch waits in the end. What the store holds is printed, and with ``--larger`` there
  is a row for stock with the store's memory added to its KV pool.
- ``answers``: F1 of the bundled sample's questions, which the bundled reader was not taught, in
  full and with 16 and 0 link tokens, and how many exact answers, computed in the same steps as
  approximate ones, are stock's.
- ``restart``: five documents of 512 tokens that another engine has stored on disk, which has ended,
  and of which memory holds none: full prefill over reading them. *Exact*: it has answered the same
  prompts, and what the knowledge tree had of them is read.

A GPU's peer, LMCache's blending, needs a changed vLLM; the command is printed. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from parts.anywhere.timed_worker import TIMES
from parts.servers.serving import Served, serve
from parts.stats.intervals import median_ratio
from parts.stats.tables import Cell, print_table
from parts.traffic.corpora import lexical_top_k

from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.arguments import bundled_dtype
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_modular import ModularEngine
from ragcache_modular.backend import make_modular_engine
from ragcache_modular.kv.strategies import Epic
from ragcache_workbench.demo.apps import SYSTEM, question_part
from ragcache_workbench.evaluation.datasets import EvalQuestion, load_dataset, token_f1
from ragcache_workbench.evaluation.scores import Interval, bootstrap_interval

GIB = 1 << 30
READ, READ_EXACT = "read from disk, 16 link tokens", "read from disk, exact"
OUTPUT_TOKENS = 8
ANSWER_TOKENS = 24
DOCUMENTS, LENGTH, K = 5, 512, 5
CONTEXT = 4096
TURN = 4
LINKS = (0, 8, 16, 32)
MODULAR_REPEATS = 2
"""Prompts for the engine on transformers, which takes longest."""
LOADS = {"half": 0.5, "low": None, "saturated": float("inf")}
PARTS = ("lengths", *LOADS, "answers", "restart")
LMCACHE = (
    "git clone https://github.com/LMCache/LMCache && cd LMCache/examples/blend_kv_v1 && "
    "python blend.py  # its README says what to change in vLLM"
)


class Bench:
    """Questions, their passages, and the engines, which are started when a part needs them."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.options, self.stack = options, stack
        self.model = options.model or str(default_model_path())
        data = "bundled" if options.data is None else str(options.data / "nq")
        nq = load_dataset("nq", data)
        self.texts = {document.id: document.text for document in nq.documents}
        self.questions = shuffled(nq.questions, options.seed)
        self._engines: dict[str, RAGCacheEngine] = {}
        self._asked = 0
        self._folder = Path(stack.enter_context(TemporaryDirectory()))
        self.times = self._folder / "times"

    def engine(self, name: str) -> RAGCacheEngine:
        """``ours``, ``stock``, or ``larger``: stock with the store's bytes as KV memory."""
        if not self._engines:  # nothing is timed yet, so these two may start side by side
            with ThreadPoolExecutor() as threads:
                starts = {each: threads.submit(self._start, each) for each in ("ours", "stock")}
            for each, start in starts.items():
                self._engines[each] = self.stack.enter_context(start.result())
        if name not in self._engines:
            self._engines[name] = self.stack.enter_context(self._start(name))
        return self._engines[name]

    def _start(self, name: str) -> RAGCacheEngine:
        gib, store = self.options.kv_cache_gib, self.options.document_cache_gib
        if name == "ours":
            exact = self.options.exact_documents
            knobs = {"document_cache_gib": store, "exact_documents": exact}
            return self.started(gib, reuse="anywhere", **knobs)
        return self.started(gib + store if name == "larger" else gib, knowledge_tree=False)

    def started(self, kv_cache_gib: float, **knobs: Any) -> RAGCacheEngine:
        """An engine of its own."""
        arguments: dict[str, Any] = {}
        if knobs.get("reuse") and self.options.timed:
            os.environ[TIMES] = str(self.times)
            path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
            arguments["worker_cls"] = "parts.anywhere.timed_worker.TimedWorker"
        return RAGCacheEngine(
            self.model,
            kv_cache_gib=kv_cache_gib,
            max_model_len=CONTEXT,
            dtype="auto" if self.options.model else bundled_dtype(),
            vllm_args=arguments,
            **knobs,
        )

    def new_questions(self, count: int) -> list[EvalQuestion]:
        """The next ones, which no part has asked before."""
        chosen = self.questions[self._asked : self._asked + count]
        if len(chosen) < count:
            msg = f"there are {len(self.questions)} questions; give more by --data, or ask fewer"
            raise SystemExit(msg)
        self._asked += count
        return chosen

    def prompts(
        self, questions: Sequence[EvalQuestion], passages: Mapping[str, str] | None = None
    ) -> tuple[list[Prompt], list[str]]:
        """The questions' prompts, and all of their documents, which are found among passages."""
        texts = self.texts if passages is None else passages
        found = lexical_top_k([question.text for question in questions], texts, K)
        prompts = [
            Prompt.rag(
                question_part(question.text),
                [PromptDocument(texts[name], name) for name in names],
                system=SYSTEM,
            )
            for question, names in zip(questions, found, strict=True)
        ]
        names = dict.fromkeys(name for some in found for name in some)
        return prompts, [texts[name] for name in names]

    def long_documents(self, engine: RAGCacheEngine, count: int) -> list[str]:
        """Documents of passages joined, of :data:`LENGTH` tokens each."""
        words = " ".join(self.texts.values()).split()
        documents, at = [], 0
        for _ in range(count):
            end = at + LENGTH // 2
            while engine.count_tokens(" ".join(words[at:end])) < LENGTH:
                end += 4
            documents.append(" ".join(words[at:end]))
            at = end
        return documents


def shuffled(questions: Sequence[EvalQuestion], seed: int) -> list[EvalQuestion]:
    """Questions in an order that the seed decides."""
    order = np.random.default_rng(seed).permutation(len(questions))
    return [questions[number] for number in order]


def first_token(ask: Callable[[], Any]) -> float:
    """Seconds to the first piece of an answer."""
    begun = time.perf_counter()
    stream = ask()
    next(stream)
    seconds = time.perf_counter() - begun
    stream.result()
    return seconds


def lengths(bench: Bench) -> dict[str, Any]:
    """First tokens over stored documents, by the number of link tokens."""
    options = bench.options
    dice = np.random.default_rng(options.seed)
    documents = bench.long_documents(bench.engine("ours"), DOCUMENTS + 2)
    bench.engine("ours").encode(documents)
    modular = None
    if options.modular:
        modular = make_modular_engine(
            options.model,
            dtype=None,
            device=None,
            kv_cache_gib=None,
            policy="lru",
            chat_template=None,
        )
        for stored in (documents[:DOCUMENTS], documents[-DOCUMENTS:]):  # all of them
            modular.prefill(Prompt.rag("What is said?", stored, system=SYSTEM))
    times: dict[str, list[float]] = {}
    moving: list[float] = []
    for number in range(options.repeats + 1):
        chosen = dice.permutation(documents)[:DOCUMENTS].tolist()
        prompt = Prompt.rag(f"What is said of number {number}?", chosen, system=SYSTEM)
        ways = ways_of(bench, modular, prompt, f"lengths {number}")
        if number == MODULAR_REPEATS:
            modular = None
        order = list(ways)
        for name in [*order[2:], *order[:2]] if number % 2 else order:
            bench.times.write_text("")
            seconds = first_token(ways[name])
            if not number:
                continue
            times.setdefault(name, []).append(seconds)
            if name == "16" and options.timed:
                moving.append(sum(map(float, bench.times.read_text().split())) / seconds)
    rows: list[list[Cell]] = []
    ratios: dict[str, Interval] = {}
    for name, some in times.items():
        ratios[name] = median_ratio(times["full"][: len(some)], some)
        rows.append([name, 1e3 * statistics.median(some), str(ratios[name])])
    place = f"{DOCUMENTS}x{LENGTH}"
    title = f"{place} tokens, all stored: time to first token by link tokens"
    print_table(title, ["way", "ms", "full / this"], rows)
    share = statistics.median(moving) if moving else None
    if share is not None:
        print(f"\nturning keys and writing take {share:.1%} of the time at 16 link tokens")
    return {
        "ttft_ratio": {place: {name: ratio.as_list(3) for name, ratio in ratios.items()}},
        "moving_share_at_16": share and round(share, 4),
    }


def ways_of(
    bench: Bench, modular: ModularEngine | None, prompt: Prompt, tenant: str
) -> dict[str, Callable[[], Any]]:
    """Ways to answer a prompt, the first two by stock: with nothing of it cached, and all of it."""
    one = SamplingOptions(max_tokens=1)
    stock = partial(bench.engine("stock").stream, prompt, one, namespace=tenant)
    ways: dict[str, Callable[[], Any]] = {"full": stock, "prefix": stock}
    for links in bench.options.links:
        ways[str(links)] = partial(bench.engine("ours").stream, prompt, one, link_tokens=links)
    if modular is not None:
        for links in (0, 16):
            engine = modular.with_strategy(Epic(links))
            ways[f"transformers, {links}"] = partial(engine.stream, prompt, one)
    return ways


def drain(engine: RAGCacheEngine) -> None:
    """Wait until an engine has encoded what it has met."""
    while (load := engine.load()).running_requests or load.waiting_requests:
        time.sleep(0.1)


def stream(bench: Bench, part: str) -> dict[str, Any]:
    """Questions that come once, at one load."""
    options, ours, stock = bench.options, bench.engine("ours"), bench.engine("stock")
    # Each side has a tenant of its own: a first document that is computed exactly for one of them
    # would serve the others.
    tenants = ["encoded, 16"] if options.quick else ["encoded, 16", "encoded, 0"]
    sides: dict[str, Callable[..., Served]] = {
        "stock": partial(serve, stock),
        "met, 16": partial(serve, ours, link_tokens=16, namespace=f"met {part}"),
    }
    for name, links in zip(tenants, (16, 0), strict=False):
        sides[name] = partial(serve, ours, link_tokens=links, namespace=name)
    if options.larger:
        sides["larger"] = partial(serve, bench.engine("larger"))
    all_served = {name: Served() for name in sides}
    stored = 0.0
    for seed in range(options.seeds):
        questions = bench.new_questions(options.warm_up + options.requests)
        prompts, documents = bench.prompts(questions)
        for tenant in tenants:
            stored += ours.encode(documents, namespace=tenant).prompt_tokens / len(tenants)
        first, timed = prompts[: options.warm_up], prompts[options.warm_up :]
        warm = {name: ask(first, None, OUTPUT_TOKENS) for name, ask in sides.items()}
        drain(ours)
        rate = len(first) / warm["stock"].seconds
        load = LOADS[part]
        gaps = np.random.default_rng([seed, options.seed]).exponential(size=len(timed))
        order = list(sides.items())
        turn = len(timed) if part == "saturated" else TURN
        for begin in range(0, len(timed), turn):
            some = timed[begin : begin + turn]
            arrivals = None
            if load is not None:
                arrivals = np.cumsum(gaps[begin : begin + turn] / (load * rate)).tolist()
            for name, ask in order:
                all_served[name].extend(ask(some, arrivals, OUTPUT_TOKENS))
                drain(ours)
            order.reverse()
    base = all_served.pop("stock")
    tokens = dict.fromkeys(all_served, 0.0)
    rows: list[list[Cell]] = [["stock", 1e3 * statistics.median(base.ttft), base.seconds]]
    rows[0] += [base.cached_share, "", "", ""]
    ratios: dict[str, Interval] = {}
    for name, served in all_served.items():
        ratios[name] = median_ratio(base.ttft, served.ttft)
        computed = [sum(some.prompted) - sum(some.cached) for some in (base, served)]
        tokens[name] = computed[0] / computed[1]
        rows.append(
            [
                name,
                1e3 * statistics.median(served.ttft),
                served.seconds,
                served.cached_share,
                str(ratios[name]),
                tokens[name],
                base.seconds / served.seconds,
            ]
        )
    head = [
        *("side", "TTFT ms", "seconds", "cached", "stock / this"),
        *("computed tokens", "throughput"),
    ]
    print_table(f"{part} load, {len(base.ttft)} questions that come once, k = {K}", head, rows)
    gib = stored * ours.stats().block_bytes / ours.block_size / GIB
    print(
        f"\nKV pool {options.kv_cache_gib:g} GiB; the store holds {stored:,.0f} tokens a side at "
        f"most, {gib:.2f} GiB of {options.document_cache_gib:g}",
        flush=True,
    )
    if gib * (1 + len(tenants)) > options.document_cache_gib:  # those that are met are stored, too
        print("the store has no room for all of them: give --document-cache-gib more")
    return {
        part: {
            name: {
                "ttft_ratio": ratios[name].as_list(3),
                "computed_tokens_ratio": round(tokens[name], 3),
                "throughput_ratio": round(base.seconds / served.seconds, 3),
            }
            for name, served in all_served.items()
        }
    }


def answers(bench: Bench) -> dict[str, Any]:
    """F1 by the number of link tokens, and exact answers beside approximate ones."""
    options, ours, stock = bench.options, bench.engine("ours"), bench.engine("stock")
    greedy = SamplingOptions(max_tokens=ANSWER_TOKENS)
    scores: dict[str, list[float]] = {"full": [], "16": [], "0": []}
    equal = checked = 0
    kept = load_dataset("nq", "bundled")
    passages = {document.id: document.text for document in kept.documents}
    chosen = shuffled(kept.questions, options.seed)[: options.questions]
    for begin in range(0, len(chosen), options.batch):
        questions = chosen[begin : begin + options.batch]
        prompts, documents = bench.prompts(questions, passages)
        ours.encode(documents, namespace="answers")
        # Exact KV caches of the same tenant would be taken for the others, too.
        kinds: dict[str, dict[str, Any]] = {
            "full": {"reuse": "prefix", "namespace": "exact answers"},
            "16": {"link_tokens": 16, "namespace": "answers"},
            "0": {"link_tokens": 0, "namespace": "answers"},
        }
        # All of them together, so that exact and approximate requests share steps.
        streams = {
            name: [ours.stream(one, greedy, **kind) for one in prompts]
            for name, kind in kinds.items()
        }
        found = {name: [one.result() for one in some] for name, some in streams.items()}
        for name, texts in found.items():
            scores[name] += [
                token_f1(one.text, question.answers)
                for one, question in zip(texts, questions, strict=True)
            ]
        for one, other in zip(found["full"], stock.generate_batch(prompts, greedy), strict=True):
            checked += 1
            equal += one.token_ids == other.token_ids
    rows: list[list[Cell]] = []
    f1: dict[str, Any] = {}
    for name, values in scores.items():
        mean = bootstrap_interval(np.mean, [values])
        less = bootstrap_interval(np.mean, [np.subtract(values, scores["full"])])
        f1[name] = mean.as_list(4)
        rows.append([name, str(mean), str(less) if name != "full" else ""])
    title = f"answers to {len(chosen)} questions over their {K} passages"
    print_table(title, ["link tokens", "F1", "difference to full"], rows)
    print(f"\n{equal} of {checked} exact answers, amid approximate ones, equal stock vLLM's")
    return {"f1": f1, "exact": {"prompts": checked, "equal": equal}}


def restart(bench: Bench) -> dict[str, Any]:
    """Documents that are read from disk in a new engine, over computing them."""
    one, repeats = SamplingOptions(max_tokens=1), bench.options.repeats
    times: dict[str, list[float]] = {"computed": [], READ: [], READ_EXACT: []}
    with TemporaryDirectory() as folder:
        knobs = {"reuse": "anywhere", "disk_cache_gib": 8.0, "disk_cache_dir": folder}
        with bench.started(bench.options.kv_cache_gib, **knobs) as before:
            documents = bench.long_documents(before, (repeats + 1) * DOCUMENTS)
            before.encode(documents)
            prompts = [
                Prompt.rag(
                    f"What is said of number {number}?",
                    documents[number * DOCUMENTS :][:DOCUMENTS],
                    system=SYSTEM,
                )
                for number in range(repeats + 1)
            ]
            for prompt in prompts:
                before.generate(prompt, one, reuse="prefix", namespace="exact")
        with bench.started(bench.options.kv_cache_gib, **knobs) as after:
            for number, prompt in enumerate(prompts):
                ways = {
                    "computed": partial(
                        after.stream, prompt, one, reuse="prefix", namespace="nobody"
                    ),
                    READ: partial(after.stream, prompt, one, link_tokens=16),
                    READ_EXACT: partial(
                        after.stream, prompt, one, reuse="prefix", namespace="exact"
                    ),
                }
                for name in sorted(ways, reverse=number % 2 == 1):
                    seconds = first_token(ways[name])
                    if number:
                        times[name].append(seconds)
    ratios = {name: median_ratio(times["computed"], times[name]) for name in (READ, READ_EXACT)}
    rows: list[list[Cell]] = [[name, 1e3 * statistics.median(some)] for name, some in times.items()]
    print_table("after a restart: time to first token", ["way", "ms"], rows)
    for name, ratio in ratios.items():
        print(f"\ncomputed / {name}: {ratio}", flush=True)
    return {
        "restart_ratio": ratios[READ].as_list(3),
        "restart_exact_ratio": ratios[READ_EXACT].as_list(3),
    }


def measure(bench: Bench, parts: Sequence[str]) -> dict[str, Any]:
    """Measure and print some parts."""
    result: dict[str, Any] = {
        "ttft_ratio": None,
        "stream_ratio": None,
        "f1": None,
        "exact": None,
        "restart_ratio": None,
        "restart_exact_ratio": None,
    }
    if "lengths" in parts:
        with part_time("lengths"):
            result |= lengths(bench)
    loads = [part for part in LOADS if part in parts]
    if loads:
        result["loads"] = {}
        for part in loads:
            with part_time(part):
                result["loads"] |= stream(bench, part)
        if "half" in loads:
            half = result["loads"]["half"]
            result["stream_ratio"] = {
                "encoded": half["encoded, 16"]["ttft_ratio"],
                "met": half["met, 16"]["ttft_ratio"],
            }
    if "answers" in parts:
        with part_time("answers"):
            result |= answers(bench)
    if "restart" in parts:
        with part_time("restart"):
            result |= restart(bench)
    return result


@contextmanager
def part_time(part: str) -> Iterator[None]:
    """Print how long a part took; that of the first includes the engines' start."""
    begun = time.perf_counter()
    yield
    print(f"\n({part}: {time.perf_counter() - begun:.0f} s)", flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than 3 minutes")
    parser.add_argument("--data", type=Path, help="a folder with nq/; the bundled sample if none")
    parser.add_argument("--model", help="path or hub name; the bundled reader by default")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts of it")
    parser.add_argument("--kv-cache-gib", type=float, default=1.0, help="of each engine")
    parser.add_argument("--document-cache-gib", type=float, default=2.0, help="of the store")
    parser.add_argument(
        "--exact-documents", type=int, default=0, help="first documents of a prompt that are exact"
    )
    parser.add_argument("--repeats", type=int, default=5, help="prompts of long documents")
    parser.add_argument("--requests", type=int, default=6, help="for each load and seed")
    parser.add_argument("--warm-up", type=int, default=2, help="requests before, not counted")
    parser.add_argument(
        "--larger", action="store_true", help="a row for stock with the store's bytes as KV, too"
    )
    parser.add_argument("--seeds", type=int, default=2, help="questions and arrivals drawn anew")
    parser.add_argument("--seed", type=int, default=0, help="decides all of them")
    parser.add_argument("--questions", type=int, default=100, help="whose answers are scored")
    options = parser.parse_args()
    # Answers are scored: not the model with random weights, as elsewhere.
    os.environ["RAGCACHE_DEFAULT_MODEL"] = "reader"
    options.links, options.modular, options.batch = LINKS, not options.quick, 20
    options.timed = not options.model
    parts = options.only or PARTS
    if options.quick:
        options.links, options.repeats, options.requests, options.warm_up = (0, 16), 2, 4, 2
        options.seeds, options.questions = 1, 6
        parts = options.only or ("lengths", "half", "answers")
    print(f"To compare with LMCache on a GPU: {LMCACHE}", flush=True)
    with ExitStack() as stack:
        result = measure(Bench(options, stack), parts)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
