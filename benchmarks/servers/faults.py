"""The engine's process is killed (``kill -9``) under load, again and again.

Requests of four kinds run at once: plain and streamed, from threads and from an event loop. Their
tokens are compared with those of an undisturbed run: greedy, in float32, with the tiny model. The
kills are spread over the load, so that each meets requests that wait, that are being computed, and
that are half answered. What is measured is the time from a kill until requests go on, the most
common documents having been computed again; and what is left behind when the engine is closed.

The last line is one JSON object; times are in seconds. The exit status is not 0 where a request was
not answered exactly once and as it should be, or where something was left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import parts  # noqa: F401 - says which model computes

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine
from ragcache_integrations.resources import load_passages, load_questions

KINDS = ("plain", "streamed", "async plain", "async streamed")
AT_ONCE = 16
"""Requests that the engine computes together; the others wait."""
KV_CACHE_GIB = 0.25
GIVE_UP_SECONDS = 300.0
SYSTEM = "Answer from the documents, and from nothing else, in a few words."

Said = tuple[tuple[int, ...], str]
"""The tokens of an answer and its text."""


@dataclass(frozen=True)
class Asked:
    """One request."""

    prompt: Prompt
    options: SamplingOptions
    kind: str


@dataclass
class Load:
    """All requests at once, and what became of each."""

    engine: RAGCacheEngine
    asked: list[Asked]
    answers: list[list[Said]] = field(init=False)
    errors: list[str] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nobody has answered yet."""
        self.answers = [[] for _ in self.asked]

    @property
    def answered(self) -> int:
        """How many answers are complete."""
        return sum(map(len, self.answers))

    def start(self) -> None:
        """Ask everything."""
        for number, asked in enumerate(self.asked):
            if not asked.kind.startswith("async"):
                thread = threading.Thread(target=self._in_thread, args=(number,), daemon=True)
                self._threads.append(thread)
        loop = threading.Thread(target=lambda: asyncio.run(self._in_loop()), daemon=True)
        self._threads.append(loop)
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the last answer."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self.errors.append("it was not answered in time")

    def wait_for(self, answers: int) -> None:
        """Wait until so many answers are complete."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while self.answered < answers and not self.errors and time.monotonic() < deadline:
            time.sleep(0.005)

    def _in_thread(self, number: int) -> None:
        asked = self.asked[number]
        try:
            if asked.kind == "plain":
                answer = self.engine.generate(asked.prompt, asked.options)
                said = answer.token_ids, answer.text
            else:
                chunks = list(self.engine.stream(asked.prompt, asked.options))
                tokens = tuple(token for chunk in chunks for token in chunk.token_ids)
                said = tokens, "".join(chunk.text for chunk in chunks)
            self.answers[number].append(said)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told at the end
            self.errors.append(repr(error))

    async def _in_loop(self) -> None:
        numbers = [n for n, asked in enumerate(self.asked) if asked.kind.startswith("async")]
        outcomes = await asyncio.gather(*map(self._in_task, numbers), return_exceptions=True)
        self.errors += [repr(outcome) for outcome in outcomes if outcome is not None]

    async def _in_task(self, number: int) -> None:
        asked = self.asked[number]
        if asked.kind == "async plain":
            answer = await self.engine.agenerate(asked.prompt, asked.options)
            said = answer.token_ids, answer.text
        else:
            stream = await self.engine.astream(asked.prompt, asked.options)
            chunks = [chunk async for chunk in stream]
            tokens = tuple(token for chunk in chunks for token in chunk.token_ids)
            said = tokens, "".join(chunk.text for chunk in chunks)
        self.answers[number].append(said)


@dataclass(frozen=True)
class Belongings:
    """What this process holds: nothing of it may grow."""

    children: frozenset[int]
    threads: frozenset[str]
    descriptors: int
    sockets: int
    shared_memory: frozenset[str]

    @classmethod
    def now(cls) -> Belongings:
        """Look."""
        gc.collect()
        links = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                links.append(str(entry.readlink()))
            except FileNotFoundError:  # the one that this listing had open
                continue
        return cls(
            frozenset(_children(os.getpid())),
            frozenset(thread.name for thread in threading.enumerate()),
            len(links),
            sum(link.startswith("socket:") for link in links),
            frozenset(entry.name for entry in Path("/dev/shm").iterdir()),  # noqa: S108 - only listed
        )

    def left_since(self, before: Belongings) -> dict[str, object]:
        """What there is more than before."""
        return {
            "processes": len(self.children - before.children),
            "threads": len(self.threads - before.threads),
            "descriptors": max(0, self.descriptors - before.descriptors),
            "sockets": max(0, self.sockets - before.sockets),
            "shared_memory": len(self.shared_memory - before.shared_memory),
        }


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_children(int(child))]
    return found


def make_requests(count: int, seed: int) -> list[Asked]:
    """Questions over two passages each, of which a few are asked for most of the time."""
    passages, questions = load_passages(), load_questions()
    dice = random.Random(seed)  # noqa: S311 - a workload is no secret
    requests = []
    for number in range(count):
        ranks = [min(int(dice.paretovariate(0.8)), 60) for _ in range(2)]
        chosen = [passages[100 * place + rank] for place, rank in enumerate(ranks)]
        prompt = Prompt.rag(
            f"{questions[number % len(questions)].text} ({number})",
            [PromptDocument(passage.text, passage.id) for passage in chosen],
            system=SYSTEM,
        )
        options = SamplingOptions(max_tokens=dice.randint(24, 96), ignore_eos=True)
        requests.append(Asked(prompt, options, KINDS[number % len(KINDS)]))
    return requests


def undisturbed(engine: RAGCacheEngine, asked: list[Asked]) -> list[Said]:
    """What the requests are answered while nothing happens."""
    streams = [engine.stream(request.prompt, request.options) for request in asked]
    answers = [stream.result() for stream in streams]
    return [(answer.token_ids, answer.text) for answer in answers]


def kill_and_wait(engine: RAGCacheEngine) -> float:
    """Kill the process.

    Returns:
        Seconds until requests go on.
    """
    restarts = engine.stats().restarts
    began = time.perf_counter()
    os.kill(engine.pid, signal.SIGKILL)
    while engine.stats().restarts == restarts and not engine.closed:
        if time.perf_counter() - began > GIVE_UP_SECONDS:
            break
        time.sleep(0.005)
    return time.perf_counter() - began


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="60 requests, 2 kills")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    requests, kills = (60, 2) if arguments.quick else (arguments.requests, arguments.kills)
    logging.getLogger("ragcache_integrations").setLevel(logging.ERROR)

    asked = make_requests(requests, arguments.seed)
    before = Belongings.now()
    with RAGCacheEngine(
        kv_cache_gib=KV_CACHE_GIB,
        max_model_len=2048,
        dtype="float32",
        max_restarts=kills,
        vllm_args={"enforce_eager": True, "max_num_seqs": AT_ONCE},
    ) as engine:
        expected = undisturbed(engine, asked)
        load = Load(engine, asked)
        load.start()
        back = []
        for kill in range(kills):
            load.wait_for((2 * kill + 1) * requests // (2 * kills))
            answered = load.answered
            back.append(kill_and_wait(engine))
            print(f"kill {kill + 1}: {answered:4} answered, back after {back[-1]:5.1f} s")
        load.join()
        stats = engine.stats()
    left = Belongings.now().left_since(before)

    wrong = sum(
        answers[:1] != [right] for answers, right in zip(load.answers, expected, strict=True)
    )
    result: dict[str, object] = {
        "requests": requests,
        "kills": kills,
        "restarts": stats.restarts,
        "answered_once": sum(len(answers) == 1 for answers in load.answers),
        "wrong_or_missing": wrong,
        "distinct_answers": len(set(expected)),
        "errors": load.errors[:3],
        "begun_anew": stats.replayed_requests,
        "gone_on": stats.resumed_requests,
        "back_s": [round(seconds, 1) for seconds in back],
        "slowest_back_s": round(max(back), 1),
        "left": left,
    }
    for name, value in result.items():
        print(f"{name:18}{value}")
    print(json.dumps(result))
    sound = not (wrong or load.errors or any(left.values())) and stats.restarts == kills
    return 0 if sound and result["answered_once"] == requests else 1


if __name__ == "__main__":
    sys.exit(main())
