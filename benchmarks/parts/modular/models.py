"""Models of several sizes and architectures, made on the spot with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import transformers

__all__ = ["SIZES", "architecture", "llama", "parameters"]

VOCABULARY = 4096
LIMIT = 16384

SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"4 x 256": (4, 256), "6 x 512": (6, 512), "12 x 1024": (12, 1024)}
)
"""Layers and hidden size by name; four query heads share a head of keys of 64."""


def llama(size: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """A Llama of one of the sizes; the same weights every time."""
    layers, hidden = SIZES[size]
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 256),
        head_dim=64,
        max_position_embeddings=LIMIT,
    )
    torch.manual_seed(0)
    return _made(config, dtype).to(device)


def parameters(model: Any) -> int:
    """How many numbers a model has learnt."""
    return sum(weights.numel() for weights in model.parameters())


def architecture(kind: str) -> Any:
    """A tiny model of an architecture, whose attention is sharp enough to tell prompts apart."""
    config = transformers.AutoConfig.for_model(kind, **_TINY[kind])
    torch.manual_seed(1)
    model = _made(config, torch.float32)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim > 1:
                looked_up = any(part in name for part in ("embed", "wte", "wpe"))
                # GPT-2 keeps its matrices the other way round.
                width = 1 if looked_up else weights.shape[0 if kind == "gpt2" else 1]
                spread = 1.0 if looked_up else 1.5
                weights.copy_(torch.randn_like(weights) * spread / width**0.5)
    return model


def _made(config: Any, dtype: torch.dtype) -> Any:
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


_ROPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
}
_TINY: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "llama": _ROPE,
        "mistral": {**_ROPE, "sliding_window": None},
        "qwen2": _ROPE,
        "qwen3": _ROPE,
        "bloom": {"vocab_size": 97, "hidden_size": 48, "n_layer": 3, "n_head": 4},
        "mpt": {"vocab_size": 97, "d_model": 48, "n_layers": 3, "n_heads": 4, "max_seq_len": 512},
        "gpt2": {
            "vocab_size": 97,
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 512,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "opt": {
            "vocab_size": 97,
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "ffn_dim": 96,
            "word_embed_proj_dim": 48,
            "max_position_embeddings": 512,
        },
    }
)
