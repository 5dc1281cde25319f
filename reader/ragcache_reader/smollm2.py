"""SmolLM2-135M-Instruct from its GGUF file, in the format of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .gguf import Gguf

__all__ = ["config", "generation_config", "tokenizer", "tokenizer_config", "weights"]

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Of a layer's tensors, in GGUF and in transformers."""
_CONTROL = 3
"""The kind of a token that is markup."""


def weights(model: Gguf) -> dict[str, NDArray[np.float32]]:
    """The weights by their names in transformers; embeddings are shared with the head."""
    named = {
        "model.embed_tokens.weight": model.tensors["token_embd.weight"],
        "model.norm.weight": model.tensors["output_norm.weight"],
    }
    heads = {
        "attn_q": model.facts["llama.attention.head_count"],
        "attn_k": model.facts["llama.attention.head_count_kv"],
    }
    for layer in range(model.facts["llama.block_count"]):
        for theirs, ours in _NAMES.items():
            tensor = model.tensors[f"blk.{layer}.{theirs}.weight"]
            if theirs in heads:
                tensor = _halves_apart(tensor, heads[theirs])
            named[f"model.layers.{layer}.{ours}.weight"] = tensor
    return named


def _halves_apart(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows as transformers has them: pairs that RoPE turns are half a head apart, not adjacent."""
    size = len(rows) // heads
    return np.swapaxes(rows.reshape(heads, size // 2, 2, -1), 1, 2).reshape(rows.shape)


def config(model: Gguf) -> dict[str, Any]:
    """What ``config.json`` says."""
    facts = model.facts
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts["llama.vocab_size"],
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": 1e-5,
        "rope_theta": facts["llama.rope.freq_base"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
    }


def generation_config(model: Gguf) -> dict[str, Any]:
    """What ``generation_config.json`` says: it answers greedily."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    ids = {name: config(model)[name] for name in names}
    # The first is for transformers, the second for vLLM, which samples at 1 where none is named.
    return ids | {"do_sample": False, "temperature": 0.0}


def tokenizer(model: Gguf) -> dict[str, Any]:
    """What ``tokenizer.json`` says: byte-level BPE in which each digit stands alone."""
    tokens = model.facts["tokenizer.ggml.tokens"]
    kinds = model.facts["tokenizer.ggml.token_type"]
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
    }  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": place,
                "content": tokens[place],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for place, kind in enumerate(kinds)
            if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: place for place, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in model.facts["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(model: Gguf) -> dict[str, Any]:
    """What ``tokenizer_config.json`` says."""
    tokens = model.facts["tokenizer.ggml.tokens"]
    named = {
        f"{name}_token": tokens[model.facts[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.facts["llama.context_length"],
        **named,
        "clean_up_tokenization_spaces": False,
        "chat_template": model.facts["tokenizer.chat_template"],
    }
