"""Hostile requests against ``ragcache serve``: only 4xx answers, and it goes on serving.

Draws malformed, oversized and lying requests of every kind, by
``parts/traffic/hostile_requests.py``, sends them eight at a time, and lets some clients go away in
the middle. Before and afterwards the server answers the same question; both answers have to be the
same. The tiny model with random weights, in float32; the last line is one JSON object, and the exit
status is 1 where anything was not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from parts.servers.servers import Server
from parts.stats.tables import Cell, print_table
from parts.traffic.hostile_requests import hostile_requests, send_all

START_SECONDS = 240.0
QUICK = 400
SERVER = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"),
    *("--kv-cache-gib", "0.25", "--host-cache-gib", "0.05", "--max-prompt-bytes", "2000000"),
)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} requests")
    options = parser.parse_args()
    number = QUICK if options.quick else options.requests
    with Server(SERVER) as server:
        server.wait(START_SECONDS)
        model = server.model
        before = ask(server, model)
        began = time.perf_counter()
        requests = list(hostile_requests(number, model, options.seed))
        found = asyncio.run(send_all(requests, "127.0.0.1", server.port))
        seconds = time.perf_counter() - began
        after = ask(server, model)
        health = server.get("/health")
    show(found)
    wrong = {
        f"{kind}: {status}": count
        for (kind, status), count in found.items()
        if status not in range(400, 500) and status != -1
    }
    result = {
        "requests": number,
        "answers": {str(status): n for status, n in sorted(by_status(found).items())},
        "other_than_4xx": wrong,
        "same_answer_afterwards": before == after,
        "health": json.loads(health)["status"],
        "seconds": round(seconds, 1),
    }
    print(json.dumps(result))
    return 0 if not wrong and before == after else 1


def ask(server: Server, model: str) -> str:
    """An honest question, with a document."""
    parts = [
        {"type": "document", "id": "cats", "text": "Cats purr when they are content. " * 20},
        {"type": "text", "text": "Why do cats purr?"},
    ]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 16,
        "temperature": 0,
    }
    request = urllib.request.Request(  # noqa: S310 - http
        f"{server.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
        said: str = json.load(answer)["choices"][0]["message"]["content"]
    return said


def by_status(found: Counter[tuple[str, int]]) -> Counter[int]:
    """How often each status came."""
    counts: Counter[int] = Counter()
    for (_, status), number in found.items():
        counts[status] += number
    return counts


def show(found: Counter[tuple[str, int]]) -> None:
    """Print how each kind was answered."""
    statuses = sorted({status for _, status in found})
    head = ["kind", *(("gone" if status == -1 else str(status)) for status in statuses)]
    rows: list[list[Cell]] = [
        [kind, *(found[kind, status] or None for status in statuses)]
        for kind in dict.fromkeys(kind for kind, _ in found)
    ]
    print_table("Hostile requests by kind and status", head, rows)


if __name__ == "__main__":
    sys.exit(main())
