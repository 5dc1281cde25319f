"""Tiny models with random weights and the layers of well-known families."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from ragcache_integrations.engine.tiny_model import random_model_path

__all__ = ["SHAPES", "make_model"]

WINDOW = 64
VOCABULARY = 4096
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
SLIDING, FULL = "sliding_attention", "full_attention"
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 128,
}


def _mistral() -> Any:
    return transformers.MistralConfig(**COMMON, num_hidden_layers=3, sliding_window=WINDOW)


def _gemma3() -> Any:
    return transformers.Gemma3TextConfig(
        **COMMON,
        num_hidden_layers=6,
        sliding_window=WINDOW,
        layer_types=[SLIDING] * 5 + [FULL],
        query_pre_attn_scalar=64,
    )


def _gpt_oss() -> Any:
    return transformers.GptOssConfig(
        **COMMON,
        num_hidden_layers=4,
        sliding_window=WINDOW,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=[SLIDING, FULL] * 2,
        rope_parameters=YARN,
    )


SHAPES: dict[str, Callable[[], Any]] = {
    "mistral": _mistral,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
}
"""All layers with a window; five with one and one without; every second with one, sinks and
experts."""


def make_model(shape: str, folder: Path) -> str:
    """Write a model into a folder.

    Args:
        shape: Of :data:`SHAPES`.
        folder: Exists.

    Returns:
        The folder.
    """
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(SHAPES[shape](), dtype=torch.float32)
    with torch.no_grad():
        for weights in model.parameters():
            # Large enough that different prompts have different answers.
            if weights.ndim > 1:
                weights.normal_(0, 1.5 / weights.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(random_model_path("random-small") / file, folder)
    return str(folder)
