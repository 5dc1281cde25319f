"""From a file of traffic to the findings.

A model is not loaded: only its tokenizer, and the size of its KV cache, are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragcache_integrations.core.checks import check_int, check_number, or_none
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.texts import CHARACTERS_PER_TOKEN, estimate_tokens
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.errors import ConfigurationError, MissingExtraError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel, load_profile
from ragcache_workbench.simulation import MOST_REPLICAS, characterise, load_workload

from .comparisons import (
    REQUESTS_PER_DAY,
    compare_routings,
    provider_shares,
)
from .report import Findings

__all__ = [
    "REQUESTS_PER_DAY",
    "ModelFacts",
    "characterise_workload",
    "kv_bytes_per_token",
    "read_model_facts",
]

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


def characterise_workload(
    path: Path,
    model: str | None = None,
    *,
    replicas: int | None = None,
    rate: float | None = None,
    requests_per_day: float = REQUESTS_PER_DAY,
    show_progress: bool = False,
) -> Findings:
    """Find out whether caching pays for the traffic in a file.

    Prefill times are those that ``ragcache profile`` has stored for the model on this machine,
    else those of the default cost model.

    Args:
        path: The log; :mod:`ragcache_workbench.simulation.workload` has the
            format.
        model: Folder or hub name of the model that answers; ``None`` for none in particular.
        replicas: Simulate this many replicas with a router in front, too.
        rate: Requests a second for all of them; ``None`` for 80 % of what they could serve without
            any cache.
        requests_per_day: How many requests like these a day has, which decides what a hosted
            model's prompt cache still holds.
        show_progress: Show a progress bar.

    Raises:
        ConfigurationError: The file is wrong, the model's folder is, or a number is out of range.
    """
    replicas = or_none(check_int)("replicas", replicas, 1, MOST_REPLICAS)
    rate = or_none(check_number)("rate", rate, 0, above=True, unit="requests a second")
    if model is not None:
        model = _resolved(model)
    facts = read_model_facts(model)
    workload = load_workload(path, facts.count_tokens)
    providers = provider_shares(workload.trace, requests_per_day)
    profile = None if model is None else load_profile(model, device_name())
    if profile is not None:
        times = f"Prefill times are those measured for {model} on {device_name()}."
    else:
        times = "Prefill times are the default cost model's, a 7B model on an NVIDIA A10G: " + (
            "no model was named." if model is None else f"{model} was not profiled here yet."
        )
    costs = profile or PrefillCostModel.default()
    result = characterise(workload.trace, prefill_seconds=costs, show_progress=show_progress)
    return Findings(
        name=path.name,
        workload=workload,
        result=result,
        requests_per_day=requests_per_day,
        providers=providers,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        origins=(times, *facts.notes),
        replicas=None
        if replicas is None
        else compare_routings(workload, result, costs, replicas=replicas, rate=rate),
    )


def _resolved(model: str) -> str:
    """The model's name as the engine and its profiles have it."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if not model.strip() or model.startswith(("/", "./", "../", "~")):
        raise ConfigurationError(f"no model at {model!r}: there is no such folder")
    return model
