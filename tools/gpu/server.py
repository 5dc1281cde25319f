"""``ragcache serve`` next to ``vllm serve``, under 200 concurrent streams of mixed prompts.

Both servers live at once on one GPU, with the same arguments and KV memory, and answer the same
rounds in turns. Requests are the same bytes: tokens, with documents' spans, which stock vLLM
ignores. Half of them ask about 4 documents, a quarter about 8, the others about none; documents are
popular by Zipf's law. Every stream sends its next request when the one before is answered.
Meanwhile another process asks for ``/health``. The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from parts.servers.servers import Server

from ragcache_integrations.core.prompt import PromptRenderer, extra_args_from_spans
from tools.gpu.setting import Setting, Workload, say

STOCK, OURS = "stock", "ours"
STOCK_PROGRAM = ("vllm.entrypoints.openai.api_server",)
"""What ``vllm serve`` runs."""
MODEL = "model"
KINDS = (4, 4, 8, 0)
"""Documents of a request; every kind comes equally often."""
ANSWERS = (16, 128)
"""The shortest and longest answer, in tokens."""
SEQUENCES = 256
STARTING_SECONDS = 200.0
REQUEST_SECONDS = 120.0
ERRORS_SHOWN = 5
PROBE = """
import json, select, sys, time, urllib.request
times = []
while not select.select([sys.stdin], [], [], 0.05)[0]:
    began = time.perf_counter()
    with urllib.request.urlopen(sys.argv[1], timeout=60) as answer:
        answer.read()
    times.append(time.perf_counter() - began)
print(json.dumps(times))
"""


@dataclass
class Load:
    """What a server did with its rounds.

    Attributes:
        ttft: Seconds to the first token, request by request.
        health: Seconds that ``/health`` took.
        output_tokens: Of all answers.
        prompt_tokens: Of all prompts.
        cached_tokens: Of these, found in the cache.
        seconds: All rounds together.
        errors: What went wrong.
    """

    ttft: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    output_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        ttft = np.quantile(self.ttft or [np.nan], [0.5, 0.95])
        health = np.quantile(self.health or [np.nan], [0.5, 0.95, 1.0])
        return {
            "requests": len(self.ttft),
            "errors": len(self.errors),
            "first_errors": self.errors[:ERRORS_SHOWN],
            "seconds": round(self.seconds, 2),
            "output_tokens_per_s": round(self.output_tokens / self.seconds, 1),
            "prompt_tokens_per_s": round(self.prompt_tokens / self.seconds, 1),
            "cached_share": round(self.cached_tokens / max(1, self.prompt_tokens), 4),
            "ttft_median_ms": round(1e3 * float(ttft[0]), 1),
            "ttft_p95_ms": round(1e3 * float(ttft[1]), 1),
            "health_median_ms": round(1e3 * float(health[0]), 2),
            "health_p95_ms": round(1e3 * float(health[1]), 2),
            "health_longest_ms": round(1e3 * float(health[2]), 2),
        }


def requests(
    workload: Workload, renderer: PromptRenderer, count: int, seed: int
) -> list[dict[str, Any]]:
    """Bodies of a round's requests."""
    draw = np.random.default_rng([seed, 3])
    kinds = draw.permutation(np.resize(KINDS, count)).tolist()
    bodies = []
    for number, documents in enumerate(kinds):
        prompt = workload.draw(documents, draw, seed * 10**5 + number)
        rendered = renderer.render(prompt)
        spans = [(span.id, span.start, span.end) for span in rendered.documents]
        bodies.append(
            {
                "model": MODEL,
                "prompt": list(rendered.token_ids),
                "max_tokens": int(draw.integers(*ANSWERS, endpoint=True)),
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                "vllm_xargs": extra_args_from_spans(spans),
            }
        )
    return bodies


