"""Engines that answer the same prompts: what is cached in each, and how it computes."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ragcache_integrations.engine import (
    EngineStats,
    Generation,
    Prompt,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.engine.tiny_model import default_model_path, random_model_path
from ragcache_integrations.resources.cache import cache_home
from tests.support.bursts import BATCH, answer, options
from tools.gpu.models import weighted_folder

GIB = 1 << 30
SMALL_TOKENS = 768
"""So small that requests push one another's documents, and sometimes one another, out."""
HOST_TOKENS = 1760
ROOMY_TOKENS = 19_200
CONTEXT_TOKENS = 512
CHUNK_TOKENS = 96
"""So small that most prompts are computed in several chunks, cut elsewhere after a hit."""
ALTERNATIVES = 5
ALONE = 40
EMPTY_SECONDS = 10.0
WORKER = "tools.gpu.watched_worker.WatchedWorker"


@dataclass(frozen=True)
class Mode:
    """How numbers are computed.

    Attributes:
        dtype: Type of weights and KV cache.
        environment: Environment variables of the engine.
        equal: Whether equal tokens are expected.
    """

    dtype: str
    environment: Mapping[str, str] = field(default_factory=dict)
    equal: bool = True


MODES = {
    "invariant": Mode("bfloat16", {"VLLM_BATCH_INVARIANT": "1"}, equal=False),
    "default": Mode("bfloat16", equal=False),
    "float32": Mode("float32", {"TRITON_F32_DEFAULT": "ieee"}),
}


@dataclass(frozen=True)
class Contestant:
    """One engine and what it is asked.

    Attributes:
        tree: Whether the knowledge tree is on.
        caching: Whether vLLM's prefix caching is on.
        small: Whether the GPU's cache has :data:`SMALL_TOKENS`, else :data:`ROOMY_TOKENS`.
        host: Whether there is a host tier, of :data:`HOST_TOKENS`.
        alone: Whether prompts are also answered one by one, each with an empty cache.
        again: Whether all prompts are answered twice.
        aborts: Whether other requests are begun and aborted meanwhile.
        asynchronous: Whether steps are planned ahead; ``None`` for vLLM's default.
        chunk: Most tokens computed in a step; ``None`` for vLLM's default.
        graphs: Whether the model is compiled and captured in CUDA graphs, as by default.
        wrong_slots: Whether blocks are read back from wrong places.
    """

    tree: bool = True
    caching: bool = True
    small: bool = False
    host: bool = False
    alone: bool = False
    again: bool = False
    aborts: bool = False
    asynchronous: bool | None = None
    chunk: int | None = None
    graphs: bool = False
    wrong_slots: bool = False


UNCACHED = Contestant(tree=False, caching=False)
STOCK = Contestant(tree=False, small=True)
ROOMY = Contestant(alone=True, again=True)
SMALL = Contestant(small=True, host=True, aborts=True)

ALL = {
    "uncached": UNCACHED,
    "tree": ROOMY,
    "tree, small, host tier, aborts": SMALL,
    "tree, small, host tier, aborts, synchronous": replace(SMALL, asynchronous=False),
    "tree, chunks": replace(ROOMY, alone=False, chunk=CHUNK_TOKENS),
    "stock, small": STOCK,
    "wrong slots": replace(SMALL, aborts=False, wrong_slots=True),
}
GRAPHS = {
    "uncached": replace(UNCACHED, graphs=True),
    "tree": replace(ROOMY, alone=False, graphs=True),
    "tree, small, host tier, aborts": replace(SMALL, graphs=True),
    "stock, small": replace(STOCK, graphs=True),
}
FEW = {name: ALL[name] for name in ("uncached", "tree, small, host tier, aborts", "stock, small")}


@dataclass(frozen=True)
class Group:
    """Engines whose answers are compared with those of the first one, ``uncached``."""

    model: str
    mode: str
    contestants: Mapping[str, Contestant]
    label: str = ""

    @property
    def name(self) -> str:
        """What the group is called in the results."""
        return ", ".join(part for part in (self.model, self.mode, self.label) if part)


CUDA_GROUPS = (
    Group("random", "float32", ALL),
    Group("random", "float32", GRAPHS, "CUDA graphs"),
    Group("random", "default", GRAPHS, "CUDA graphs"),
    Group("llama-1b", "default", FEW),
    Group("reader", "default", FEW),
    Group("random", "invariant", FEW),
)
CPU_GROUPS = (
    Group("random", "float32", ALL),
    Group("llama-tiny", "float32", FEW),
    Group("reader", "float32", FEW),
)
VARIETY = {"random": 0.9, "reader": 0.3}
"""Least share of different answers; the reader begins many of its answers alike."""
LEAST_VARIETY = 0.9


