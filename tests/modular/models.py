"""Tiny models of every architecture that is served, made on the spot, and what stock code says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from ragcache_integrations.prompts.pml.layout import Assembly, Fresh, Module, Placed
from ragcache_modular.kv.encoding import Patience
from ragcache_modular.kv.plan import plan_assembly
from ragcache_modular.model import ModularModel

VOCABULARY = 97
LIMIT = 640

_ROPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": LIMIT,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_theta": 10_000.0, **parameters}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**_ROPE, "rope_parameters": _rope(rope_type="default")}),
    "llama-linear": (
        "LlamaConfig",
        {**_ROPE, "rope_parameters": _rope(rope_type="linear", factor=2.0)},
    ),
    "llama-llama3": ("LlamaConfig", {**_ROPE, "rope_parameters": _rope(**LLAMA3)}),
    "llama-yarn": ("LlamaConfig", {**_ROPE, "rope_parameters": _rope(**YARN)}),
    "mistral": ("MistralConfig", {**_ROPE, "sliding_window": None}),
    "qwen2": ("Qwen2Config", {**_ROPE}),
    "qwen3": ("Qwen3Config", {**_ROPE}),
    "bloom": (
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 48, "n_layer": 3, "n_head": 4},
    ),
    "mpt": (
        "MptConfig",
        {
            "vocab_size": VOCABULARY,
            "d_model": 48,
            "n_layers": 3,
            "n_heads": 4,
            "max_seq_len": LIMIT,
        },
    ),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": LIMIT,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "opt": (
        "OPTConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "ffn_dim": 96,
            "word_embed_proj_dim": 32,
            "max_position_embeddings": LIMIT,
        },
    ),
}
EVERY = list(CONFIGS)
ROTARY = [name for name in EVERY if name.startswith(("llama", "mistral", "qwen"))]
ALIBI = ["bloom", "mpt"]
LEARNED = ["gpt2", "opt"]


def make(name: str, seed: int = 0, attention: str = "eager", **changes: Any) -> Any:
    """A model whose attention is sharp, so that what it says depends on the whole prompt."""
    kind, settings = CONFIGS[name]
    config = getattr(transformers, kind)(**{**settings, **changes})
    torch.manual_seed(seed)
    options = {} if name in ALIBI else {"attn_implementation": attention}
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32, **options)
    with torch.no_grad():
        for path, weights in model.named_parameters():
            if weights.ndim == 1:
                spread = 0.1
                weights.add_(torch.randn_like(weights) * spread)
                if "q_norm" in path or "k_norm" in path:
                    weights.mul_(1.5)
            elif "embed" in path or "wte" in path or "wpe" in path:
                weights.copy_(torch.randn_like(weights))
            else:
                width = weights.shape[0] if kind == "GPT2Config" else weights.shape[1]
                weights.copy_(torch.randn_like(weights) * 1.5 / width**0.5)
    return model.eval()


@cache
def stock(name: str) -> Any:
    """The model with the attention that transformers itself calls eager."""
    return make(name)


@cache
def served(name: str) -> ModularModel:
    """The same weights, served by this room."""
    return ModularModel(make(name, attention="sdpa"), store_bytes=2**24)


def some_tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist())


def module(name: str, start: int, length: int, seed: int) -> Module:
    return Module(name, some_tokens(length, seed), tuple(range(start, start + length)))


def fresh(start: int, length: int, seed: int) -> Fresh:
    return Fresh(some_tokens(length, seed), tuple(range(start, start + length)))


def documents(model: ModularModel, lengths: Sequence[int], query: int, seed: int) -> Assembly:
    """Modules behind each other, moved to their places where that is possible, and a question."""
    parts: list[Placed | Fresh] = []
    at = 0
    for number, length in enumerate(lengths):
        start = 0 if model.movable else at
        one = module(f"d{number}", start, length, 100 * seed + number)
        parts.append(Placed(one, at - start))
        at += length
    parts.append(fresh(at, query, 100 * seed + 99))
    return Assembly(tuple(parts))


def positions_of(name: str, positions: Sequence[int]) -> dict[str, Any]:
    """Argument that tells a stock model positions; with ALiBi it has none but 0, 1, 2."""
    if name in ALIBI:
        assert list(positions) == list(range(len(positions)))
        return {}
    return {"position_ids": torch.tensor([list(positions)])}


def full_prefill(name: str, assembly: Assembly) -> tuple[Tensor, Tensor]:
    """Logits of every token and keys and values of a prompt computed at once by stock code."""
    plan = plan_assembly(assembly)
    with torch.inference_mode():
        out = stock(name)(
            input_ids=torch.from_numpy(plan.token_ids)[None],
            past_key_values=transformers.DynamicCache(),
            use_cache=True,
            **positions_of(name, plan.positions.tolist()),
        )
    layers = [torch.stack([layer.keys[0], layer.values[0]]) for layer in out.past_key_values.layers]
    return out.logits[0], torch.stack(layers)


def token_by_token(name: str, assembly: Assembly, chosen: Any) -> Tensor:
    """Logits that stock code gives, told what is computed and what is taken as it was encoded.

    Tokens are gone through in the order of their positions: those that are computed are run alone
    with all before them in the cache, of the others the encoded keys and values are appended.
    """
    plan = plan_assembly(assembly)
    encoder = served(name)._parts.encoder
    past = transformers.DynamicCache()
    logits = torch.empty(0)
    encoded: dict[int, Tensor] = {}
    for run in plan.runs:
        placed = plan.placed[run.part]
        assert placed is not None
        moved = Module(
            placed.module.name,
            placed.module.token_ids,
            tuple(at + placed.shift for at in placed.module.positions),
            placed.module.params,
        )
        with encoder.lease(moved, "oracle", Patience()) as kept:
            for step in range(run.length):
                encoded[run.slot + step] = kept.data[:, :, None, :, run.offset + step, None]
    with torch.inference_mode():
        for slot in range(len(plan)):
            if plan.fresh[slot] or chosen[slot]:
                out = stock(name)(
                    input_ids=torch.tensor([[int(plan.token_ids[slot])]]),
                    past_key_values=past,
                    use_cache=True,
                    **(
                        {}
                        if name in ALIBI
                        else {"position_ids": torch.tensor([[int(plan.positions[slot])]])}
                    ),
                )
                logits = out.logits[0, -1]
            else:
                for layer, data in enumerate(encoded[slot]):
                    past.update(data[0], data[1], layer)
    return logits