async def send(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], to: Load) -> None:
    """Send a request and note what came of it."""
    began, first, last = time.perf_counter(), None, b""
    try:
        async with session.post(url, json=body) as answer:
            if answer.status != 200:  # noqa: PLR2004 - the meaning of it is known
                to.errors.append(f"{answer.status}: {(await answer.text())[:300]}")
                return
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                first = first or time.perf_counter() - began
                last = line
        usage = json.loads(last.removeprefix(b"data: "))["usage"]
        if first is None or usage["completion_tokens"] != body["max_tokens"]:
            to.errors.append(f"{usage} for {body['max_tokens']} tokens")
            return
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
        to.errors.append(f"{type(error).__name__}: {error}"[:300])
        return
    to.ttft.append(first)
    to.output_tokens += usage["completion_tokens"]
    to.prompt_tokens += usage["prompt_tokens"]
    to.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def send_round(url: str, bodies: Sequence[Mapping[str, Any]], streams: int, to: Load) -> None:
    """Send all requests, this number at a time."""
    waiting = iter(bodies)
    limits = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:

        async def stream() -> None:
            for body in waiting:
                await send(session, url, body, to)

        await asyncio.gather(*(stream() for _ in range(streams)))


@contextmanager
def watched(server: Server, to: Load) -> Iterator[None]:
    """Ask for ``/health`` all the while, in another process."""
    process = subprocess.Popen(  # noqa: S603 - our own lines
        [sys.executable, "-c", PROBE, f"http://{server.address}/health"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield
    finally:
        answer, words = process.communicate()  # closes its standard input
        if process.returncode:
            to.errors.append("health: " + words.decode(errors="replace")[-300:])
        else:
            to.health += json.loads(answer)


def serve_round(
    server: Server, bodies: Sequence[Mapping[str, Any]], streams: int, to: Load
) -> float:
    """A round on a server; the seconds that it took."""
    with watched(server, to):
        began = time.perf_counter()
        asyncio.run(send_round(f"{server.base_url}/completions", bodies, streams, to))
        seconds = time.perf_counter() - began
    to.seconds += seconds
    return seconds


def main() -> None:
    """Run and print."""
    setting = Setting.parse(__doc__, seconds=150.0)
    low, high = (20, 40) if setting.cpu else (200, 400)
    streams = 8 if setting.cpu else 200
    count = streams if setting.cpu or setting.quick else 2 * streams
    workload = Workload(setting, 20 if setting.cpu else 200, low, high, top_k=max(KINDS))
    window = workload.window + ANSWERS[1]
    kv_tokens = 8 * window if setting.cpu else 100_000
    arguments = [
        *("--model", setting.model, "--served-model-name", MODEL, "--load-format", "dummy"),
        *("--dtype", setting.dtype, "--max-model-len", str(window)),
        *("--kv-cache-memory-bytes", str(kv_tokens * setting.token_bytes)),
        *("--max-num-seqs", str(SEQUENCES), "--max-num-batched-tokens", "8192"),
        *("--gpu-memory-utilization", "0.2", "--enable-prompt-tokens-details"),
        *(("--enforce-eager", "--block-size", "32") if setting.cpu else ()),
    ]
    renderer = PromptRenderer(AutoTokenizer.from_pretrained(setting.model))
    say("starting both servers")
    loads = {STOCK: Load(), OURS: Load()}
    ratios = []
    with ExitStack() as stack:
        servers = {
            STOCK: stack.enter_context(Server(arguments, program=STOCK_PROGRAM)),
            OURS: stack.enter_context(Server(arguments)),
        }
        for name, server in servers.items():
            server.wait(STARTING_SECONDS * (4 if setting.cpu else 1))
            say(f"{name} is ready")
        warm_up = requests(workload, renderer, count // 2, 0)
        for name, server in servers.items():
            say(f"{name} warms up: {serve_round(server, warm_up, streams, Load()):.1f} s")
        sides = list(servers.items())
        longest = 0.0
        for number in range(1, 2 if setting.cpu or setting.quick else 5):
            if number > 1 and setting.left < longest:
                break
            began = time.monotonic()
            bodies = requests(workload, renderer, count, number)
            seconds = {
                name: serve_round(server, bodies, streams, loads[name]) for name, server in sides
            }
            say(f"round {number}: {', '.join(f'{n} {s:.1f} s' for n, s in seconds.items())}")
            ratios.append(seconds[STOCK] / seconds[OURS])
            longest = max(longest, time.monotonic() - began)
            sides.reverse()
    shown = {name: load.as_dict() for name, load in loads.items()}
    for name, one in shown.items():
        say(f"{name}: {one}")
    result = setting.about() | {
        "streams": streams,
        "requests_per_round": count,
        "kv_tokens": kv_tokens,
        "arguments": arguments[2:],
        "servers": shown,
        "seconds_stock_over_ours": [round(ratio, 4) for ratio in ratios],
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
