"""Forks while threads ask an engine: ``python -m tests.engine.forks``."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

import pytest

from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.errors import EngineError
from tests.support.forking import Hammer, in_child

PROMPT = Prompt.rag("how far is it to the moon?")
SHORT = SamplingOptions(max_tokens=3)
LONG = SamplingOptions(max_tokens=4000, ignore_eos=True)
CHILDREN = 10


def refused(call: Callable[[], object]) -> None:
    """See that a call says whose engine it is, without waiting for anything."""
    words = f"this engine belongs to process {os.getppid()}, .* start one in this process"
    with pytest.raises(EngineError, match=words):
        call()


def main() -> None:
    arguments = {"enforce_eager": True}
    with RAGCacheEngine(kv_cache_gib=0.125, vllm_args=arguments) as engine:
        begun = engine.stream(PROMPT, LONG)
        next(begun)

        def work() -> None:
            refused(lambda: engine.generate(PROMPT, SHORT))
            refused(lambda: asyncio.run(engine.agenerate(PROMPT, SHORT)))
            refused(lambda: engine.stream(PROMPT, SHORT))
            refused(lambda: next(begun))
            begun.close()
            engine.close()

        ask = [lambda _: engine.generate(PROMPT, SHORT)] * 2
        with Hammer(*ask):
            for _ in range(CHILDREN):
                in_child(work)
        next(begun)  # no child has aborted it
        begun.close()
        assert engine.generate(PROMPT, SHORT).usage.completion_tokens == 3


if __name__ == "__main__":
    main()
    sys.stdout.write("done\n")
