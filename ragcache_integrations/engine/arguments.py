"""The engine's arguments, checked before anything is started; the parser of its tool calls."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import math
import pickle
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from ragcache_integrations.core.checks import (
    check_flag,
    is_whole,
)
from ragcache_integrations.errors import ConfigurationError, MissingExtraError, ModelNotFoundError

from .machine import computes_on_cpu
from .protocol import CacheSettings, EngineSettings
from .tiny_model import default_model_path

__all__ = [
    "CPU_BLOCK_SIZE",
    "CPU_KV_CACHE_GIB",
    "GIB",
    "GUIDANCE",
    "SETTINGS",
    "XGRAMMAR",
    "bundled_dtype",
    "check_installed",
    "engine_settings",
    "find_tool_parser",
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

SETTINGS: Mapping[str, Any] = {
    "model": None,
    "kv_cache_gib": None,
    "max_model_len": None,
    "dtype": "auto",
    "seed": 0,
    "knowledge_tree": True,
    **{
        field.name: field.default
        for field in dataclasses.fields(CacheSettings)
        if field.name != "prefill_profile"
    },
    "vllm_args": None,
}
"""The arguments of an engine that describe it, and their defaults."""

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


def engine_settings(model: str | Path | None = None, **given: Any) -> EngineSettings:
    """Check the arguments of :class:`RAGCacheEngine` without starting anything.

    Args:
        model: Local path or hub name.
        given: Further arguments, of those in :data:`SETTINGS`.

    Raises:
        ConfigurationError: An argument is out of its range.
        ModelNotFoundError: ``model`` looks like a path and no model is there.
    """
    own = {name: given.pop(name) for name in EngineSettings.__slots__ if name in given}
    arguments = dict(own.pop("vllm_args", None) or {})
    knowledge_tree = check_flag("knowledge_tree", given.pop("knowledge_tree", True))
    cache = CacheSettings(**given)
    connected = {
        "host_cache_gib": cache.host_cache_gib,
        "disk_cache_gib": cache.disk_cache_gib,
        "reuse": cache.reuse == "anywhere",
    }
    connecting = next((name for name, used in connected.items() if used), None)
    if connecting is not None and not knowledge_tree:
        msg = f"{connecting} needs the knowledge tree: leave knowledge_tree=True"
        raise ConfigurationError(msg)
    if connecting is not None and "kv_transfer_config" in arguments:
        cause = "reuse='anywhere'" if connecting == "reuse" else f"{connecting} above 0"
        raise ConfigurationError(f"vllm_args must not hold 'kv_transfer_config' with {cause}")
    for name in OWN_ARGUMENTS:
        if name in arguments:
            ours = "kv_cache_gib" if name == "kv_cache_memory_bytes" else name
            raise ConfigurationError(f"vllm_args must not hold {name!r}: pass {ours}= itself")
    try:
        pickle.dumps(arguments)
    except Exception as error:
        msg = f"vllm_args must hold plain values that can be sent to another process: {error}"
        raise ConfigurationError(msg) from error
    settings = EngineSettings(_resolve_model(model), **own, vllm_args=arguments, cache=cache)
    return settings if knowledge_tree else dataclasses.replace(settings, cache=None)


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
        raise ConfigurationError(f"model must be a local path or a hub name, got {model!r}")
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            msg = f"the folder {str(model)!r} holds no model: config.json is missing"
            raise ModelNotFoundError(msg)
        return str(path.resolve())
    if isinstance(model, Path) or str(model).startswith(("/", "./", "../", "~")):
        raise ModelNotFoundError(f"no model at {str(model)!r}: there is no such folder")
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


_FAMILIES: dict[str, list[str]] = tomllib.loads(
    files(__package__).joinpath("tool_parsers.toml").read_text("utf-8")
)
"""Parsers, and what the templates of their families hold. The first that fits is taken."""


def find_tool_parser(template: str) -> str:
    """The name of the parser of vLLM's that reads the tool calls of a model, by its chat template.

    Models write calls in forms of their own, and their templates write the calls of earlier turns
    in the same form. vLLM has the parsers, under the names of ``--tool-call-parser``, but has the
    user choose one (https://docs.vllm.ai/en/latest/features/tool_calling.html).

    Args:
        template: The text of the template.

    Returns:
        The name; empty if no known family writes calls like this.
    """
    for name, marks in _FAMILIES.items():
        if all(mark in template for mark in marks):
            return name
    return ""
