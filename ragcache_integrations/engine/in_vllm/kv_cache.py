"""Facts about vLLM's KV cache and its model that both the scheduler and the workers need.

They say which models and settings the knowledge tree, reuse anywhere and files are right for; with
all others, prompts are computed as vLLM does. :func:`model_identity` says what documents' KV caches
depend on besides their tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "ROPES",
    "block_bytes",
    "longest_reused",
    "model_identity",
    "unsuited",
    "unsuited_for_files",
    "unsuited_for_reuse",
    "windows",
]

FULL, SLIDING = "FullAttentionSpec", "SlidingWindowSpec"
STATES = "MambaSpec"
"""All of linear attention, too."""


def unsuited(kv_cache_config: Any, cache_config: Any) -> str | None:
    """Why this model, or its settings, can't have a knowledge tree; ``None`` if it can.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``.
        cache_config: vLLM's ``CacheConfig``.
    """
    if not cache_config.enable_prefix_caching:
        return "prefix caching is off, or the model does not support it"
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    if not specs:
        return "the model has no KV cache"
    names = {type(spec).__name__ for spec in specs}
    if STATES in names:
        return (
            "the model has linear or state-space layers, and vLLM keeps their states where a step "
            "of the prefill ends, not where a document does"
        )
    if unknown := names - {FULL, SLIDING}:
        kinds = ", ".join(sorted(unknown))
        return f"it does not know what the model's layers need of a prompt ({kinds})"
    if len({spec.block_size for spec in specs}) > 1:
        return "the model's layers have blocks of different sizes"
    return None


def windows(kv_cache_config: Any, *, drafts: bool = False) -> tuple[int | None, ...]:
    """For each group of layers, how many blocks before a place a prompt needs to continue.

    This is vLLM's own rule, ``SlidingWindowManager._contiguous_blocks_for_hit``.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``, which :func:`unsuited` lets pass.
        drafts: Whether a draft model computes the last block of each hit again.

    Returns:
        ``None`` for a group that needs all of them.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return tuple(
        max(1, -(-(spec.sliding_window - 1) // spec.block_size) + drafts)
        if type(spec).__name__ == SLIDING
        else None
        for spec in specs
    )


def block_bytes(kv_cache_config: Any) -> int:
    """Size of a block of the KV cache, all layers of one worker together.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``. If it has several groups, they share the memory;
            a model without attention has none.
    """
    return max((_group_bytes(group) for group in kv_cache_config.kv_cache_groups), default=1)


def _group_bytes(group: Any) -> int:
    spec = group.kv_cache_spec
    # This kind of spec already counts all of its layers.
    layers = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)
    size: int = spec.page_size_bytes
    return size * layers


FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Their keys are turned by their position and by nothing else. A family that isn't listed may turn
a part of its layers, or scale keys by their place, and would answer wrongly without a word."""
ROPES = ("default", "linear", "llama3", "yarn")
"""Kinds of RoPE whose angles do not depend on the length of the prompt."""
WINDOWED_FAMILIES = ("Gemma3ForCausalLM", "GptOssForCausalLM")
"""Families of which files hold what was computed, but no key is turned to another position."""


def unsuited_for_reuse(config: Any, kv_cache_config: Any) -> str | None:
    """Why documents can't be reused anywhere; ``None`` if they can.

    Args:
        config: vLLM's ``VllmConfig``, of a model that :func:`unsuited` lets pass.
        kv_cache_config: vLLM's ``KVCacheConfig``.
    """
    # A prompt that is computed at once waits for a whole step, of which rows take a share.
    if not config.scheduler_config.enable_chunked_prefill:
        return "it does not work with prompts that are not computed in chunks"
    return _unsuited(config, kv_cache_config, FAMILIES)


def unsuited_for_files(config: Any, kv_cache_config: Any) -> str | None:
    """Why what the model computes can't be kept on disk; ``None`` if it can.

    Args:
        config: As of :func:`unsuited_for_reuse`.
        kv_cache_config: The same.
    """
    return _unsuited(config, kv_cache_config, FAMILIES + WINDOWED_FAMILIES)


def longest_reused(kv_cache_config: Any) -> int | None:
    """The most tokens of a prompt in which documents are reused anywhere; ``None`` for any number.

    What is in a window sees all before it, as in a model without windows. Beyond it, a document
    that was encoded alone would hold what it could not see in its place.

    Args:
        kv_cache_config: vLLM's ``KVCacheConfig``.
    """
    specs = (group.kv_cache_spec for group in kv_cache_config.kv_cache_groups)
    windows = (getattr(spec, "sliding_window", None) for spec in specs)
    return min((window for window in windows if window is not None), default=None)


def _unsuited(config: Any, kv_cache_config: Any, families: Sequence[str]) -> str | None:
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    pages = {(spec.page_size_bytes, getattr(spec, "page_size_padded", None)) for spec in specs}
    if len(pages) > 1 or pages.pop()[1] is not None:
        return "its layers' blocks differ in size, or are larger than their keys and values"
    text = config.model_config.hf_text_config
    family = (config.model_config.architectures or ["unknown"])[0]
    if family not in families:
        return f"{family} is not among the models that it is right for: {', '.join(families)}"
    for rope in _ropes(text):
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind not in ROPES:
            return f"its RoPE is of type {kind!r}; allowed are {', '.join(ROPES)}"
        partial = getattr(text, "partial_rotary_factor", None)
        turned = rope.get("partial_rotary_factor") or partial or 1
        if turned != 1:
            return f"it turns {turned} of each head; allowed is all of it"
    parallel = config.parallel_config
    reasons = {
        "speculative decoding": config.speculative_config is not None,
        "LoRA": config.lora_config is not None,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "context parallelism": getattr(parallel, "decode_context_parallel_size", 1) > 1,
        "micro-batching": bool(getattr(parallel, "enable_dbo", False)),
        "a quantised KV cache": config.cache_config.cache_dtype not in {"auto", "bfloat16"},
    }
    wrong = [name for name, present in reasons.items() if present]
    return f"it does not work with {wrong[0]}" if wrong else None


def _ropes(text: Any) -> Sequence[Mapping[str, Any]]:
    """The model's kinds of RoPE: one, or one for each kind of its layers."""
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kinds = tuple(each for each in rope.values() if isinstance(each, Mapping))
    return kinds or (rope,)


FORMAT = "alone, 2"
"""How documents are encoded, and how they are written to files."""
SUFFIXES = (".json", ".safetensors", ".bin", ".pt", ".pth", ".gguf")
PROBES = 64
PROBE_BYTES = 4096


def model_identity(config: Any) -> bytes | None:
    """Identify a model, its numeric type and how it is divided among workers.

    Files of a folder are distinguished by name, size, time of change and samples of their content,
    because reading all of the weights would take too long. A model of the hub is identified by its
    commit.

    Args:
        config: vLLM's ``VllmConfig``.

    Returns:
        16 bytes; ``None`` if its weights are unknown.
    """
    model = config.model_config
    settings = {
        "format": FORMAT,
        "architectures": model.architectures,
        "config": model.hf_text_config.to_dict(),
        "dtype": [str(model.dtype), config.cache_config.cache_dtype],
        "quantization": model.quantization,
        "random": model.seed if config.load_config.load_format == "dummy" else None,
        "workers": config.parallel_config.tensor_parallel_size,
    }
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    commit = getattr(model.hf_config, "_commit_hash", None)
    folder = Path(model.model)
    if folder.is_dir():
        for part in _probes(folder):
            digest.update(part)
    elif commit:
        digest.update(f"{model.model} {commit}".encode())
    else:
        return None
    return digest.digest()


def _probes(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.iterdir()):
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        status = path.stat()
        yield f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode()
        step = max(PROBE_BYTES, status.st_size // PROBES)
        with path.open("rb") as file:
            for place in range(0, status.st_size, step):
                file.seek(place)
                yield file.read(PROBE_BYTES)
