"""What the parts that compare engines have in common: options, models, texts and engines."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from parts.servers.serving import Served, serve
from parts.stats.intervals import mean_ratio, median_ratio

from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.errors import RAGCacheError
from ragcache_integrations.resources import load_passages, load_questions
from ragcache_workbench.simulation.traces import zipf_ranks
from ragcache_workbench.workload_report.run import ModelFacts, read_model_facts
from tools.gpu.models import model_folder

__all__ = [
    "GIB",
    "Setting",
    "Words",
    "Workload",
    "compared",
    "contest",
    "medians",
    "poisson",
    "run_together",
    "say",
    "started",
]

GIB = 1 << 30
BATCHED_TOKENS = 8192
SEQUENCES = 64
"""The most requests in a step; vLLM captures CUDA graphs for twice as many tokens."""
FREE_SHARE = 0.2
"""Share of the GPU's memory that must be free when an engine starts: several share it."""
PASSAGES = 300
"""Whose words the documents are made of."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
SYSTEM = "Answer from the documents, and from nothing else."
QUESTION_TOKENS = 256
"""Room for the question, the system message, the template and the answer."""

_BEGAN = time.monotonic()


def say(message: str) -> None:
    """Print progress with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {message}", flush=True)


@dataclass(frozen=True)
class Setting:
    """How a part runs.

    Attributes:
        quick: Whether to do less.
        cpu: Whether it is a trial on a CPU, with a tiny model.
        seconds: After which no further round is begun.
        shape: A shape of :mod:`models`.
    """

    quick: bool
    cpu: bool
    seconds: float
    shape: str

    @classmethod
    def parse(cls, description: str | None, seconds: float) -> Setting:
        """Read the command line."""
        parser = argparse.ArgumentParser(description=(description or "").split("\n", 1)[0])
        parser.add_argument("--quick", action="store_true", help="less work")
        parser.add_argument("--cpu", action="store_true", help="a tiny model on a CPU")
        parser.add_argument(
            "--seconds", type=float, default=seconds, help="begin nothing new after these"
        )
        parser.add_argument("--shape", help="of the model, see tools/gpu/models.py")
        given = parser.parse_args()
        shape = given.shape or ("llama-tiny" if given.cpu else "llama-8b")
        return cls(given.quick, given.cpu, given.seconds, shape)

    @cached_property
    def model(self) -> str:
        """Folder of the model, without weights."""
        return str(model_folder(self.shape))

    @property
    def dtype(self) -> str:
        """Numeric type; CPUs are slow at bfloat16."""
        return "float32" if self.cpu else "bfloat16"

    @cached_property
    def facts(self) -> ModelFacts:
        """Tokenizer and size of the KV cache."""
        return read_model_facts(self.model)

    @property
    def token_bytes(self) -> int:
        """Of the KV cache of one token."""
        size = self.facts.kv_bytes_per_token
        if size is None:
            raise SystemExit(f"the size of the KV cache of {self.shape} is unknown")
        return size * (2 if self.cpu else 1)  # the facts are for 16-bit numbers

    def gib(self, tokens: int) -> float:
        """Size of the KV cache of this number of tokens."""
        return tokens * self.token_bytes / GIB

    @property
    def left(self) -> float:
        """Seconds in which something new may begin."""
        return self.seconds - (time.monotonic() - _BEGAN)

    def vllm_args(self, **more: Any) -> dict[str, Any]:
        """The arguments that all engines share."""
        return {
            "load_format": "dummy",
            "max_num_batched_tokens": BATCHED_TOKENS,
            "max_num_seqs": SEQUENCES,
            "gpu_memory_utilization": FREE_SHARE,
            "enforce_eager": self.cpu,
            **more,
        }

    def engine(
        self, kv_tokens: int, window: int, *, vllm_args: Mapping[str, Any] | None = None, **own: Any
    ) -> RAGCacheEngine:
        """Start an engine.

        Args:
            kv_tokens: What the KV cache holds.
            window: Longest request.
            vllm_args: More arguments of vLLM.
            own: More of our own.
        """
        return RAGCacheEngine(
            self.model,
            dtype=self.dtype,
            kv_cache_gib=self.gib(kv_tokens),
            max_model_len=window,
            vllm_args=self.vllm_args(**(vllm_args or {})),
            **own,
        )

    def about(self) -> dict[str, Any]:
        """For the record."""
        return {
            "shape": self.shape,
            "weights": "dummy",
            "dtype": self.dtype,
            "device": device_name(),
            "cpu": self.cpu,
            "quick": self.quick,
        }

    def host_gib(self, most: float, contestants: int = 2) -> float:
        """Host memory of each contestant: all of them leave a fifth of what is free."""
        free = psutil.virtual_memory().available
        if CGROUP_LIMIT.exists() and (text := CGROUP_LIMIT.read_text().strip()) != "max":
            free = min(free, int(text))
        return min(most, 0.8 * free / GIB / contestants)


