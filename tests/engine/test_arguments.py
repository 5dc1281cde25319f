"""The engine's knobs, which LLM classes and ``ragcache serve`` have, too: one table of all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.engine.arguments import EngineKnobs
from ragcache_integrations.errors import ConfigurationError, ModelNotFoundError

CONNECTOR: dict[str, Any] = {"kv_transfer_config": {}}


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        # The model
        ({"model": ""}, "model must be a local path or a hub name"),
        ({"model": " "}, "model must be a local path or a hub name"),
        ({"kv_cache_gib": 0}, "kv_cache_gib must be a number above 0, or None, got 0"),
        ({"kv_cache_gib": math.nan}, "kv_cache_gib .*got nan"),
        ({"kv_cache_gib": "1"}, "kv_cache_gib .*got '1'"),
        ({"max_model_len": 1}, "max_model_len must be a whole number of tokens of at least 2"),
        ({"dtype": "int8"}, "dtype must be one of auto, .*, got 'int8'"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"startup_timeout": -1}, "startup_timeout must be a number of seconds above 0"),
        ({"startup_timeout": None}, "startup_timeout must be a number of seconds above 0"),
        ({"chat_template": 3}, "chat_template must be a text or None, got 3"),
        ({"tool_parser": 3}, "tool_parser must be a name or None, got 3"),
        ({"vllm_args": {"seed": 3}}, "pass seed= itself"),
        ({"vllm_args": {"kv_cache_memory_bytes": 3}}, "pass kv_cache_gib= itself"),
        ({"vllm_args": {"hook": lambda: None}}, "plain values"),
        ({"kv_cache": 1}, "unknown argument 'kv_cache': .*did you mean 'kv_cache_gib'"),
        # The knowledge tree
        ({"policy": "arc"}, "policy must be one of lrfu, pgdsf, gdsf, lru, lfu, got 'arc'"),
        ({"host_cache_gib": -1}, "host_cache_gib must be a number of at least 0, got -1"),
        ({"host_cache_gib": math.nan}, "got nan"),
        ({"host_cache_gib": True}, "got True"),
        ({"reorder_window": 0}, "at least 1, or None for the order of arrival, got 0"),
        ({"reorder_window": 2.5}, "got 2.5"),
        ({"cache_depth": 0}, "cache_depth must be .* at least 1, or None for all documents"),
        ({"frequency_window": 0}, "frequency_window must be .* above 0, or None for all time"),
        ({"quotas": {"a": 2}}, "a quota must be above 0 and at most 1, got 2 for 'a'"),
        ({"quotas": [0.5]}, "quotas must map namespaces to parts of the memory"),
        ({"knowledge_tree": "no"}, "knowledge_tree must be True or False, got 'no'"),
        ({"knowledge_tree": False, "host_cache_gib": 1.0}, "host_cache_gib needs the knowledge"),
        ({"host_cache_gib": 1.0, "vllm_args": CONNECTOR}, "must not hold 'kv_transfer_config'"),
        # Documents that are reused anywhere, and on disk
        ({"reuse": "anywher"}, "reuse must be one of prefix, anywhere, .*did you mean 'anywhere'"),
        ({"reuse": "anywhere", "knowledge_tree": False}, "leave knowledge_tree=True"),
        ({"reuse": "anywhere", "vllm_args": CONNECTOR}, "with reuse='anywhere'"),
        ({"link_tokens": -1}, "link_tokens must be .*at least 0 and at most 1048576"),
        ({"link_tokens": True}, "link_tokens must be .*got True"),
        ({"link_tokens": 10**30}, "at most 1048576"),
        ({"exact_documents": -1}, "exact_documents must be a whole number of at least 0"),
        ({"document_cache_gib": 0}, "document_cache_gib must be a number above 0"),
        ({"disk_cache_gib": -1.0}, "disk_cache_gib must be a number of at least 0"),
        ({"disk_cache_gib": 1.0, "knowledge_tree": False}, "disk_cache_gib needs the knowledge"),
        ({"disk_cache_gib": 1.0, "vllm_args": CONNECTOR}, "with disk_cache_gib above 0"),
        ({"disk_cache_dir": "somewhere"}, "needs disk_cache_gib above 0, got 'somewhere' and 0"),
        ({"disk_cache_dir": "", "disk_cache_gib": 1.0}, "disk_cache_dir must be a folder"),
        # Faults
        ({"max_restarts": -1}, "max_restarts must be a whole number of at least 0, got -1"),
        ({"max_restarts": 1.5}, "max_restarts must be a whole number"),
        ({"max_restarts": True}, "max_restarts must be a whole number"),
        ({"rewarm_tokens": None}, "rewarm_tokens must be a whole number"),
        ({"max_retries": "2"}, "max_retries must be a whole number"),
        ({"restart_window": -1}, "restart_window must be a number of seconds of at least 0"),
        ({"restart_window": math.inf}, "restart_window must be a number"),
        ({"hang_timeout": 0}, "hang_timeout must be .* above 0, or None for no limit"),
        ({"step_timeout": math.nan}, "step_timeout must be a number"),
        ({"request_timeout": "1"}, "request_timeout must be a number"),
    ],
)
def test_what_is_refused_before_anything_starts(knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        EngineKnobs(**knobs).settings()


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(ModelNotFoundError, match="there is no such folder"):
        EngineKnobs(model="/no/such/folder").settings()


def test_the_settings_of_an_engine() -> None:
    knobs = EngineKnobs(
        kv_cache_gib=1, policy="lru", disk_cache_gib=1, disk_cache_dir=Path("x"), quotas={"a": 0.5}
    )
    settings = knobs.settings()
    assert (settings.model, settings.kv_cache_gib, settings.dtype) == ("", 1.0, "auto")
    assert settings.cache is not None
    assert (settings.cache.policy, settings.cache.disk_cache_dir) == ("lru", "x")
    assert settings.cache.quotas == {"a": 0.5}
    assert EngineKnobs(knowledge_tree=False).settings().cache is None
