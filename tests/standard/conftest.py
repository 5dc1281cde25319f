"""An engine for structured output."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import numpy as safetensors
from tokenizers import Tokenizer

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.tiny_model import default_model_path

CLOSING = 5.0  # the quotation mark's logit spreads this many times wider than other tokens'


@pytest.fixture(scope="session")
def closing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, but one that closes its strings.

    A model that draws from thousands of tokens at random writes hundreds of them before it hits
    the one that ends a JSON string. Nothing else differs.
    """
    folder = tmp_path_factory.mktemp("models") / "closing"
    shutil.copytree(default_model_path(), folder)
    weights = safetensors.load_file(folder / "model.safetensors")
    quote = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id('"')
    weights["lm_head.weight"][quote] *= CLOSING
    safetensors.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def closing_engine(closing_model: Path) -> Iterator[RAGCacheEngine]:
    """The real engine with that model, and JSON without white space, which would go on as long."""
    with RAGCacheEngine(
        closing_model,
        kv_cache_gib=0.25,
        dtype="float32",
        vllm_args={
            "enforce_eager": True,
            "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        },
    ) as shared:
        yield shared