@dataclass
class Workload:
    """Documents of exact lengths, popular by Zipf's law, and requests for them.

    Args:
        setting: Whose tokenizer counts.
        count: How many documents.
        low: The shortest document, in tokens.
        high: The longest.
        top_k: Documents per request.
        exponent: Zipf's.
    """

    setting: Setting
    count: int
    low: int
    high: int
    top_k: int = 1
    exponent: float = 1.0
    texts: dict[str, str] = field(init=False)
    lengths: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        count_tokens = self.setting.facts.count_tokens
        words = Words(count_tokens)
        chance = random.Random(0)  # noqa: S311 - nothing secret
        names = [f"document-{number}" for number in range(self.count)]
        self.texts = {name: words(chance.randint(self.low, self.high), chance) for name in names}
        self.lengths = {name: count_tokens(text) for name, text in self.texts.items()}
        order = np.random.default_rng(0).permutation(self.count)
        self._popular = [names[at] for at in order]
        self._questions = [question.text for question in load_questions()]

    @property
    def tokens(self) -> int:
        """Of all documents."""
        return sum(self.lengths.values())

    @property
    def window(self) -> int:
        """Longest request."""
        return self.top_k * max(self.lengths.values()) + QUESTION_TOKENS

    def prompt(self, names: Sequence[str], number: int) -> Prompt:
        """A question about documents."""
        documents = [PromptDocument(self.texts[name], name) for name in names]
        question = self._questions[number % len(self._questions)]
        return Prompt.rag(f"{question} ({number})", documents, system=SYSTEM)

    def each(self) -> list[Prompt]:
        """A prompt for every document, the most popular ones last."""
        return [self.prompt([name], 10**6 + at) for at, name in enumerate(reversed(self._popular))]

    def prompts(self, requests: int, seed: int) -> list[Prompt]:
        """Requests; the same documents are popular with every seed."""
        chance = np.random.default_rng([seed, 1])
        return [self.draw(self.top_k, chance, seed * 10**4 + at) for at in range(requests)]

    def draw(self, documents: int, chance: np.random.Generator, number: int) -> Prompt:
        """A request with this number of documents."""
        ranks: list[int] = []
        while len(ranks) < documents:
            (rank,) = zipf_ranks(self.count, 1, self.exponent, chance)
            if rank not in ranks:
                ranks.append(rank)
        return self.prompt([self._popular[rank] for rank in ranks], number)


class Words:
    """Writes texts of random words. Words are tokenised apart, so that their tokens add up."""

    def __init__(self, count_tokens: Callable[[str], int]) -> None:
        words = {word for one in load_passages()[:PASSAGES] for word in one.text.split()}
        before = count_tokens("the")
        self._tokens = {
            word: count_tokens(f"the {word}") - before for word in sorted(words) if word.isalpha()
        }
        self._words = list(self._tokens)
        self._short = [word for word, tokens in self._tokens.items() if tokens == 1]

    def __call__(self, tokens: int, chance: random.Random) -> str:
        """A text of this number of tokens, but for its first word, which may have one more."""
        chosen, left = [], tokens
        while left > 0:
            word = chance.choice(self._words)
            if self._tokens[word] > left:
                word = chance.choice(self._short)
            chosen.append(word)
            left -= self._tokens[word]
        return " ".join(chosen)


