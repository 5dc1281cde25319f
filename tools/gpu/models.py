"""Models of real shapes with random weights, as folders that vLLM loads.

A folder of :func:`model_folder` holds a configuration and a tokenizer, but no weights: an engine
makes them itself with ``vllm_args={"load_format": "dummy"}``. Such weights are so small that every
answer is alike, which suits measurements of time. :func:`weighted_folder` writes weights, too, with
which the answer depends on the whole prompt, as comparisons of answers need.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from ragcache_integrations.engine.tiny_model import random_model_path
from ragcache_integrations.resources.cache import build_once, cache_home

__all__ = ["SHAPES", "model_folder", "weighted_folder"]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
}

SHAPES: dict[str, dict[str, Any]] = {
    "llama-8b": LLAMA
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "intermediate_size": 14336,
        "tie_word_embeddings": False,
    },
    "llama-1b": LLAMA
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "llama-tiny": LLAMA
    | {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 512,
        "vocab_size": 32768,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 262144,
        "hidden_size": 1152,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 6912,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "max_position_embeddings": 32768,
    },
    "gemma3-tiny": {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 32768,
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "intermediate_size": 512,
        "query_pre_attn_scalar": 64,
        "sliding_window": 128,
        "max_position_embeddings": 32768,
    },
}
"""Arguments of transformers' configurations; the tiny ones are for runs on a CPU. The rotary
embedding of Llama 3.1 is there without its scaling."""

SPECIAL_TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
"""Numbers of the special tokens of the tokenizer, which is that of the tiny default model."""

# Standard deviations of what a matrix puts out for an input of unit variance, as in the tiny
# default model: the first layer attends sharply, to a few tokens among a thousand, so that the
# answer depends on the whole prompt; the others average, which keeps rounding errors small.
SHARP_SPREADS = {"q_proj": 4.0, "o_proj": 2.0}
RECIPE = 3
"""To be raised when the code below draws other weights, or takes another tokenizer."""
SPREADS = {"q_proj": 0.5, "k_proj": 1.5, "down_proj": 0.5, "embed_tokens": 2.5, "lm_head": 2.5}


def configuration(shape: str) -> Any:
    """The configuration of a shape, as transformers' class.

    Raises:
        KeyError: There is no such shape.
    """
    from transformers import Gemma3TextConfig, LlamaConfig  # noqa: PLC0415 - takes seconds

    kind: Any = Gemma3TextConfig if shape.startswith("gemma") else LlamaConfig
    return kind(dtype="bfloat16", **SPECIAL_TOKENS, **SHAPES[shape])


def model_folder(shape: str) -> Path:
    """Folder of a model without weights, which is made on the first call.

    Args:
        shape: A name of :data:`SHAPES`.
    """
    return build_once(
        _home(shape, [SHAPES[shape], RECIPE]), lambda made: _write_configuration(shape, made)
    )


def weighted_folder(shape: str, seed: int = 0) -> Path:
    """Folder of a model with random weights in bfloat16, which is made on the first call.

    Args:
        shape: A name of :data:`SHAPES`.
        seed: Seed of the weights. They are drawn on the GPU if there is one; other devices draw
            other numbers.
    """

    def build(made: Path) -> None:
        _write_configuration(shape, made)
        _write_weights(shape, made, seed)

    return build_once(_home(shape, [SHAPES[shape], SPREADS, SHARP_SPREADS, seed, RECIPE]), build)


def _home(shape: str, recipe: Any) -> Path:
    digest = hashlib.blake2b(json.dumps(recipe).encode(), digest_size=8).hexdigest()
    return cache_home() / "models" / f"{shape}-{digest}"


def _write_configuration(shape: str, folder: Path) -> None:
    config = configuration(shape)
    config.save_pretrained(folder)
    tiny = random_model_path()
    shutil.copy(tiny / "tokenizer.json", folder)
    tokenizer = json.loads((tiny / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer["model_max_length"] = config.max_position_embeddings
    _write_json(folder / "tokenizer_config.json", tokenizer)
    special = {name: SPECIAL_TOKENS[name] for name in ("bos_token_id", "eos_token_id")}
    _write_json(folder / "generation_config.json", special | {"do_sample": False})


def _write_weights(shape: str, folder: Path, seed: int) -> None:
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(configuration(shape), dtype=torch.bfloat16)
    gemma = shape.startswith("gemma")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            kind = name.split(".")[-2]
            if weight.dim() > 1:
                scaled = gemma and kind == "embed_tokens"  # by the root of its width
                weight.normal_(
                    std=_spread(name, kind) / weight.shape[1] ** (1.0 if scaled else 0.5)
                )
            elif gemma and kind == "q_norm" and ".layers.0." in name:
                weight.fill_(SHARP_SPREADS["q_proj"] - 1)  # whatever the spread of q_proj
    model.save_pretrained(folder)


def _spread(name: str, kind: str) -> float:
    sharp = SHARP_SPREADS if ".layers.0." in name else {}
    return sharp.get(kind, SPREADS.get(kind, 1.0))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
