"""What is known of a model without loading it: its tokenizer, and its KV cache's size."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.texts import CHARACTERS_PER_TOKEN, estimate_tokens
from ragcache_integrations.errors import ConfigurationError, MissingExtraError

__all__ = ["ModelFacts", "kv_bytes_per_token", "read_model_facts"]

KV_BYTES = 2
"""Bytes of a number in the KV cache: vLLM's own choice is a 16-bit type for every model."""

FULL_ATTENTION = "full_attention"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of a model that the report needs.

    Attributes:
        count_tokens: Counts the tokens of a text.
        kv_bytes_per_token: Size of a token's KV cache in bytes; ``None`` if unknown.
        notes: How both were determined, in sentences.
    """

    count_tokens: Callable[[str], int]
    kv_bytes_per_token: int | None
    notes: tuple[str, ...]


def read_model_facts(model: str | None) -> ModelFacts:
    """Read the facts of a model; nothing is downloaded.

    Args:
        model: Folder, or hub name of a model that has been downloaded before; ``None`` for none.

    Raises:
        ConfigurationError: A folder without a readable ``config.json``.
    """
    if model is None:
        return ModelFacts(
            estimate_tokens, None, (_ESTIMATED, "No model was named: sizes are in tokens only.")
        )
    config, size = _config(model), None
    counter = _tokenizer(model)
    tokens = _ESTIMATED if counter is None else f"Texts are counted by the tokenizer of {model}."
    if config is None:
        memory = f"The config.json of {model} is not on this machine: sizes are in tokens only."
    elif (size := kv_bytes_per_token(config)) is None:
        memory = (
            f"The config.json of {model} does not show the size of its KV cache, or its layers "
            "keep different ones: sizes are in tokens only."
        )
    else:
        memory = f"A token's KV cache takes {size / 1024:,.1f} KiB in {8 * KV_BYTES}-bit numbers."
    return ModelFacts(counter or estimate_tokens, size, (tokens, memory))


_ESTIMATED = (
    f"Texts are estimated at {CHARACTERS_PER_TOKEN} characters a token, and at 1 or 2 in other "
    "scripts than the Latin one."
)


def kv_bytes_per_token(config: Mapping[str, Any]) -> int | None:
    """Size of a token's KV cache, both keys and values, over all layers.

    Args:
        config: A model's ``config.json`` as Hugging Face has them.

    Returns:
        Bytes; ``None`` if the configuration does not show it, and for models whose layers do not
        all keep the whole prompt.
    """
    config = config.get("text_config") or config
    if any(kind != FULL_ATTENTION for kind in config.get("layer_types") or ()):
        return None
    try:
        layers = int(config["num_hidden_layers"])
        if config.get("kv_lora_rank"):  # multi-head latent attention keeps one vector per layer
            return (
                layers * (int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"])) * KV_BYTES
            )
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_size = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return 2 * layers * kv_heads * head_size * KV_BYTES or None


def _config(model: str) -> Mapping[str, Any] | None:
    folder = Path(model).expanduser()
    path = folder / "config.json" if folder.is_dir() else _downloaded(model, "config.json")
    if path is None:
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the model's {path}: {error}") from error
    if not isinstance(config, Mapping):
        raise ConfigurationError(f"the model's {path} is no JSON object")
    return config


def _downloaded(model: str, name: str) -> Path | None:
    """Path of a file of a model on the hub, if it was downloaded before."""
    try:
        hub = require("huggingface_hub", feature="finding a model", extra="tokenizer")
    except MissingExtraError:
        return None
    try:
        path = hub.try_to_load_from_cache(model, name)
    except ValueError:  # no name that the hub could have
        return None
    return Path(path) if isinstance(path, str) else None


def _tokenizer(model: str) -> Callable[[str], int] | None:
    try:
        transformers = require("transformers", feature="counting tokens", extra="tokenizer")
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            str(Path(model).expanduser()), local_files_only=True
        )
    except (ImportError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # its files cannot be read: the report estimates, and its notes say so
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False, verbose=False))
