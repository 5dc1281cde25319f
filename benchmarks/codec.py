"""Codecs of stored documents: their bytes, what they lose, and how fast they are read.

Each codec is compared with ``raw``, in the same run on the same prompts. Ratios are of medians,
paired and interleaved, with 95 % intervals; below 1 the codec is faster.

- ``speed``: encoding and decoding (with the turn of the keys) a document of 512 tokens on one core,
  in MB of raw keys and values a second.
- ``memory``: the time to the first token over five stored documents of 512 tokens, 16 link tokens.
- ``restart``: the same in a new engine, from files that are read at ``--disk-mb`` a second.
- ``answers``: F1 of the bundled sample's questions over five passages, as a paired difference from
  raw documents, and the mean KL divergence of the first answer token, by the 20 likeliest tokens
  and all others together. With 16 link tokens and the first document exact, and with none.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from anywhere import CONTEXT, DOCUMENTS, LENGTH, Bench, first_token, part_time, shuffled
from parts.anywhere.slow_disk_worker import DISK_MB
from parts.stats.intervals import median_ratio
from parts.stats.tables import Cell, print_table

from ragcache_integrations.core.generation import Generation
from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.in_vllm.anywhere.codecs import CODECS, RAW, Codec, Form
from ragcache_integrations.engine.in_vllm.anywhere.paged import ORIGIN, angles_between, turn
from ragcache_workbench.evaluation.datasets import load_dataset, token_f1
from ragcache_workbench.evaluation.scores import bootstrap_interval

PARTS = ("speed", "memory", "restart", "answers")
LINKS = {"16, first exact": (16, 1), "0": (0, 0)}
ANSWER_TOKENS, LIKELIEST = 24, 20
MB = 1e6


def speed(form: Form, repeats: int) -> dict[str, Any]:
    """Encode and decode random numbers; the best of some runs, on one core."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    keys, values = torch.randn(2, form.layers, LENGTH, form.heads, form.size)
    table = torch.rand(2 * LENGTH, form.size)
    angles = angles_between(table, ORIGIN, slice(LENGTH, 2 * LENGTH))
    out = torch.empty(2, LENGTH, form.heads, form.size)

    def read(codec: Codec, parts: dict[str, torch.Tensor]) -> None:
        for layer in range(form.layers):
            part = {name: tensor[layer] for name, tensor in parts.items()}
            turn(codec.decode_keys(part, out[0]), angles)
            codec.decode_values(part, out[1])

    rows: list[list[Cell]] = []
    result = {}
    megabytes = (keys.nbytes + values.nbytes) / MB
    for name, codec in CODECS.items():
        parts = codec.encode(keys, values)
        write_time, read_time = math.inf, math.inf
        for _ in range(repeats):
            begun = time.perf_counter()
            codec.encode(keys, values)
            written = time.perf_counter()
            read(codec, parts)
            read_time = min(read_time, time.perf_counter() - written)
            write_time = min(write_time, written - begun)
        result[name] = {
            "bytes_per_token": round(codec.nbytes(form, LENGTH) / LENGTH),
            "of_raw": round(codec.nbytes(form, LENGTH) / RAW.nbytes(form, LENGTH), 3),
            "encode_mb_s": round(megabytes / write_time),
            "decode_mb_s": round(megabytes / read_time),
        }
        rows.append([name, *result[name].values()])
    title = f"documents of {LENGTH} tokens"
    print_table(title, ["codec", "bytes a token", "of raw", "encode MB/s", "decode MB/s"], rows)
    return result


def engine_of(bench: Bench, codec: str, **knobs: Any) -> RAGCacheEngine:
    """An engine that keeps documents so."""
    return RAGCacheEngine(
        bench.options.model,
        kv_cache_gib=bench.options.kv_cache_gib,
        max_model_len=CONTEXT,
        reuse="anywhere",
        document_dtype=codec,
        **knobs,
    )


def ratios_of(times: dict[str, list[float]], title: str) -> dict[str, Any]:
    """Print the times to first tokens, and give their ratios to those of raw documents."""
    ratios = {name: median_ratio(some, times[RAW.name]) for name, some in times.items()}
    rows: list[list[Cell]] = [
        [name, 1e3 * statistics.median(some), str(ratios[name])] for name, some in times.items()
    ]
    print_table(title, ["codec", "ms", "over raw"], rows)
    return {name: ratio.as_list(3) for name, ratio in ratios.items()}


def memory(bench: Bench, codecs: list[str]) -> dict[str, Any]:
    """First tokens over documents in memory."""
    dice, one = np.random.default_rng(bench.options.seed), SamplingOptions(max_tokens=1)
    times: dict[str, list[float]] = {name: [] for name in codecs}
    with ExitStack() as stack:
        engines = {name: stack.enter_context(engine_of(bench, name)) for name in codecs}
        documents = bench.long_documents(engines[RAW.name], DOCUMENTS + 2)
        for engine in engines.values():
            engine.encode(documents)
        for number in range(bench.options.repeats + 1):
            chosen = dice.permutation(documents)[:DOCUMENTS].tolist()
            prompt = Prompt.rag(f"What is said of number {number}?", chosen)
            for name in codecs if number % 2 else codecs[::-1]:
                seconds = first_token(partial(engines[name].stream, prompt, one, link_tokens=16))
                if number:  # the first one warms up
                    times[name].append(seconds)
    return ratios_of(times, f"{DOCUMENTS} x {LENGTH} tokens in memory: time to first token")