@dataclass
class Outcome:
    """What an engine did.

    Attributes:
        answers: Its answers, by the name of the pass.
        stats: Its counts afterwards.
        facts: How it was set up.
        seconds: From its start to its end.
    """

    answers: dict[str, list[Generation]]
    stats: EngineStats
    facts: dict[str, Any]
    seconds: float


def sampling(number: int) -> SamplingOptions:
    """Options of a prompt; every fourth reports log-probabilities."""
    return replace(options(number), logprobs=None if number % 4 else ALTERNATIVES)


def model_path(model: str) -> Path:
    """Folder of a model by its name here: ``random`` and ``reader`` are the bundled ones."""
    if model == "random":
        return random_model_path()
    return default_model_path() if model == "reader" else weighted_folder(model)


def token_bytes(folder: Path, dtype: str) -> int:
    """Bytes of a token's KV cache."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    numbers = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    return int(numbers * (4 if dtype == "float32" else 2))


def watch_folder() -> Path:
    """Where workers write down how their engines are set up.

    Always the same, because it is part of the configuration by which compiled code is found again.
    """
    folder = cache_home() / "watched"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def facts_of(engine: RAGCacheEngine) -> dict[str, Any]:
    """How an engine is set up, once it has computed something."""
    path = watch_folder() / f"{engine.pid}.json"
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return facts


def engine_of(contestant: Contestant, folder: Path, dtype: str, *, cpu: bool) -> RAGCacheEngine:
    """Start a contestant's engine."""
    size = 32 if cpu else 16
    tokens = SMALL_TOKENS if contestant.small else ROOMY_TOKENS
    each = token_bytes(folder, dtype)
    arguments: dict[str, Any] = {
        "enforce_eager": cpu or not contestant.graphs,
        "block_size": size,
        "num_gpu_blocks_override": tokens // size,
        "max_num_seqs": 8 if contestant.small else BATCH,
        "enable_prefix_caching": contestant.caching,
        "worker_cls": WORKER,
        "additional_config": {"watch": str(watch_folder()), "wrong_slots": contestant.wrong_slots},
    }
    if not cpu:
        arguments["gpu_memory_utilization"] = 0.1  # several run at the same time
    if contestant.chunk is not None:
        arguments["max_num_batched_tokens"] = contestant.chunk
    if contestant.asynchronous is not None:
        arguments["async_scheduling"] = contestant.asynchronous
    tree: dict[str, Any] = {
        "reorder_window": 8,
        "host_cache_gib": contestant.host * HOST_TOKENS * each / GIB,
    }
    return RAGCacheEngine(
        folder,
        kv_cache_gib=1.05 * tokens * each / GIB,
        max_model_len=CONTEXT_TOKENS,
        dtype=dtype,
        knowledge_tree=contestant.tree,
        max_restarts=0,
        vllm_args=arguments,
        **(tree if contestant.tree else {}),
    )


def run_contestant(
    contestant: Contestant, folder: Path, dtype: str, prompts: Sequence[Prompt], *, cpu: bool
) -> Outcome:
    """Start an engine, ask it everything and end it."""
    began = time.monotonic()
    answers: dict[str, list[Generation]] = {}
    with engine_of(contestant, folder, dtype, cpu=cpu) as engine:
        if contestant.alone:
            answers["cold"] = []
            for number, prompt in enumerate(prompts[:ALONE]):
                empty(engine)
                answers["cold"].append(engine.generate(prompt, sampling(number)))
            empty(engine)
        answers["burst"] = answer(engine, prompts, aborts=contestant.aborts, options=sampling)
        if contestant.again:
            answers["cached"] = answer(engine, prompts, aborts=False, options=sampling)
        return Outcome(
            answers, engine.stats(), facts_of(engine), round(time.monotonic() - began, 1)
        )


def empty(engine: RAGCacheEngine) -> None:
    """Empty the cache, once the last step of the last request has ended."""
    deadline = time.monotonic() + EMPTY_SECONDS
    while not engine.reset_cache():
        if time.monotonic() > deadline:
            raise TimeoutError("the cache is still in use")
        time.sleep(0.01)


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of the engines that are started in the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
