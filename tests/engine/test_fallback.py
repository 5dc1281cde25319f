"""Where the knowledge tree can't work, the engine is stock vLLM, and says once why."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.engine import (
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.engine.tiny_model import default_model_path

pytestmark = pytest.mark.engine

EAGER = {"enforce_eager": True}
WINDOW = 64
OPTIONS = SamplingOptions(max_tokens=8, ignore_eos=True)
PROMPT = Prompt.rag(
    "Which river is the longest?",
    [
        PromptDocument("The Nile flows north through eleven countries. " * 12, "nile"),
        PromptDocument("The Amazon carries more water than any other river. " * 12, "amazon"),
    ],
)

Answers = list[tuple[int, ...]]


def model_with_a_window(folder: Path, **changes: Any) -> str:
    """The tiny model's weights, read as Mistral's, whose layers see a few tokens back only."""
    original = default_model_path()
    for file in original.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((original / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": WINDOW} | changes))
    return str(folder)


def answers(engine: RAGCacheEngine) -> Answers:
    """Cold, and again."""
    return [engine.generate(PROMPT, OPTIONS).token_ids for _ in range(2)]


def start(model: str | None, vllm_args: dict[str, Any], **knobs: Any) -> RAGCacheEngine:
    return RAGCacheEngine(
        model,
        kv_cache_gib=0.125,
        dtype="float32",
        vllm_args=EAGER | vllm_args,
        **{"max_model_len": 1024} | knobs,
    )


def check_fallback(
    model: str | None,
    vllm_args: dict[str, Any],
    expected: Answers,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It starts, warns once, answers as stock vLLM does, and tells of no tree."""
    caplog.clear()
    with start(model, vllm_args, host_cache_gib=0.05) as engine:
        assert answers(engine) == expected
        assert engine.stats().tree is None
        assert engine.tree() is None
    warnings = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and "tree" in record.getMessage()
    ]
    assert warnings == [
        f"the knowledge tree is off, documents are cached as vLLM does: {reason}",
    ]


def test_without_prefix_caching(engine: RAGCacheEngine, caplog: pytest.LogCaptureFixture) -> None:
    check_fallback(
        None,
        {"enable_prefix_caching": False},
        answers(engine),
        "prefix caching is off, or the model does not support it",
        caplog,
    )


def test_another_scheduler_is_left_alone(
    engine: RAGCacheEngine, caplog: pytest.LogCaptureFixture
) -> None:
    check_fallback(
        None,
        {"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"},
        answers(engine),
        "vllm_args chose another scheduler",
        caplog,
    )


@pytest.mark.parametrize(
    ("changes", "blocks"),
    # Of a model with windows alone, vLLM 0.27 asks for more memory than it uses.
    [({}, 28), ({"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, 48)],
    ids=["sliding window", "hybrid"],
)
def test_a_model_that_does_not_see_all_of_the_prompt_has_a_tree_and_a_host_tier(
    changes: dict[str, Any], blocks: int, tmp_path: Path
) -> None:
    """The GPU is so small that both tiers are in use, and the process is killed in between."""
    model = model_with_a_window(tmp_path, **changes)
    rivers = ["Congo", "Lena", "Mekong", "Niger"]
    prompts = [
        Prompt.rag(
            "Which is longer?",
            [
                PromptDocument(f"The {river} flows through {river} land. " * 9, river)
                for river in (first, second)
            ],
        )
        for first, second in itertools.permutations(rivers, 2)
    ]

    def ask(engine: RAGCacheEngine) -> Answers:
        return [engine.generate(prompt, OPTIONS).token_ids for prompt in prompts]

    with start(model, {"enable_prefix_caching": False}, knowledge_tree=False) as plain:
        expected = ask(plain)
    assert len(set(expected)) > len(expected) / 2
    small = {"block_size": 32, "num_gpu_blocks_override": blocks}
    with start(model, small, max_model_len=416, host_cache_gib=0.05) as engine:
        for _ in range(2):
            assert ask(engine) == expected
        stats = engine.stats().tree
        os.kill(engine.pid, signal.SIGKILL)
        assert ask(engine) == expected
        tree = engine.tree()
    assert stats is not None
    assert stats.documents_hit_host > len(rivers)
    assert tree is not None
    assert {"gpu", "host"} <= {node.place for node in tree.nodes()}
