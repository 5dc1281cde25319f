"""An hour of mixed load: does anything grow, fail or slow down?

Plain requests, streams, batches, aborts and cancellations, several tenants and new ones, short and
long prompts, documents that nobody has seen before, structured and sampled answers, speculation;
round after round of the same requests, at a cache that is too small for them. Against the engine in
the application, or with ``--server`` against ``ragcache serve`` (without speculation, which a
server does not know).

Read every few seconds: resident memory, threads and open descriptors of the application and of the
engine's, or the server's, processes. Slopes are by least squares over what was read after the
warm-up, with 95 % intervals that allow for readings that resemble their neighbours; what is kept by
design up to a bound, such as the frequencies of evicted documents, grows until the bound is met;
"later" is the second half alone, which shows whether growth comes to an end.
Latencies at the end are set against those behind the warm-up, round by round, as a ratio of medians
with a 95 % interval: above 1 is slower. Answers are greedy and in float32: each must be in every
round what it was in the first. The last line is one JSON object; the exit status is 1 where a
request failed, an answer changed, or something was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from parts.servers.process_watch import ProcessWatch, Reading, trend
from parts.servers.servers import Server
from parts.stats.intervals import median_ratio
from parts.stats.tables import print_table
from parts.traffic.mixed_load import MixedLoad, Round

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.speculation import Speculator
from ragcache_workbench.evaluation.scores import Interval

BLOCK = 32
GPU_BLOCKS = 256
CONTEXT = 4096
HOST_CACHE_GIB = 0.03
QUICK_MINUTES = 0.4
START_SECONDS = 300.0
SETTLING_SECONDS = 30.0
SLOPE_SECONDS = 180.0
"""Over less than that, what a process takes in at its start would pass for growth."""


class Local:
    """The engine in this process's application."""

    name = "engine"

    def __init__(self, stack: ExitStack, model: str) -> None:
        self.backend = stack.enter_context(
            RAGCacheEngine(
                model,
                kv_cache_gib=0.5,
                max_model_len=CONTEXT,
                dtype="float32",
                host_cache_gib=HOST_CACHE_GIB,
                vllm_args={
                    "block_size": BLOCK,
                    "enforce_eager": True,
                    "num_gpu_blocks_override": GPU_BLOCKS,
                    "max_num_batched_tokens": 512,
                },
            )
        )
        self.speculator: Speculator | None = Speculator(self.backend)

    def processes(self) -> Iterator[psutil.Process]:
        """The engine's."""
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.backend.pid)
            yield first
            yield from first.children(recursive=True)

    def left(self) -> int:
        """Requests, blocks and nodes that are in use although nothing is asked."""
        load, tree = self.backend.load(), self.backend.tree()
        used = [] if tree is None else [node for node in tree.nodes() if node.place == "in use"]
        kept = (load.total_kv_tokens - load.free_kv_tokens) // BLOCK
        return load.running_requests + load.waiting_requests + kept + len(used)

    def facts(self) -> dict[str, Any]:
        """What the tree holds at the end, in numbers."""
        tree = self.backend.stats().tree
        return {} if tree is None else {"tree": asdict(tree)}