def started(
    starts: Mapping[str, Any], needed: Sequence[str], stack: ExitStack
) -> tuple[dict[str, RAGCacheEngine], dict[str, str]]:
    """Start engines side by side.

    Args:
        starts: By name, what starts an engine.
        needed: Those without which nothing can be compared; they get a second chance, alone.
        stack: Closes them.

    Returns:
        The engines, and the errors of those that did not start.
    """
    engines: dict[str, RAGCacheEngine] = {}
    errors: dict[str, str] = {}
    say(f"starting {', '.join(starts)}")
    with ThreadPoolExecutor(len(starts)) as threads:
        futures = {name: threads.submit(start) for name, start in starts.items()}
    for name, future in futures.items():
        try:
            engines[name] = stack.enter_context(future.result())
        except RAGCacheError as error:
            errors[name] = str(error)[-2000:]
            say(f"{name} did not start: {errors[name]}")
    for name in needed:
        if name not in engines:
            say(f"starting {name} once more")
            engines[name] = stack.enter_context(starts[name]())
    # In the order of the arguments, whoever was the first.
    engines = {name: engines[name] for name in starts if name in engines}
    say("started: " + ", ".join(f"{name} {one.total_kv_tokens}" for name, one in engines.items()))
    return engines, errors


def compared(served: Mapping[str, Served], ours: str) -> dict[str, Any]:
    """What a round showed: TTFT in ms, cached shares, and ratios to ours with their intervals."""
    shown: dict[str, Any] = {
        name: {
            "requests": len(one.ttft),
            "ttft_median_ms": round(1e3 * statistics.median(one.ttft), 2),
            "ttft_p95_ms": round(1e3 * float(np.quantile(one.ttft, 0.95)), 2),
            "ttft_mean_ms": round(1e3 * statistics.fmean(one.ttft), 2),
            "cached_share": round(one.cached_share, 4),
        }
        for name, one in served.items()
    }
    for name, one in served.items():
        if name != ours:
            shown[f"{name}_over_{ours}"] = {
                "median": median_ratio(one.ttft, served[ours].ttft).as_list(4),
                "mean": mean_ratio(one.ttft, served[ours].ttft).as_list(4),
            }
    return shown


def medians(served: Mapping[str, Served]) -> str:
    """The median TTFT of each, for people."""
    return ", ".join(
        f"{name} {1e3 * statistics.median(one.ttft):.1f} ms" for name, one in served.items()
    )


def poisson(rate: float, requests: int, seed: Sequence[int]) -> list[float]:
    """Seconds at which requests arrive, at this rate a second."""
    gaps = np.random.default_rng(list(seed)).exponential(1 / rate, size=requests)
    return [float(arrival) for arrival in np.cumsum(gaps)]


def contest(
    engines: Mapping[str, RAGCacheEngine],
    prompts: Sequence[Prompt],
    arrivals: Sequence[float] | None,
    output_tokens: int,
    turn: int = 8,
) -> dict[str, Served]:
    """Let engines answer the same prompts in turns; who goes first changes with every turn.

    Args:
        engines: By name.
        prompts: What is asked.
        arrivals: When each prompt arrives; ``None`` for one after another. A queue must be able
            to build up, so that all of them are one turn.
        output_tokens: Length of every answer.
        turn: Prompts in a turn, if they come one after another.
    """
    sides = list(engines.items())
    served = {name: Served() for name in engines}
    if arrivals is not None:
        turn = len(prompts)
    for first in range(0, len(prompts), turn):
        for name, engine in sides:
            served[name].extend(
                serve(engine, prompts[first : first + turn], arrivals, output_tokens)
            )
        sides = sides[1:] + sides[:1]
    return served


def run_together(engines: Mapping[str, RAGCacheEngine], prompts: Sequence[Prompt]) -> None:
    """Let every engine compute prompts, all engines at once; nothing is timed."""

    def build(engine: RAGCacheEngine) -> None:
        for prompt in prompts:
            engine.prefill(prompt)

    with ThreadPoolExecutor(len(engines)) as threads:
        list(threads.map(build, engines.values()))
