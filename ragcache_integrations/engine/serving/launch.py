"""Starts vLLM's server with our scheduler and middleware."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import signal
import socket
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragcache_integrations.core.interrupts import INTERRUPTED, deadline, remove_when_ended
from ragcache_integrations.engine.arguments import (
    CPU_BLOCK_SIZE,
    CPU_KV_CACHE_GIB,
    GIB,
    bundled_dtype,
    check_installed,
    without_host_tier,
)
from ragcache_integrations.engine.in_vllm.main import failed_start, with_profile
from ragcache_integrations.engine.machine import (
    IN_ONE_PROCESS,
    WAITING,
    compiler_caches,
    computes_on_cpu,
    openmp_environment,
)
from ragcache_integrations.engine.process import LONGEST_SOCKET_FOLDER
from ragcache_integrations.engine.protocol import START_ERRORS, EngineSettings
from ragcache_integrations.engine.tiny_model import default_model_path, has_random_weights
from ragcache_integrations.errors import ConfigurationError, RAGCacheError

from .lifecycle import engine_died
from .settings import (
    SCHEDULER,
    TREE_SETTINGS,
    ServingSettings,
)

__all__ = ["DEFAULT_MODEL_NAME", "serve"]

logger = logging.getLogger(__name__)

DEFAULT_MODEL_NAME = "ragcache-default"
"""The name under which the bundled model is served."""

MIDDLEWARE = "ragcache_integrations.engine.serving.middleware.ServingMiddleware"

DIED = 1
"""Exit status if the engine's process has died."""
STANDARD_ERROR = 2
ENDED_EARLY = b"ragcache: asked to end before the server was ready\n"

_NAMING_A_MODEL = ("--model", "--config")


def serve(arguments: Sequence[str], engine: EngineSettings, serving: ServingSettings) -> int:
    """Serve until a signal asks the process to end.

    Args:
        arguments: Arguments of ``vllm serve``, the model first; without a model, the bundled one is
            served.
        engine: Settings of the engine; only the KV cache's size and the knowledge tree's settings
            are used.
        serving: Settings of the server.

    Returns:
        Exit status: 0 once drained, 1 if the engine has died.

    Raises:
        ConfigurationError: An argument is wrong, or the port is taken.
        MissingExtraError: vLLM is not installed.
        ModelNotFoundError: There is no such model, or vLLM cannot load it.
        EngineOutOfMemoryError: Model and KV cache do not fit the memory.
        EngineStartError: The server did not start for another reason.
        SystemExit: A signal asked it to end before it was ready; the status is 0 for SIGTERM and
            130 for Ctrl-C. The process ends soon after, with its engine.
    """
    check_installed("ragcache serve")
    arguments = _with_model(arguments)
    with _ended_while_loading(), tempfile.TemporaryDirectory(prefix="ragcache-serve-") as folder:
        remove_when_ended(folder)
        serving = serving.model_copy(update={"folder": folder})
        _set_defaults(_environment())
        os.environ.update(compiler_caches(folder))
        if len(os.fsencode(folder)) <= LONGEST_SOCKET_FOLDER:
            # vLLM does not remove its sockets and other files.
            _set_defaults({"VLLM_RPC_BASE_PATH": folder})
            os.environ["TMPDIR"] = folder
            tempfile.tempdir = None  # read it again
        os.environ.update(serving.as_environment())
        from ragcache_integrations.engine.serving import _vllm  # noqa: PLC0415 - seconds

        with _errors_in_words():
            parsed = _vllm.parse_arguments(arguments)
        with _errors_in_words(f" of {parsed.model!r}"):
            _adapt(parsed, engine, serving, _vllm)
            _check_port(parsed)
            if parsed.distributed_executor_backend == IN_ONE_PROCESS:
                # Binds the processes that are started from here; this one has loaded torch already.
                _set_defaults(openmp_environment())
            _vllm.run(parsed)
    return DIED if engine_died() else 0


@contextlib.contextmanager
def _ended_while_loading() -> Iterator[None]:
    """Let signals end the loading; once ready, :class:`.Lifecycle` handles them."""
    end_soon = deadline()
    end_soon.unwatch()  # a server that is ready has longer to end

    def end(number: int, _: object) -> None:
        if not signals:
            os.write(STANDARD_ERROR, ENDED_EARLY)
            signals.append(number)
        status = 0 if number == signal.SIGTERM else INTERRUPTED
        # What is raised in an interpreter's callback is lost, and vLLM's end may take seconds.
        end_soon.begin(status)
        raise SystemExit(status)

    signals: list[int] = []
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _with_model(arguments: Sequence[str]) -> list[str]:
    """Add the bundled model if the arguments name none."""
    named = any(argument.partition("=")[0] in _NAMING_A_MODEL for argument in arguments)
    if named or (arguments and not arguments[0].startswith("-")):
        return list(arguments)
    if any(argument in {"-h", "--help"} for argument in arguments):
        return list(arguments)
    kind = "a tiny one with random weights" if has_random_weights(None) else "a small reader"
    sys.stderr.write(f"ragcache: no model is named: this is the bundled one, {kind}\n")
    named = _has_option(arguments, "served-model-name")
    name = [] if named else ["--served-model-name", DEFAULT_MODEL_NAME]
    small = []  # see with_bundled_model for the reasons
    if computes_on_cpu():
        small += [] if _has_option(arguments, "dtype") else ["--dtype", bundled_dtype()]
        eager = any(_has_option(arguments, f"{no}enforce-eager") for no in ("", "no-"))
        small += [] if eager else ["--enforce-eager"]
    return [str(default_model_path()), *arguments, *name, *small]


