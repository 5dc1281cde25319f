"""``ragcache serve`` before anything is loaded; the server itself is tested in ``serving/``."""

from __future__ import annotations

import inspect
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragcache_integrations.cli import command as cli
from ragcache_integrations.cli import serve as cli_serve
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.arguments import GIB, bundled_dtype, without_host_tier
from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.engine.machine import IN_ONE_PROCESS
from ragcache_integrations.engine.protocol import CacheSettings, EngineSettings, TreeKnobs
from ragcache_integrations.engine.serving import ServingSettings, launch
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import ConfigurationError, ModelNotFoundError


class Started:
    """What the server would have been started with."""

    arguments: Sequence[str]
    engine: EngineSettings
    serving: ServingSettings

    def __call__(
        self, arguments: Sequence[str], engine: EngineSettings, serving: ServingSettings
    ) -> int:
        self.arguments, self.engine, self.serving = arguments, engine, serving
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()
    monkeypatch.setattr(cli_serve, "serve", started)
    return started


def test_the_defaults_are_the_engines(started: Started) -> None:
    assert cli.main(["serve"]) == 0
    assert started.arguments == []
    assert started.engine.cache == CacheSettings()
    assert started.engine.kv_cache_gib is None
    assert started.serving == ServingSettings()
    arguments = inspect.signature(RAGCacheEngine).parameters
    for name in TreeKnobs.model_fields:
        assert getattr(started.engine.cache, name) == arguments[name].default


def test_ours_and_vllms_options_in_any_order(started: Started) -> None:
    arguments = [
        *("serve", "some/model", "--policy", "lru", "--tensor-parallel-size", "2"),
        *("--reorder-window", "none", "--api-key=sesame", "--host-cache-gib", "1.5"),
        *("--served-model-name", "a", "b", "--cache-depth", "3", "-tp", "2", "--seed", "-1"),
        *("--frequency-window", "60", "--kv-cache-gib", "2", "--drain-seconds", "5"),
        *("--max-prompt-bytes", "1000", "--new-tenants-per-minute", "0", "--log-prompts"),
        *("--hf-overrides", '{"a": "--policy"}', "--max-log-len", "7", "--enforce-eager"),
        *("--max-header-bytes", "8192", "--max-headers", "20", "--header-seconds", "none"),
        *("--body-seconds", "2.5", "--max-connections-per-client", "0"),
    ]
    assert cli.main(arguments) == 0
    assert started.arguments == [
        *("some/model", "--tensor-parallel-size", "2", "--api-key=sesame"),
        *("--served-model-name", "a", "b", "-tp", "2", "--seed", "-1"),
        *("--hf-overrides", '{"a": "--policy"}', "--max-log-len", "7", "--enforce-eager"),
    ]
    assert started.engine.cache == CacheSettings(
        policy="lru",
        host_cache_gib=1.5,
        reorder_window=None,
        cache_depth=3,
        frequency_window=60.0,
    )
    assert started.engine.kv_cache_gib == 2
    assert started.serving == ServingSettings(
        max_prompt_bytes=1000,
        new_tenants_per_minute=0,
        drain_seconds=5.0,
        log_prompts=True,
        max_header_bytes=8192,
        max_headers=20,
        header_seconds=None,
        body_seconds=2.5,
        max_connections_per_client=0,
    )


