"""What each of several processes does that share answers; an importable module."""

from __future__ import annotations

import random
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from tests.query_cache.redis.servers import patient

from .caches import Process, ask

OPERATIONS = 300
TOPICS = ("rome", "oslo", "kyiv")
MANNERS = ("nice", "pretty", "lovely", "beautiful")


def run(results: Queue[dict[str, Any]], url: str, versions: Any, together: Barrier) -> None:
    """Ask, and change documents, for a while; report what happened, and what was wrong.

    Args:
        results: Where the report goes.
        url: Redis.
        versions: The content of each topic's document, in memory that processes share.
        together: All begin at once.
    """
    process = Process(patient(url), "two processes", tolerance=1.0)
    together.wait(100)
    dice = random.Random()
    wrong: list[str] = []
    for _ in range(OPERATIONS):
        topic = dice.randrange(len(TOPICS))
        if dice.random() < 0.05:
            versions[topic] = dice.randrange(4)
        tenant, manner = dice.choice("ab"), dice.choice(MANNERS)
        content = versions[topic]  # what the retriever finds for this question
        documents = frozenset({(TOPICS[topic], f"{TOPICS[topic]} {content}")})
        lookup = process.look_up(ask(f"{TOPICS[topic]} is it {manner}", tenant, documents))
        answer = f"{tenant}: {TOPICS[topic]} {content}"
        if lookup.entry is None:
            process.flow.keep(lookup, answer)
        elif lookup.entry.answer != answer:
            wrong.append(f"{lookup.entry.answer} instead of {answer}")
    stats = process.stats()
    process.flow.close()
    results.put(
        {
            "wrong": wrong,
            "hits": stats.hits,
            "insertions": stats.insertions,
            "failed": stats.failed + stats.skipped + stats.corrupt,
        }
    )