def _has_option(arguments: Sequence[str], option: str) -> bool:
    names = (argument.partition("=")[0].replace("_", "-") for argument in arguments)
    return any(name == f"--{option}" for name in names)


def _environment() -> dict[str, str]:
    """Defaults that the user's own environment overrides."""
    environment = {
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # the standard output is the log of requests
        # Longer than clients and proxies keep idle connections: a request on a connection that the
        # server is just closing gets no answer.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if computes_on_cpu():
        # vLLM would reserve one core or two for its other processes, which hardly use them.
        environment |= {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", **WAITING}
    return environment


def _set_defaults(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def _adapt(parsed: Namespace, engine: EngineSettings, serving: ServingSettings, vllm: Any) -> None:
    """Add our parts to vLLM's options. Options that the user has set stay."""
    parsed.middleware = [*parsed.middleware, MIDDLEWARE]
    parsed.enable_prompt_tokens_details = True
    parsed.disable_uvicorn_access_log = True
    if parsed.enable_prefix_caching is None:
        parsed.enable_prefix_caching = True
    if (parsed.api_server_count or parsed.data_parallel_size) > 1 and not parsed.shutdown_timeout:
        # vLLM gives its API processes this time to drain.
        parsed.shutdown_timeout = int(serving.drain_seconds) + 1
    if parsed.tool_call_parser is None and not parsed.enable_auto_tool_choice:
        # Otherwise vLLM refuses every request with tools.
        parsed.tool_call_parser = vllm.tool_parser_of(parsed) or None
        parsed.enable_auto_tool_choice = parsed.tool_call_parser is not None
    if engine.kv_cache_gib is not None and parsed.kv_cache_memory_bytes is not None:
        msg = "--kv-cache-gib and --kv-cache-memory-bytes exclude each other: both were given"
        raise ConfigurationError(msg)
    if vllm.is_cpu():
        engine = _adapt_to_cpu(parsed, engine)
    if engine.kv_cache_gib is not None:
        parsed.kv_cache_memory_bytes = int(engine.kv_cache_gib * GIB)
    if engine.cache is not None:
        _add_tree(parsed, engine, vllm)


def _adapt_to_cpu(parsed: Namespace, engine: EngineSettings) -> EngineSettings:
    """Add what suits a CPU, and return the engine's settings with the size of its KV cache."""
    parsed.block_size = parsed.block_size or CPU_BLOCK_SIZE
    if _computes_alone(parsed):
        parsed.distributed_executor_backend = IN_ONE_PROCESS
    elsewhere = parsed.kv_cache_memory_bytes, os.environ.get("VLLM_CPU_KVCACHE_SPACE")
    if engine.kv_cache_gib is None and elsewhere == (None, None):
        engine = dataclasses.replace(engine, kv_cache_gib=CPU_KV_CACHE_GIB)
    if parsed.num_gpu_blocks_override is None and parsed.kv_transfer_config is None:
        workers = parsed.tensor_parallel_size * parsed.pipeline_parallel_size
        engine = without_host_tier(engine, workers)
    return engine


def _computes_alone(parsed: Namespace) -> bool:
    """Whether one process computes, and the user has not chosen how it is started or bound."""
    several = (
        parsed.tensor_parallel_size,
        parsed.pipeline_parallel_size,
        parsed.data_parallel_size,
        parsed.nnodes,
    )
    choices = parsed.distributed_executor_backend, os.environ.get("VLLM_CPU_OMP_THREADS_BIND")
    return max(several) == 1 and choices == (None, None)


def _add_tree(parsed: Namespace, engine: EngineSettings, vllm: Any) -> None:
    if parsed.scheduler_cls is not None:
        logger.warning("--scheduler-cls chose another scheduler: there is no knowledge tree")
        return
    cache = with_profile(dataclasses.replace(engine, model=parsed.model)).cache
    if cache is None:
        return
    parsed.scheduler_cls = SCHEDULER
    parsed.additional_config = {
        **(parsed.additional_config or {}),
        TREE_SETTINGS: cache.model_dump(),
    }
    connector = vllm.connector_config(cache)
    if connector is not None:
        if parsed.kv_transfer_config is not None:
            options = {
                "--host-cache-gib": cache.host_cache_gib,
                "--disk-cache-gib": cache.disk_cache_gib,
            }
            option = next((name for name, size in options.items() if size), "--reuse anywhere")
            msg = f"{option} and --kv-transfer-config exclude each other: both were given"
            raise ConfigurationError(msg)
        parsed.kv_transfer_config = connector


def _check_port(parsed: Namespace) -> None:
    """Check before the model is loaded that no other process listens on the port."""
    if parsed.uds or parsed.headless:
        return
    host = parsed.host or ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, parsed.port))
            probe.listen(1)
        except OSError as error:
            raise _cannot_listen(error, host, parsed.port) from error


def _cannot_listen(error: OSError, host: str, port: int) -> ConfigurationError:
    where = f"port {port}" + (f" of {host}" if host else "")
    if error.errno == errno.EADDRINUSE:
        return ConfigurationError(f"{where} is in use by another process: choose another --port")
    return ConfigurationError(f"cannot listen on {where}: {error.strerror}")


@contextlib.contextmanager
def _errors_in_words(what: str = "") -> Iterator[None]:
    try:
        yield
    except RAGCacheError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            msg = f"the port is in use by another process: {error.strerror}"
            raise ConfigurationError(msg) from error
        logger.debug("the server did not start", exc_info=True)
        failed = failed_start(error)
        msg = f"the server{what} did not start, or broke down: {failed.message}"
        raise START_ERRORS[failed.kind](msg) from error
