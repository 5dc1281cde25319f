from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.adaptive import AdaptiveSettings
from ragcache_integrations.errors import ConfigurationError, ModelNotFoundError
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs
from ragcache_workbench.evaluation.settings import (
    CACHE_KNOBS,
    ENGINE_KNOBS,
    KNOBS,
    EvalSettings,
    grid,
    parse_assignment,
    parse_sweep,
)

USUAL = EvalSettings(dataset="nq")


def test_the_knobs_are_those_of_the_classes() -> None:
    assert set(CACHE_KNOBS) <= set(CacheKnobs.model_fields)
    assert set(ENGINE_KNOBS) <= set(LLMKnobs.model_fields)
    assert not set(CACHE_KNOBS) & set(ENGINE_KNOBS)
    # The papers' sweeps: tau, c, L, b, rho; policies, host sizes; top-k, search ratio, orders,
    # configurations.
    papers = {
        *("tolerance", "capacity", "num_hyperplanes", "bucket_capacity", "rerank_factor"),
        *("policy", "host_cache_gib", "k", "search_ratio", "order", "synthesis", "rate"),
    }
    assert papers <= set(KNOBS)


def test_flat_names_find_their_place() -> None:
    settings = USUAL.set(tolerance=0.2, policy="lru", k=3, rate=2.0)
    assert settings.cache == {"tolerance": 0.2}
    assert settings.engine == {"policy": "lru"}
    assert (settings.k, settings.rate) == (3, 2.0)
    more = settings.set(capacity=10)
    assert more.cache == {"tolerance": 0.2, "capacity": 10}
    assert more.flat()["capacity"] == 10
    assert USUAL.cache == {}


def test_paths_are_texts() -> None:
    assert EvalSettings(dataset="nq", data=Path("a/b")) == EvalSettings(dataset="nq", data="a/b")  # type: ignore[arg-type] # users do
    assert USUAL.set(documents=Path("c")).as_dict()["documents"] == "c"


def test_as_json_and_back() -> None:
    settings = USUAL.set(tolerance=0.2, host_cache_gib=1.0, sample=5)
    assert EvalSettings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings
    with pytest.raises(ConfigurationError, match="settings must have"):
        EvalSettings.from_dict({"dataset": "nq", "colour": "red"})


def test_a_grid() -> None:
    found = grid(USUAL, {"tolerance": [0.1, 0.2], "policy": ["lru", "pgdsf"], "k": (1, 5)})
    assert [(one.engine["policy"], one.cache["tolerance"], one.k) for one in found] == [
        ("lru", 0.1, 1),  # the engine's knob varies slowest, though it was given second
        ("lru", 0.1, 5),
        ("lru", 0.2, 1),
        ("lru", 0.2, 5),
        ("pgdsf", 0.1, 1),
        ("pgdsf", 0.1, 5),
        ("pgdsf", 0.2, 1),
        ("pgdsf", 0.2, 5),
    ]
    assert grid(USUAL) == [USUAL]


def test_link_tokens_are_compared_with_what_is_exact() -> None:
    found = grid(USUAL, {"k": [1, 5], "link_tokens": [0, 16]})
    knobs = [(one.engine["reuse"], one.engine.get("link_tokens"), one.k) for one in found]
    assert knobs[:2] == [("prefix", None, 1), ("prefix", None, 5)]
    assert sorted(knobs[2:]) == [("anywhere", links, k) for links in (0, 16) for k in (1, 5)]
    both = grid(USUAL, {"reuse": ["anywhere"], "link_tokens": [0, 16]})
    assert [one.engine["link_tokens"] for one in both] == [0, 16]


