"""The engine's arguments, checked before anything is started."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragcache_integrations.core.checks import (
    check_flag,
    is_whole,
)
from ragcache_integrations.errors import ConfigurationError, MissingExtraError, ModelNotFoundError
from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY

from .machine import computes_on_cpu
from .protocol import CacheSettings, EngineSettings
from .tiny_model import default_model_path

__all__ = [
    "CPU_BLOCK_SIZE",
    "CPU_KV_CACHE_GIB",
    "GIB",
    "GUIDANCE",
    "XGRAMMAR",
    "bundled_dtype",
    "check_installed",
    "engine_settings",
    "structured_outputs_config",
    "with_bundled_model",
    "without_host_tier",
]

logger = logging.getLogger(__name__)

OWN_ARGUMENTS = ("model", "max_model_len", "dtype", "seed", "kv_cache_memory_bytes")

GIB = 1 << 30
CPU_KV_CACHE_GIB = 1.0
"""On a CPU the KV cache shares the machine's memory with everything else."""
CPU_BLOCK_SIZE = 32
"""The smallest size that vLLM's attention supports there. Its default of 128 is no faster, and text
that fills no block is not reused: passages of RAG applications are often that short."""

_CACHE = tuple(name for name in CacheSettings.__slots__ if name != "prefill_profile")

GUIDANCE, XGRAMMAR = "guidance", "xgrammar"
"""vLLM's grammar backends that can leave white space out. Guidance reports what it does not
support, and limits don't slow it down; it needs a fast tokenizer. An engine uses one backend for
all requests: if vLLM chose by request, the first request would choose for all."""


def check_installed(feature: str) -> None:
    """Check that vLLM is installed.

    Args:
        feature: What needs it; the error's message begins with it.

    Raises:
        MissingExtraError: It is not.
    """
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError(feature, "vllm")


def engine_settings(
    model: str | Path | None = None,
    *,
    kv_cache_gib: float | None = None,
    max_model_len: int | None = None,
    dtype: str = "auto",
    seed: int = 0,
    knowledge_tree: bool = True,
    policy: str = DEFAULT_POLICY,
    host_cache_gib: float = 0.0,
    reorder_window: int | None = 32,
    cache_depth: int | None = None,
    frequency_window: float | None = None,
    reuse: str = "prefix",
    link_tokens: int = 16,
    exact_documents: int = 0,
    document_cache_gib: float = 1.0,
    disk_cache_gib: float = 0.0,
    disk_cache_dir: str | Path | None = None,
    quotas: Mapping[str, float] | None = None,
    vllm_args: Mapping[str, Any] | None = None,
) -> EngineSettings:
    """Check the arguments of :class:`RAGCacheEngine` without starting anything.

    Raises:
        ConfigurationError: An argument is out of its range or unknown.
        ModelNotFoundError: ``model`` looks like a path and no model is there.
    """
    given = locals()  # the arguments by name
    cache: CacheSettings | None = CacheSettings(**{name: given[name] for name in _CACHE})
    if not check_flag("knowledge_tree", knowledge_tree):
        tiers = {"host_cache_gib": host_cache_gib, "disk_cache_gib": disk_cache_gib}
        for name, needed in (*tiers.items(), ("reuse", reuse == "anywhere")):
            if needed:
                msg = f"{name} needs the knowledge tree: leave knowledge_tree=True"
                raise ConfigurationError(msg)
        cache = None
    arguments = dict(vllm_args or {})
    for name in OWN_ARGUMENTS:
        if name in arguments:
            ours = "kv_cache_gib" if name == "kv_cache_memory_bytes" else name
            msg = f"vllm_args must not hold {name!r}: pass {ours}= itself"
            raise ConfigurationError(msg)
    if cache is not None and "kv_transfer_config" in arguments:
        causes = {
            "reuse='anywhere'": cache.reuse == "anywhere",
            "host_cache_gib is above 0": cache.host_cache_gib,
            "disk_cache_gib is above 0": cache.disk_cache_gib,
        }
        cause = next((words for words, present in causes.items() if present), None)
        if cause is not None:
            msg = f"vllm_args must not hold 'kv_transfer_config' with {cause}"
            raise ConfigurationError(msg)
    try:
        pickle.dumps(arguments)
    except Exception as error:
        msg = f"vllm_args must hold plain values that can be sent to another process: {error}"
        raise ConfigurationError(msg) from error
    model = _resolve_model(model)
    return EngineSettings(model, kv_cache_gib, max_model_len, dtype, seed, arguments, cache)


def with_bundled_model(settings: EngineSettings) -> EngineSettings:
    """Fill in the bundled model where none is named; compiling so small a model never pays."""
    if settings.model:
        return settings
    arguments = {"enforce_eager": True} if computes_on_cpu() else {}
    return dataclasses.replace(
        settings,
        model=str(default_model_path()),
        dtype=bundled_dtype() if settings.dtype == "auto" else settings.dtype,
        vllm_args=arguments | dict(settings.vllm_args),
    )


def without_host_tier(settings: EngineSettings, workers: int | None = None) -> EngineSettings:
    """Add the host tier's memory to the KV cache's, for an engine on a CPU.

    Both are the same memory there, and what is in the KV cache need not be copied to be used. Where
    ``vllm_args`` fixes the number of blocks, or the size of the KV cache is not known, the tier
    stays as it is.

    Args:
        settings: The engine's settings.
        workers: Processes that compute; ``None`` for those that ``vllm_args`` says. The host tier
            is of all together, a KV cache of each.
    """
    cache, size = settings.cache, settings.kv_cache_gib
    if cache is None or not cache.host_cache_gib or size is None:
        return settings
    if settings.vllm_args.get("num_gpu_blocks_override") is not None:
        return settings
    logger.info("on a CPU, host_cache_gib=%g is added to kv_cache_gib", cache.host_cache_gib)
    return dataclasses.replace(
        settings,
        kv_cache_gib=size + cache.host_cache_gib / (workers or _workers(settings.vllm_args)),
        cache=dataclasses.replace(cache, host_cache_gib=0.0),
    )


def _workers(vllm_args: Mapping[str, Any]) -> int:
    sizes = (vllm_args.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    return math.prod(size for size in sizes if is_whole(size) and size > 0)


def bundled_dtype() -> str:
    """The type that ``auto`` means for the bundled model.

    vLLM would choose ``bfloat16``. Most CPUs have no instructions for it, and a prefill takes
    several times as long there.
    """
    return "float32" if computes_on_cpu() else "auto"


def _resolve_model(model: str | Path | None) -> str:
    if model is None:
        return ""
    if not isinstance(model, str | Path) or not str(model).strip():
        msg = f"model must be a local path or a hub name, got {model!r}"
        raise ConfigurationError(msg)
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            msg = f"the folder {str(model)!r} holds no model: config.json is missing"
            raise ModelNotFoundError(msg)
        return str(path.resolve())
    if isinstance(model, Path) or str(model).startswith(("/", "./", "../", "~")):
        msg = f"no model at {str(model)!r}: there is no such folder"
        raise ModelNotFoundError(msg)
    return str(model)


def structured_outputs_config(configured: Any) -> Any:
    """How vLLM makes grammars: without white space between the parts of JSON, where it can.

    Args:
        configured: The user's own configuration: a mapping, whose entries take precedence, or
            vLLM's own class, which is returned unchanged; ``None`` for the defaults.
    """
    if configured is not None and not isinstance(configured, Mapping):
        return configured
    config = {"backend": GUIDANCE, **(configured or {})}
    if config["backend"] in {GUIDANCE, XGRAMMAR}:
        config.setdefault("disable_any_whitespace", True)
    return config