def test_without_the_knowledge_tree(started: Started) -> None:
    assert cli.main(["serve", "--no-knowledge-tree"]) == 0
    assert started.engine.cache is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "belady"], "policy must be one of lrfu, pgdsf"),
        (["--host-cache-gib", "1", "--no-knowledge-tree"], "needs the knowledge tree"),
        (["--max-prompt-bytes", "0"], "max_prompt_bytes must be"),
    ],
)
def test_out_of_range(
    started: Started, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ragcache: ")
    assert words in said
    assert not hasattr(started, "arguments")


@pytest.mark.parametrize(
    "arguments", [["--cache-depth", "few"], ["--reorder-window", "x"], ["--body-seconds", "soon"]]
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", *arguments])
    assert ended.value.code == 2
    assert "ragcache serve [MODEL]" in capsys.readouterr().err


def test_the_help_says_whose_options_these_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--tensor-parallel-size" in said
    assert "--new-tenants-per-minute" in said


@pytest.mark.parametrize("named", [["m"], ["m", "--port", "1"], ["--port", "1", "--model=m"]])
def test_a_model_that_is_named_stays(named: list[str]) -> None:
    assert launch._with_model(named) == named


@pytest.mark.parametrize("cpu", [True, False])
def test_the_bundled_model(
    cpu: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "computes_on_cpu", lambda: cpu)
    path = str(default_model_path())
    small = ["--dtype", bundled_dtype(), "--enforce-eager"] if cpu else []
    name = ["--served-model-name", "ragcache-default"]
    assert launch._with_model(["--port", "1"]) == [path, "--port", "1", *name, *small]
    own_name = ["--served_model_name", "x"]
    assert launch._with_model(own_name) == [path, *own_name, *small]
    assert "random weights" in capsys.readouterr().err


@pytest.mark.parametrize("eager", ["--enforce-eager", "--no-enforce-eager"])
def test_what_is_said_of_the_bundled_model_stays(
    eager: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "computes_on_cpu", lambda: True)
    said = ["--dtype=bfloat16", eager, "--served-model-name", "x"]
    assert launch._with_model(said) == [str(default_model_path()), *said]


class Vllm:
    """Says where it computes, and nothing else: loading the real one takes seconds."""

    def __init__(self, *, cpu: bool) -> None:
        self.cpu = cpu

    def is_cpu(self) -> bool:
        return self.cpu

    def connector_config(self, cache: CacheSettings) -> tuple[str, float] | None:
        return ("host", cache.host_cache_gib) if cache.host_cache_gib else None

    def tool_parser_of(self, parsed: Namespace) -> str:
        return "hermes" if parsed.model == "calls tools" else ""


def adapted(*, cpu: bool = False, engine: dict[str, Any] | None = None, **given: Any) -> Namespace:
    parsed = Namespace(
        **{
            "model": "m",
            "middleware": ["theirs"],
            "enable_prefix_caching": None,
            "api_server_count": None,
            "data_parallel_size": 1,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "nnodes": 1,
            "distributed_executor_backend": None,
            "shutdown_timeout": 0,
            "block_size": None,
            "kv_cache_memory_bytes": None,
            "scheduler_cls": None,
            "additional_config": {"theirs": 1},
            "kv_transfer_config": None,
            "num_gpu_blocks_override": None,
            "tool_call_parser": None,
            "enable_auto_tool_choice": False,
            **given,
        }
    )
    settings = engine_settings(**(engine or {}))
    launch._adapt(parsed, settings, ServingSettings(drain_seconds=7), Vllm(cpu=cpu))
    return parsed


def test_what_vllm_is_told() -> None:
    parsed = adapted(engine={"policy": "lru", "host_cache_gib": 2.0})
    assert parsed.middleware == ["theirs", launch.MIDDLEWARE]
    assert parsed.enable_prefix_caching is True
    assert parsed.enable_prompt_tokens_details is True
    assert parsed.scheduler_cls == "ragcache_integrations.engine.serving.scheduler.make_scheduler"
    assert parsed.additional_config["theirs"] == 1
    told = CacheSettings(**parsed.additional_config["ragcache"])
    assert (told.policy, told.host_cache_gib) == ("lru", 2.0)
    assert parsed.kv_transfer_config == ("host", 2.0)
    assert parsed.block_size is None
    assert parsed.kv_cache_memory_bytes is None
    assert parsed.shutdown_timeout == 0


def test_a_parser_of_tool_calls_is_found() -> None:
    found = adapted(model="calls tools")
    assert (found.tool_call_parser, found.enable_auto_tool_choice) == ("hermes", True)
    none = adapted()
    assert (none.tool_call_parser, none.enable_auto_tool_choice) == (None, False)
    assert adapted(model="calls tools", tool_call_parser="x").tool_call_parser == "x"


def test_what_the_user_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = adapted(scheduler_cls="theirs", enable_prefix_caching=False, shutdown_timeout=3)
    assert parsed.scheduler_cls == "theirs"
    assert parsed.additional_config == {"theirs": 1}
    assert parsed.enable_prefix_caching is False
    assert adapted(data_parallel_size=2).shutdown_timeout == 8
    assert adapted(data_parallel_size=2, shutdown_timeout=3).shutdown_timeout == 3
    assert adapted(cpu=True).block_size == 32
    assert adapted(cpu=True, block_size=64).block_size == 64
    assert adapted(cpu=True).kv_cache_memory_bytes == 1 << 30
    assert adapted(cpu=True, kv_cache_memory_bytes=5).kv_cache_memory_bytes == 5
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    assert adapted(cpu=True).kv_cache_memory_bytes is None
    assert adapted(engine={"kv_cache_gib": 0.5}).kv_cache_memory_bytes == 1 << 29
    assert adapted(engine={"knowledge_tree": False}).scheduler_cls is None


def test_on_cpus_the_engines_process_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    assert adapted(cpu=True).distributed_executor_backend == IN_ONE_PROCESS
    assert adapted(cpu=False).distributed_executor_backend is None
    for several in ("tensor_parallel_size", "data_parallel_size", "nnodes"):
        given: dict[str, Any] = {several: 2}
        assert adapted(cpu=True, **given).distributed_executor_backend is None
    assert adapted(cpu=True, distributed_executor_backend="mp").distributed_executor_backend == "mp"
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")  # vLLM binds other processes than its own
    assert adapted(cpu=True).distributed_executor_backend is None


def test_a_host_tier_on_a_cpu_is_part_of_the_kv_cache() -> None:
    engine = {"host_cache_gib": 2.0}
    merged = adapted(cpu=True, engine=engine)
    assert merged.kv_cache_memory_bytes == 3 * GIB  # 1 GiB is the default
    assert merged.kv_transfer_config is None
    assert merged.additional_config["ragcache"]["host_cache_gib"] == 0
    assert adapted(cpu=True, engine={**engine, "kv_cache_gib": 0.5}).kv_cache_memory_bytes == (
        2.5 * GIB
    )
    several = adapted(cpu=True, engine=engine, tensor_parallel_size=2)
    assert several.kv_cache_memory_bytes == 2 * GIB  # of each worker: 1 GiB, and half of the tier
    two = engine_settings(kv_cache_gib=1, host_cache_gib=2, vllm_args={"tensor_parallel_size": 2})
    assert without_host_tier(two).kv_cache_gib == 2
    fixed = adapted(cpu=True, engine=engine, num_gpu_blocks_override=100)
    assert fixed.kv_transfer_config == ("host", 2.0)
    sized = adapted(cpu=True, engine=engine, kv_cache_memory_bytes=5)
    assert (sized.kv_cache_memory_bytes, sized.kv_transfer_config) == (5, ("host", 2.0))


def test_what_excludes_each_other() -> None:
    with pytest.raises(ConfigurationError, match="--kv-cache-memory-bytes exclude"):
        adapted(engine={"kv_cache_gib": 1.0}, kv_cache_memory_bytes=5)
    with pytest.raises(ConfigurationError, match="--kv-transfer-config exclude"):
        adapted(engine={"host_cache_gib": 1.0}, kv_transfer_config={})


def test_errors_in_words() -> None:
    with (
        pytest.raises(ModelNotFoundError, match="is not a local folder"),
        launch._errors_in_words(),
    ):
        raise OSError("x is not a local folder")
    with pytest.raises(ConfigurationError, match="in use"), launch._errors_in_words():
        raise OSError(98, "Address already in use")
    with pytest.raises(ConfigurationError, match="did not start"), launch._errors_in_words():
        raise ValueError("no")


def test_a_folder_for_counts_is_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def broken(arguments: Sequence[str]) -> Namespace:
        raise ValueError("no")

    touching = SimpleNamespace(parse_arguments=broken)  # the real one takes seconds to load
    monkeypatch.setitem(sys.modules, "ragcache_integrations.engine.serving._vllm", touching)
    with pytest.raises(ConfigurationError):
        launch.serve(["m"], engine_settings(), ServingSettings())
    assert list(tmp_path.iterdir()) == []


IGNORED = """
import signal, time
from ragcache_integrations.engine.serving import launch

class Deaf:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

with launch._ended_while_loading():
    Deaf()
    print("it went on", flush=True)
    time.sleep(60)
"""


def test_a_signal_whose_exception_was_ignored_ends_it_all_the_same() -> None:
    """As within what the interpreter calls by itself: finalisers, callbacks around forks."""
    command = [sys.executable, "-c", IGNORED]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "it went on\n")
    assert "Exception ignored in" in ran.stderr
    assert ran.stderr.count("asked to end before the server was ready") == 1