def test_what_is_typed() -> None:
    assert parse_sweep("tolerance=0,0.2,auto") == ("tolerance", (0, 0.2, "auto"))
    assert parse_sweep("search-ratio=0.125, none") == ("search_ratio", (0.125, None))
    assert parse_sweep("knowledge_tree=true,False") == ("knowledge_tree", (True, False))
    assert parse_sweep("policy=lru") == ("policy", ("lru",))
    assert parse_assignment("data=5") == ("data", "5")
    assert parse_assignment("base_url=http://host:1/v1?x=1")[1] == "http://host:1/v1?x=1"
    assert parse_assignment('order="relevance"')[1] == '"relevance"'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tolerance", "name=value"),
        (
            "tau=0.1",
            "unknown knob 'tau': allowed are answer_once, base_url, bucket_capacity",
        ),
        ("tolerance=", "not empty and different"),
        ("tolerance=0.1,,0.2", "not empty and different"),
        ("tolerance=0.1,0.1", "not empty and different"),
        ("dataset=nq,mmlu", "unknown knob 'dataset'"),
        ("__class__=1", "unknown knob"),
    ],
)
def test_wrong_sweeps(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        parse_sweep(text)


def test_one_value_where_one_is_wanted() -> None:
    with pytest.raises(ConfigurationError, match="several are for --sweep"):
        parse_assignment("k=1,2")


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"tau": [1]}, "unknown knob 'tau': allowed are"),
        ({"tolerance": []}, "tolerance must have a list of values"),
        ({"policy": "lru"}, "policy must have a list of values, got 'lru'"),
        ({"tolerance": [0.1, -1]}, "tolerance"),
        ({"policy": ["mru"]}, "policy must be one of"),
        ({"seed": list(range(40)), "sample": list(range(1, 40))}, "1000 configurations"),
    ],
)
def test_wrong_grids(sweep: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        grid(USUAL, sweep)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"colour": "red"}, "unknown knob 'colour': allowed are"),
        ({"workload": "bursty"}, "workload must be one of as_is, uniform, zipf"),
        ({"retriever": "google"}, "retriever must be one of cache, plain, none"),
        ({"framework": "haystack"}, "framework must be one of langchain, llama_index"),
        ({"order": "random"}, "order must be one of"),
        ({"synthesis": "refine"}, "synthesis must be one of stuff, map_reduce, map_rerank"),
        ({"k": 0}, "k must be a whole number of at least 1, got 0"),
        ({"k": True}, "k must be a whole number"),
        ({"sample": 0}, "sample must be a whole number of at least 1, or None"),
        ({"sample": 2.5}, "sample must be a whole number"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"users": 0}, "users must be"),
        ({"rate": 0}, "rate must be a number above 0, or None"),
        ({"rate": float("nan")}, "rate must be a number"),
        ({"exponent": None}, "exponent must be a number of at least 0"),
        ({"store": "dsk"}, "store must be one of memory, disk, got 'dsk'; did you mean 'disk'"),
        ({"store": "disk", "retriever": "none"}, "store='disk' needs documents"),
        ({"search_ratio": 1.5}, "search_ratio must be a number above 0 and at most 1, or None"),
        ({"minutes": 5}, "minutes needs a rate"),
        ({"minutes": 5, "rate": 1.0, "length": 3}, "excludes length"),
        ({"rate": 1.0, "users": 2}, "users are for a closed loop"),
        ({"base_url": "http://host/v1"}, "base_url needs model"),
        ({"base_url": "http://h/v1", "model": "m", "policy": "lru"}, "base_url excludes policy"),
        ({"retriever": "plain", "tolerance": 0.1}, "tolerance needs retriever='cache'"),
        ({"retriever": "none", "synthesis": "stuff"}, "needs documents"),
        ({"retriever": "none", "synthesis": "adaptive"}, "needs documents"),
        ({"synthesis": "adaptive", "order": "reverse"}, "got order='reverse'"),
        ({"synthesis": "adaptive", "latency_budget": 0}, "latency_budget must be a number above 0"),
        ({"synthesis": "adaptive", "profiler": "mine"}, "profiler must be one of llm, heuristic"),
        ({"synthesis": "stuff", "latency_budget": 1}, "latency_budget needs synthesis='adaptive'"),
        (
            {"synthesis": "stuff", "mode": "median", "num_chunks": 2},
            "num_chunks, mode need synthesis='adaptive', got synthesis='stuff'",
        ),
        ({"method": "stuff"}, "method needs synthesis='adaptive'"),
        ({"synthesis": "adaptive", "method": "stuf"}, "did you mean 'stuff'"),
        ({"synthesis": "adaptive", "mode": "fixed"}, "mode must be one of adaptive, gradual"),
        ({"synthesis": "adaptive", "k": 3, "num_chunks": 4}, "num_chunks must be at most k=3"),
        ({"intermediate_length": 0}, "intermediate_length must be .*1, or None"),
        (
            {"synthesis": "adaptive", "method": "stuff", "intermediate_length": 50},
            "intermediate_length is for map_reduce",
        ),
        (
            {"synthesis": "adaptive", "method": "stuff", "num_chunks": 2},
            "leave nothing to choose for a question: take synthesis='stuff' and k=2",
        ),
        ({"synthesis": "adaptive", "golden_every": 0}, "golden_every must be .*1"),
        ({"answer_once": 1}, "answer_once must be True or False, got 1"),
        ({"answer_once": True, "order": "auto"}, "answer_once needs order='relevance'.*'auto'"),
        ({"answer_once": True, "synthesis": "adaptive"}, "answer_once needs.*'adaptive'"),
        ({"answer_once": True, "reuse": "anywhere"}, "answer_once needs reuse='prefix'"),
        ({"synthesis": "stuff", "golden_every": 3}, "golden_every needs synthesis='adaptive'"),
        (
            {"synthesis": "adaptive", "profiler": "heuristic", "golden_every": 3},
            "golden_every needs .* and profiler='llm', got .* profiler='heuristic'",
        ),
        ({"profiler": "heuristic"}, "profiler needs synthesis='adaptive'"),
        ({"data": " "}, "data must be a text that is not empty"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"kv_cache_gib": 0}, "kv_cache_gib must be a number above 0"),
        ({"cache_index": "tree"}, "cache_index"),
    ],
)
def test_bad_settings(knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        USUAL.set(**knobs)


def test_numbers_of_numpy_are_stored_as_pythons() -> None:
    numpy = USUAL.set(k=np.int64(3), exponent=np.float32(0.5), rate=np.float32(2))
    python = USUAL.set(k=3, exponent=0.5, rate=2.0)
    assert json.dumps(numpy.as_dict()) == json.dumps(python.as_dict())


@pytest.mark.parametrize(
    ("knobs", "hint"),
    [({"toleranc": 0.1}, "did you mean 'tolerance'"), ({"workload": "uniforn"}, "'uniform'")],
)
def test_misspelt_names_are_suggested(knobs: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        USUAL.set(**knobs)


def test_knobs_in_the_wrong_group() -> None:
    with pytest.raises(ConfigurationError, match="unknown knob 'policy'"):
        EvalSettings(dataset="nq", cache={"policy": "lru"})
    with pytest.raises(ModelNotFoundError, match="/no/such/model"):
        USUAL.set(model="/no/such/model")


def test_configurations_of_synthesis() -> None:
    assert USUAL.synthesis_config is None
    config = USUAL.set(synthesis="map_reduce", k=3).synthesis_config
    assert config is not None
    assert (config.num_chunks, config.intermediate_length) == (3, 100)
    config = USUAL.set(synthesis="map_reduce", intermediate_length=40).synthesis_config
    assert config is not None
    assert config.intermediate_length == 40
    assert USUAL.set(synthesis="stuff").synthesis_config is not None
    assert USUAL.set(synthesis="adaptive", latency_budget=2.5).synthesis_config is None


def test_settings_of_adaptive_synthesis() -> None:
    usual = USUAL.set(synthesis="adaptive", k=7).adaptive_settings()
    assert usual == AdaptiveSettings(max_chunks=7)
    assert USUAL.set(
        synthesis="adaptive", mode="largest", num_chunks=4, intermediate_length=60, golden_every=9
    ).adaptive_settings() == AdaptiveSettings(
        mode="largest", num_chunks=4, intermediate_length=60, max_chunks=5, golden_every=9
    )