class Remote:
    """A server, and the client that talks to it."""

    name = "server"
    speculator: Speculator | None = None

    def __init__(self, stack: ExitStack, model: str) -> None:
        arguments = [
            *(model, "--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT)),
            *("--block-size", str(BLOCK), "--num-gpu-blocks-override", str(GPU_BLOCKS)),
            *("--host-cache-gib", str(HOST_CACHE_GIB), "--max-num-batched-tokens", "512"),
            *("--new-tenants-per-minute", "0"),  # no limit
        ]
        self._server = stack.enter_context(Server(arguments))
        self._server.wait(START_SECONDS)
        from ragcache_integrations.llms.openai.server import OpenAIServer  # noqa: PLC0415 - an extra

        self.backend = OpenAIServer(
            self._server.base_url, self._server.model, max_model_len=CONTEXT, max_retries=0
        )
        stack.callback(self.backend.close)

    def processes(self) -> Iterator[psutil.Process]:
        """The server's."""
        return self._server.processes()

    def left(self) -> int:
        """Requests that run or wait although nothing is asked."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return int(sum(map(self._server.metric, names)))

    def facts(self) -> dict[str, Any]:
        """Nothing more."""
        return {}


@contextlib.asynccontextmanager
async def watching(watch: ProcessWatch, seconds: float) -> AsyncIterator[None]:
    """Take readings all the time."""

    async def read() -> None:
        while True:
            watch.read()
            await asyncio.sleep(seconds)

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        watch.read()


async def serve(
    target: Local | Remote, load: MixedLoad, watch: ProcessWatch, options: argparse.Namespace
) -> None:
    """Send the load, and take readings meanwhile."""
    async with watching(watch, options.sample_seconds):
        await load.run(60 * options.minutes)
    if isinstance(target, Remote):
        await target.backend.aclose()


def settle(target: Local | Remote) -> int:
    """Wait until the last aborts have taken effect, and say what is left."""
    deadline = time.monotonic() + SETTLING_SECONDS
    while (left := target.left()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def by_minute(
    load: MixedLoad, watch: ProcessWatch, seconds: float
) -> tuple[list[str], list[list[Any]]]:
    """A table's head and rows: a row a minute, or less of a short run."""
    step = 60.0 if seconds > 300 else max(seconds / 8, 1e-3)  # noqa: PLR2004 - five minutes
    groups = list(watch.readings)
    head = ["minute", "requests", "errors", "median ms", "p95 ms"]
    head += [f"{group} {what}" for group in groups for what in ("MiB", "threads", "files")]
    rows = []
    for number in range(int(seconds / step) + 1):
        begin, end = number * step, (number + 1) * step
        some = [one for one in load.rounds if begin <= one.ended < end]
        row: list[Any] = [round(end / 60, 2), sum(one.requests for one in some)]
        row.append(sum(one.errors for one in some))
        row += [_middle([1e3 * one.median for one in some])]
        row += [_middle([1e3 * one.late for one in some])]
        for group in groups:
            read = [reading for reading in watch.readings[group] if begin <= reading.seconds < end]
            row += [_middle([one.memory for one in read])]
            row += [max((one.threads for one in read), default=None)]
            row += [max((one.descriptors for one in read), default=None)]
        if some or row[5] is not None:
            rows.append(row)
    return head, rows


def _middle(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def growth(readings: Mapping[str, Sequence[Reading]]) -> dict[str, Any]:
    """What each group held at most in the first and last third of its readings, and the slopes."""
    found: dict[str, Any] = {}
    for group, read in readings.items():
        long_enough = read and read[-1].seconds - read[0].seconds >= SLOPE_SECONDS
        found[group] = {}
        for what in ("memory", "threads", "descriptors"):
            values = [float(getattr(one, what)) for one in read]
            third = max(1, len(values) // 3)
            first, last = max(values[:third]), max(values[-third:])
            figures: dict[str, Any] = {"first": round(first, 2), "last": round(last, 2)}
            line = f"{group}, {what}: {first:.6g}, then {last:.6g}"
            if long_enough:
                half = len(read) // 2
                for name, some in (("per_hour", read), ("per_hour_later", read[half:])):
                    later = values[len(values) - len(some) :]
                    fitted = trend([one.seconds for one in some], later)
                    figures[name] = fitted.as_list() if fitted else None
                    line += f"; {name.replace('_', ' ')} {fitted}"
            found[group][what] = figures
            print(line)
    return found


def slower(rounds: Sequence[Round], begin: float) -> Interval | None:
    """Latency of the last third of the rounds over that of the first, behind the warm-up."""
    counted = [one for one in rounds if one.ended >= begin]
    third = len(counted) // 3
    if third < 2:  # noqa: PLR2004 - nothing to draw from
        return None
    last, first = counted[-third:], counted[:third]
    return median_ratio([one.median for one in last], [one.median for one in first])


def report(
    target: Local | Remote, load: MixedLoad, watch: ProcessWatch, options: argparse.Namespace
) -> dict[str, Any]:
    """Print what was seen, and give its figures."""
    total = load.rounds[-1].ended if load.rounds else 0.0
    print_table(f"{target.name}, {options.minutes:g} minutes", *by_minute(load, watch, total))
    warm = options.warm_up * total
    print(f"\nbehind the first {warm / 60:.1f} minutes:")
    grown = growth(watch.since(warm))
    ratio = slower(load.rounds, warm)
    print(f"latency of the last third of the rounds over the first: {ratio}")
    left = settle(target)
    print(f"errors: {load.errors}, answers that changed: {load.changed}, left behind: {left}")
    for line in load.first_errors:
        print(f"  {line}")
    return {
        "target": target.name,
        "minutes": round(total / 60, 2),
        "rounds": len(load.rounds),
        "requests": dict(load.requests),
        "errors": load.errors,
        "changed_answers": load.changed,
        "left_behind": left,
        "growth": grown,
        "latency_end_over_beginning": ratio.as_list(4) if ratio else None,
        **target.facts(),
    }


def main() -> int:
    """Run and print; the exit status says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--server", action="store_true", help="a server instead of the engine")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--model", help="path or hub name; a tiny random one by default")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at a time")
    parser.add_argument("--warm-up", type=float, default=0.2, help="share of it, not counted")
    parser.add_argument("--sample-seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.quick:
        options.minutes, options.sample_seconds = QUICK_MINUTES, 0.5
    model = options.model or str(default_model_path())
    with ExitStack() as stack:
        target: Local | Remote
        target = Remote(stack, model) if options.server else Local(stack, model)
        own = psutil.Process(os.getpid())
        watch = ProcessWatch({"application": lambda: [own], target.name: target.processes})
        load = MixedLoad(
            target.backend, target.speculator, seed=options.seed, concurrency=options.concurrency
        )
        asyncio.run(serve(target, load, watch, options))
        result = report(target, load, watch, options)
    print(json.dumps(result))
    return int(bool(load.errors or load.changed or result["left_behind"]))


if __name__ == "__main__":
    sys.exit(main())
