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
from typing import Annotated, Any

from ragcache_integrations.core.checks import (
    check_choice,
    check_int,
    check_number,
    check_text,
    is_whole,
    or_none,
)
from ragcache_integrations.core.knobs import Count, Flag, Seconds, checked
from ragcache_integrations.errors import ConfigurationError, MissingExtraError, ModelNotFoundError

from .machine import computes_on_cpu
from .protocol import DTYPES, CacheSettings, EngineSettings, FaultSettings, TreeKnobs
from .tiny_model import default_model_path

__all__ = [
    "CPU_BLOCK_SIZE",
    "CPU_KV_CACHE_GIB",
    "GIB",
    "GUIDANCE",
    "XGRAMMAR",
    "EngineKnobs",
    "LocalKnobs",
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


class LocalKnobs(TreeKnobs):
    """The knobs that engines and the LLM classes which start one have in common.

    Attributes:
        kv_cache_gib: Memory for the KV cache in GiB; ``None`` for what vLLM chooses on a GPU, and
            for 1 GiB on a CPU.
        max_model_len: Context window in tokens; ``None`` for the model's own.
        knowledge_tree: Whether documents' KV caches are kept by the knowledge tree; ``False`` is
            vLLM's own prefix caching, for comparison.
        chat_template: A Jinja template to use instead of the model's own.
        tool_parser: Name of vLLM's parser (``--tool-call-parser``) that reads the model's tool
            calls; ``None`` finds it by the chat template. A server has an option for it.
        vllm_args: Further arguments of vLLM's ``EngineArgs``.
    """

    kv_cache_gib: Annotated[
        float | None, checked(or_none(check_number), 0, above=True, also="None")
    ] = None
    max_model_len: Annotated[
        int | None, checked(or_none(check_int), 2, unit="tokens", also="None")
    ] = None
    knowledge_tree: Flag = True
    chat_template: Annotated[str | None, checked(or_none(check_text), "a text or None")] = None
    tool_parser: Annotated[str | None, checked(or_none(check_text), "a name or None")] = None
    vllm_args: Mapping[str, Any] | None = None


class EngineKnobs(FaultSettings, LocalKnobs):
    """The arguments of a :class:`~ragcache_integrations.engine.RAGCacheEngine`.

    Attributes:
        model: Local path or hub name. By default a bundled model: a small reader if the extra
            ``reader`` is installed, else a tiny model with random weights, whose text is noise and
            whose timings are real.
        dtype: Numeric type of weights and KV cache; ``auto`` is vLLM's choice, and ``float32`` for
            the bundled model on a CPU. Cached and uncached answers agree best in ``float32``, and
            it is far faster on CPUs without instructions for ``bfloat16`` (AVX512-BF16, AMX).
        seed: Seed of the engine's random numbers.
        startup_timeout: Seconds that loading may take.

    Raises:
        ConfigurationError: An argument is unknown or out of its range.
    """

    model: str | Path | None = None
    dtype: Annotated[str, checked(check_choice, DTYPES)] = "auto"
    seed: Count = 0
    startup_timeout: Seconds = 600.0

    def settings(self) -> EngineSettings:
        """Check what the knobs mean together, and the model, without starting anything.

        Raises:
            ConfigurationError: An argument is out of its range.
            ModelNotFoundError: ``model`` looks like a path and no model is there.
        """
        cache = CacheSettings(**{name: getattr(self, name) for name in TreeKnobs.model_fields})
        arguments = dict(self.vllm_args or {})
        self._check_connected(cache, arguments)
        for name in OWN_ARGUMENTS:
            if name in arguments:
                ours = "kv_cache_gib" if name == "kv_cache_memory_bytes" else name
                raise ConfigurationError(f"vllm_args must not hold {name!r}: pass {ours}= itself")
        try:
            pickle.dumps(arguments)
        except Exception as error:
            msg = f"vllm_args must hold plain values that can be sent to another process: {error}"
            raise ConfigurationError(msg) from error
        return EngineSettings(
            _resolve_model(self.model),
            self.kv_cache_gib,
            self.max_model_len,
            self.dtype,
            self.seed,
            arguments,
            cache if self.knowledge_tree else None,
        )

    def _check_connected(self, cache: CacheSettings, arguments: Mapping[str, Any]) -> None:
        """Check knobs that need a connector of ours in vLLM."""
        connected = {
            "host_cache_gib": cache.host_cache_gib,
            "disk_cache_gib": cache.disk_cache_gib,
            "reuse": cache.reuse == "anywhere",
        }
        connecting = next((name for name, used in connected.items() if used), None)
        if connecting is None:
            return
        if not self.knowledge_tree:
            msg = f"{connecting} needs the knowledge tree: leave knowledge_tree=True"
            raise ConfigurationError(msg)
        if "kv_transfer_config" in arguments:
            cause = "reuse='anywhere'" if connecting == "reuse" else f"{connecting} above 0"
            raise ConfigurationError(f"vllm_args must not hold 'kv_transfer_config' with {cause}")


def engine_settings(model: str | Path | None = None, **knobs: Any) -> EngineSettings:
    """Check the arguments of :class:`RAGCacheEngine` without starting anything.

    Args:
        model: Local path or hub name.
        knobs: The other fields of :class:`EngineKnobs`.

    Raises:
        ConfigurationError: An argument is out of its range.
        ModelNotFoundError: ``model`` looks like a path and no model is there.
    """
    return EngineKnobs(model=model, **knobs).settings()


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
        cache=cache.model_copy(update={"host_cache_gib": 0.0}),
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
