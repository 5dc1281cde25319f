"""The engines of the demo: stock vLLM, and one of ours that is used as if it were several.

Stock vLLM is ``AsyncLLM`` with its own prefix caching, the baseline of the demo and the benchmarks;
prompts are tokenised as one string through the model's chat template. We add only a thread for its
event loop. On a CPU it computes in the engine's process, as our engine does, which is faster than
vLLM's default of a further process. What engines print while they start is kept off the screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from tqdm import tqdm

from ragcache_integrations.core.blocks import Closeable
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.interrupts import remove_when_ended
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.arguments import GIB
from ragcache_integrations.engine.machine import (
    IN_ONE_PROCESS,
    compiler_caches,
    computes_on_cpu,
    openmp_environment,
)
from ragcache_integrations.errors import EngineError

__all__ = ["StockChunk", "StockEngine", "output_to", "preset", "quiet_start"]

BEST_SETTINGS = {
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # two cores can't spare one
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@contextlib.contextmanager
def _starting(folder: str) -> Iterator[None]:
    """Set the environment of processes that are started in the block, and restore ours after it.

    Args:
        folder: Folder of the sockets, which vLLM does not remove.
    """
    # Threads are bound as those of our engine.
    defaults = openmp_environment() | {"VLLM_RPC_BASE_PATH": folder}
    ours = {name: value for name, value in defaults.items() if name not in os.environ}
    ours |= compiler_caches(folder)
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


@dataclass(frozen=True, slots=True)
class StockChunk:
    """A piece of an answer. Every chunk has the token counts."""

    text: str
    prompt_tokens: int
    cached_tokens: int


class StockEngine(Closeable):
    """Unmodified vLLM with prefix caching on, at its best settings for a small machine.

    Args:
        model: Local path or hub name.
        kv_cache_gib: Memory for the KV cache in GiB.
        max_model_len: Context window in tokens; the model's own by default.
        dtype: Numeric type of weights and KV cache.
        vllm_args: Further arguments of vLLM's ``AsyncEngineArgs``.

    Raises:
        MissingExtraError: vLLM is not installed.
    """

    def __init__(
        self,
        model: str,
        kv_cache_gib: float,
        *,
        max_model_len: int | None = None,
        dtype: str = "auto",
        vllm_args: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in BEST_SETTINGS.items():
            os.environ.setdefault(name, value)
        alone = {"distributed_executor_backend": IN_ONE_PROCESS} if computes_on_cpu() else {}
        vllm = require("vllm", feature="The comparison with stock vLLM", extra="vllm")
        self._vllm = vllm
        arguments = vllm.AsyncEngineArgs(
            model=model,
            kv_cache_memory_bytes=int(kv_cache_gib * GIB),
            max_model_len=max_model_len,
            dtype=dtype,
            enable_prefix_caching=True,
            disable_log_stats=True,
            **(alone | dict(vllm_args or {})),
        )
        self._numbers = itertools.count(1)
        self._owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._folder = tempfile.TemporaryDirectory(prefix="ragcache-stock-")
        remove_when_ended(self._folder.name)
        with _starting(self._folder.name):
            self._engine: Any = self._run(self._start(arguments))
        self._tokenizer = self._engine.get_tokenizer()

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            msg = f"this engine belongs to process {self._owner}: start one in this process"
            raise EngineError(msg)

    async def _start(self, arguments: Any) -> Any:
        return self._vllm.AsyncLLMEngine.from_engine_args(arguments)

    def _run(self, coroutine: Any) -> Any:
        self._check_owner()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stream(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int
    ) -> Iterator[StockChunk]:
        """Answer a conversation greedily, piece by piece.

        Args:
            messages: ``role`` and ``content`` of every message.
            max_tokens: The most tokens to generate.
        """
        self._check_owner()
        inbox: queue.SimpleQueue[StockChunk | BaseException | None] = queue.SimpleQueue()
        task = asyncio.run_coroutine_threadsafe(
            self._answer(messages, max_tokens, inbox), self._loop
        )
        try:
            while (item := inbox.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            task.cancel()

    async def _answer(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int, inbox: queue.SimpleQueue[Any]
    ) -> None:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False
            )
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            sampling = self._vllm.SamplingParams(
                temperature=0,
                max_tokens=max_tokens,
                output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
            )
            prompt = {"prompt_token_ids": token_ids}
            number = str(next(self._numbers))
            async for output in self._engine.generate(prompt, sampling, number):
                inbox.put(
                    StockChunk(
                        output.outputs[0].text, len(token_ids), output.num_cached_tokens or 0
                    )
                )
            inbox.put(None)
        except BaseException as error:
            inbox.put(error)
            raise

    def reset_cache(self) -> None:
        """Empty the KV cache."""
        self._run(self._engine.reset_prefix_cache())

    def close(self) -> None:
        """End the engine and its processes. Idempotent."""
        if self._loop.is_closed() or os.getpid() != self._owner:
            return
        with contextlib.suppress(Exception):  # it may be dead already
            self._run(self._stop())
        self._engine = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._folder.cleanup()

    async def _stop(self) -> None:
        self._engine.shutdown()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_CALLS = ("generate", "agenerate", "generate_batch", "agenerate_batch", "stream", "astream")


def preset(engine: RAGCacheEngine, **call: Any) -> RAGCacheEngine:
    """The same engine, whose requests have some arguments.

    Args:
        engine: The engine.
        **call: What each request has, such as ``reuse="prefix"``.
    """
    return cast("RAGCacheEngine", _Preset(engine, call))


class _Preset:
    def __init__(self, engine: RAGCacheEngine, call: dict[str, Any]) -> None:
        self._engine, self._call = engine, call

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        return partial(value, **self._call) if name in _CALLS else value


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[TextIO]:
    """Redirect the output of this process and of those that it starts meanwhile to a file.

    File descriptors are redirected, so that the output of C++ code and of other processes is
    caught, too. Processes that were started meanwhile keep writing to the file afterwards.

    Args:
        log: The file, to which is appended.

    Yields:
        The screen: standard error as it was.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        with os.fdopen(os.dup(saved[1]), "w", encoding="utf-8", buffering=1) as screen:
            yield screen
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for target, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, target)
            os.close(descriptor)


@contextlib.contextmanager
def quiet_start(log: Path, what: str, steps: int, *, show_progress: bool) -> Iterator[tqdm[Any]]:
    """Redirect all output to a file, and count the steps of starting something on the screen.

    Args:
        log: The file, to which is appended.
        what: What is started.
        steps: Number of steps.
        show_progress: Whether to show the steps.

    Yields:
        The progress bar, which each step updates.
    """
    bar_format = "{desc}: {n_fmt} of {total_fmt} [{elapsed}]"
    with (
        output_to(log) as screen,
        tqdm(
            desc=what, total=steps, bar_format=bar_format, file=screen, disable=not show_progress
        ) as progress,
    ):
        yield progress