def restart(bench: Bench, codecs: list[str]) -> dict[str, Any]:
    """First tokens over documents in files, in engines that have just started."""
    one, repeats = SamplingOptions(max_tokens=1), bench.options.repeats
    os.environ[DISK_MB] = str(bench.options.disk_mb)
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    slow = {"worker_cls": "parts.anywhere.slow_disk_worker.SlowDiskWorker"}
    times: dict[str, list[float]] = {name: [] for name in codecs}
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        disk: dict[str, Any] = {"disk_cache_gib": 8.0, "disk_cache_dir": folder}
        documents: list[str] = []
        for name in codecs:
            with engine_of(bench, name, **disk) as engine:
                documents = documents or bench.long_documents(engine, (repeats + 1) * DOCUMENTS)
                engine.encode(documents)
        engines = {
            name: stack.enter_context(engine_of(bench, name, vllm_args=slow, **disk))
            for name in codecs
        }
        for number in range(repeats + 1):
            chosen = documents[number * DOCUMENTS :][:DOCUMENTS]
            prompt = Prompt.rag(f"What is said of number {number}?", chosen)
            for name in codecs if number % 2 else codecs[::-1]:
                seconds = first_token(partial(engines[name].stream, prompt, one, link_tokens=16))
                if number:
                    times[name].append(seconds)
    title = f"the same after a restart, from files at {bench.options.disk_mb} MB/s"
    return ratios_of(times, title)


def divergence(right: Generation, other: Generation) -> float:
    """KL divergence of the first tokens, in nats; tokens that one of them lacks count together."""
    one, two = (
        {token.token_id: token.logprob for token in answer.logprobs[0].top}
        for answer in (right, other)
        if answer.logprobs
    )
    shared = one.keys() & two.keys()
    rest = [max(1e-9, 1 - sum(math.exp(scores[at]) for at in shared)) for scores in (one, two)]
    terms = [math.exp(one[at]) * (one[at] - two[at]) for at in shared]
    return max(0.0, sum(terms) + rest[0] * math.log(rest[0] / rest[1]))


def answers(bench: Bench, codecs: list[str]) -> dict[str, Any]:
    """F1 and first tokens of answers; engines one after another, as nothing is timed."""
    options = bench.options
    kept = load_dataset("nq", "bundled")
    passages = {document.id: document.text for document in kept.documents}
    asked = shuffled(kept.questions, options.seed)[: options.questions]
    prompts, documents = bench.prompts(asked, passages)
    greedy = SamplingOptions(max_tokens=ANSWER_TOKENS, logprobs=LIKELIEST)
    said: dict[tuple[str, str], list[Generation]] = {}
    for way, (links, exact) in list(LINKS.items())[: 1 if options.quick else None]:
        for name in codecs:
            with engine_of(bench, name, exact_documents=exact, document_cache_gib=8.0) as engine:
                engine.encode(documents)
                said[way, name] = engine.generate_batch(prompts, greedy, link_tokens=links)
    rows: list[list[Cell]] = []
    result: dict[str, Any] = {name: {"f1_difference": {}, "kl": {}} for name in codecs}
    for (way, name), found in said.items():
        right = said[way, RAW.name]
        scores, base = (
            [token_f1(a.text, q.answers) for a, q in zip(some, asked, strict=True)]
            for some in (found, right)
        )
        less = bootstrap_interval(np.mean, [np.subtract(scores, base)])
        lost = [divergence(a, b) for a, b in zip(right, found, strict=True)]
        result[name]["f1_difference"][way] = less.as_list(4)
        result[name]["kl"][way] = round(statistics.mean(lost), 5)
        same = statistics.mean(a.text == b.text for a, b in zip(found, right, strict=True))
        mean, median = statistics.mean(lost), statistics.median(lost)
        rows.append([way, name, statistics.mean(scores), str(less), mean, median, same])
    columns = ["link tokens", "codec", "F1", "less raw's", "KL", "median", "same text"]
    print_table(f"answers to {len(asked)} questions", columns, rows)
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than 2 minutes")
    parser.add_argument("--data", type=Path, help="a folder with nq/; the bundled sample if none")
    parser.add_argument("--model", help="path or hub name; the bundled reader by default")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts of it")
    parser.add_argument("--codecs", nargs="+", choices=[*CODECS], help="beside raw; all by default")
    parser.add_argument("--kv-cache-gib", type=float, default=1.0, help="of each engine")
    parser.add_argument("--disk-mb", type=float, default=200.0, help="a second, after a restart")
    parser.add_argument("--repeats", type=int, default=20, help="prompts of long documents")
    parser.add_argument("--questions", type=int, default=300, help="whose answers are scored")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Answers are scored: not the model with random weights, as elsewhere.
    os.environ["RAGCACHE_DEFAULT_MODEL"] = "reader"
    codecs = [RAW.name, *(options.codecs or [name for name in CODECS if name != RAW.name])]
    parts = options.only or PARTS
    if options.quick:
        options.repeats, options.questions, codecs = 3, 8, codecs[:2]
        parts = options.only or ("speed", "memory", "answers")
    result: dict[str, Any] = {name: {} for name in dict.fromkeys(codecs)}
    with ExitStack() as stack:
        bench = Bench(options, stack)
        if "speed" in parts:
            form = Form(((30, None),), 3, 64, torch.float32)  # the bundled reader's
            for name, values in speed(form, 5 * options.repeats).items():
                if name in result:
                    result[name] |= values
        for part, measure in (("memory", memory), ("restart", restart), ("answers", answers)):
            if part in parts:
                with part_time(part):
                    measured = measure(bench, list(result))
                for name, value in measured.items():
                    key = "ttft_over_raw" if part == "memory" else "restart_over_raw"
                    result[name] |= value if part == "answers" else {key: value}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
