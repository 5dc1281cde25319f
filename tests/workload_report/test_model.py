"""What is known of a model without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.workload_report.run import kv_bytes_per_token, read_model_facts

MISTRAL_7B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
WITHOUT_GROUPS = {key: value for key, value in MISTRAL_7B.items() if "key_value" not in key}
LATENT = {"num_hidden_layers": 27, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (MISTRAL_7B, 128 * 1024),  # RAGCache, table 1: 0.125 MiB
        (WITHOUT_GROUPS, 512 * 1024),  # LLaMA2-7B there: 0.5 MiB
        (MISTRAL_7B | {"head_dim": 64}, 64 * 1024),
        ({"text_config": MISTRAL_7B, "hidden_size": 1}, 128 * 1024),
        (MISTRAL_7B | {"layer_types": ["full_attention"] * 32}, 128 * 1024),
        (LATENT, 27 * 576 * 2),
        (MISTRAL_7B | {"layer_types": ["full_attention", "sliding_attention"]}, None),
        ({}, None),
        ({"num_hidden_layers": 2, "num_attention_heads": 0, "hidden_size": 8}, None),
        (MISTRAL_7B | {"hidden_size": "wide"}, None),
    ],
)
def test_bytes_of_a_tokens_kv_cache(config: dict[str, Any], size: int | None) -> None:
    assert kv_bytes_per_token(config) == size


def test_a_models_own_tokenizer_counts() -> None:
    facts = read_model_facts(str(default_model_path()))

    assert facts.count_tokens("one two three") > 0
    assert facts.count_tokens("one two three" * 10) > 5 * facts.count_tokens("one two three")
    assert facts.kv_bytes_per_token
    assert any("counted by the tokenizer" in note for note in facts.notes)


@pytest.mark.parametrize("model", [None, "nobody/has-this-model", "no name: at all"])
def test_without_a_model_at_hand_lengths_are_estimated(model: str | None) -> None:
    facts = read_model_facts(model)

    assert facts.count_tokens("x" * 41) == 11
    assert facts.kv_bytes_per_token is None
    assert any("estimated at 4 characters a token" in note for note in facts.notes)
    assert any("sizes are in tokens only" in note for note in facts.notes)


def test_a_folder_with_a_configuration_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MISTRAL_7B))
    facts = read_model_facts(str(tmp_path))

    assert facts.kv_bytes_per_token == 128 * 1024
    assert "A token's KV cache takes 128.0 KiB in 16-bit numbers." in facts.notes


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_folders_without_a_model_are_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"the model's .*config\.json"):
        read_model_facts(str(tmp_path))
