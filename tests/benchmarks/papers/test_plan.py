from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from papers.plan import PRESETS, PresetPlan, plan_preset

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets import DATASETS

WITHOUT_SAMPLE = {"musique", "finqa", "triviaqa", "2wikimultihopqa", "longbench"}
EVERY = [(name, dataset) for name, preset in PRESETS.items() for dataset in preset.datasets]
BUNDLED = [(name, dataset) for name, dataset in EVERY if dataset not in WITHOUT_SAMPLE]


def settings_of(plan: PresetPlan, name: str) -> dict[str, Any]:
    (place,) = (number for number, item in enumerate(plan.variants) if item.name == name)
    return plan.configurations[place].flat()


def test_the_presets_are_of_known_data_sets() -> None:
    assert list(PRESETS) == ["proximity", "ragcache", "metis", "prompt-cache"]
    assert {dataset for _, dataset in EVERY} <= set(DATASETS)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("preset", "dataset"), BUNDLED)
def test_all_runs_of_a_seed_have_the_same_questions(preset: str, dataset: str, quick: bool) -> None:
    plan = plan_preset(dataset, preset, quick=quick, seeds=2)
    names = [variant.name for variant in plan.variants]
    assert len(set(names)) == len(names)
    assert len(plan.configurations) == 2 * len(names)
    assert len({str(item) for item in plan.configurations}) == len(plan.configurations)
    first, second = plan.configurations[: len(names)], plan.configurations[len(names) :]
    assert {item.seed for item in first} == {0}
    assert {item.seed for item in second} == {1}
    assert [item.set(seed=0) for item in second] == list(first)
    for item in plan.configurations:
        assert item.sample == plan.configurations[0].sample
        assert item.corpus == plan.configurations[0].corpus
    folders = plan.run_names()
    assert len(set(folders)) == len(folders)
    assert all("None" not in folder for folder in folders if "reorder" not in folder)


def test_the_form_follows_the_data(tmp_path: Path) -> None:
    assert plan_preset("nq", "proximity").form.quick
    assert not plan_preset("nq", "proximity", quick=False).form.quick
    assert len(plan_preset("nq", "proximity").seeds) == 1
    assert len(plan_preset("nq", "proximity", quick=False).seeds) == 3
    folder = tmp_path / "nq"
    folder.mkdir()
    (folder / "questions.jsonl").write_text(
        '{"id": "1", "question": "who?", "answers": ["it"], "passage_id": "p"}\n'
    )
    (folder / "passages.jsonl").write_text('{"id": "p", "title": "t", "text": "it"}\n')
    plan = plan_preset("nq", "proximity", data=str(folder))
    assert not plan.form.quick
    # A usual sample is at most all questions.
    assert {item.sample for item in plan.configurations} == {1}
    assert plan_preset("nq", "proximity", data=str(folder), quick=True).form.quick


def test_a_usual_knob_may_be_replaced() -> None:
    plan = plan_preset("nq", "proximity", sample=5, framework="llama_index")
    assert {item.sample for item in plan.configurations} == {5}
    assert {item.framework for item in plan.configurations} == {"llama_index"}
    rates = {item.rate for item in plan_preset("nq", "ragcache", rate=8.0).configurations}
    assert rates == {2.0, 4.0, 8.0}


def test_knobs_that_do_not_apply_to_a_setting_are_left_out() -> None:
    plan = plan_preset("nq", "proximity", normalize_text=True)
    assert "normalize_text" not in settings_of(plan, "uniform, no cache")
    assert settings_of(plan, "zipf, LSH, tolerance 0.3")["normalize_text"] is True
    assert settings_of(plan, "zipf, LSH, tolerance 0.3")["guard"] is False  # as in the paper
    plan = plan_preset("nq", "ragcache", host_cache_gib=1.0)
    assert "host_cache_gib" not in settings_of(plan, "stock vLLM, top-2, the whole rate")
    assert settings_of(plan, "knowledge tree, top-2, the whole rate")["host_cache_gib"] == 1.0
    plan = plan_preset("nq", "prompt-cache", document_cache_gib=2.0)
    assert "document_cache_gib" not in settings_of(plan, "exact reuse of prefixes")


def test_the_settings_are_the_papers() -> None:
    plan = plan_preset("pubmedqa", "proximity", quick=False)
    lsh = settings_of(plan, "zipf, LSH, tolerance 0.2")
    assert (lsh["num_hyperplanes"], lsh["bucket_capacity"], lsh["rerank_factor"]) == (8, 20, 4)
    flat = settings_of(plan, "uniform, FLAT, tolerance 0.1, capacity 300")
    assert (flat["eviction"], flat["rerank_factor"], flat["variants"]) == ("fifo", 1, 4)
    plan = plan_preset("nq", "metis")
    fixed = [(item.synthesis, item.k) for item in plan.configurations[:6]]
    assert fixed == [
        *(("stuff", k) for k in (1, 2, 4, 8)),
        ("map_rerank", 4),
        ("map_reduce", 4),
    ]
    adaptive = [(item.profiler, item.mode, item.golden_every) for item in plan.configurations[6:11]]
    assert adaptive == [
        ("heuristic", "adaptive", None),
        ("llm", "gradual", None),
        ("llm", "gradual", None),
        ("llm", "adaptive", None),
        ("llm", "adaptive", 3),
    ]
    plan = plan_preset("nq", "metis", quick=False)
    assert plan.configurations[10].golden_every == 30
    plan = plan_preset("mmlu", "ragcache")
    assert {item.engine.get("policy") for item in plan.configurations} == {
        *("lrfu", "pgdsf", "gdsf", "lru", "lfu"),
        None,
    }
    assert {item.k for item in plan.configurations} == {1, 2, 3, 5}
    plan = plan_preset("qmsum", "prompt-cache")
    assert [item.engine.get("link_tokens") for item in plan.configurations] == [
        *(None, None),
        *(0, 8, 16, 32, 16),
    ]
    assert [item.engine.get("exact_documents") for item in plan.configurations] == [
        *(None, None),
        *(0, 0, 0, 0, 1),
    ]


def test_it_says_what_will_be_run() -> None:
    plan = plan_preset("nq", "metis", seeds=2)
    first, *runs = plan.describe().splitlines()
    assert first.startswith("metis (RAGServe (METIS) §7) on nq, small form: 28 runs, one after")
    assert "sample=8" in first
    assert len(runs) == 28
    assert runs[0].endswith("1. stuff 1: seed=0 k=1 retriever=plain synthesis=stuff")
    assert "seed=1" in runs[14]


def test_folders_say_what_is_in_them() -> None:
    first, second, *_ = plan_preset("nq", "metis").run_names()
    assert first.startswith("nq-k=1-synthesis=stuff-seed=0-")
    assert second.startswith("nq-k=2-synthesis=stuff-seed=0-")


@pytest.mark.parametrize(
    ("dataset", "preset", "knobs", "words"),
    [
        ("nq", "proximty", {}, "preset must be one of .*did you mean 'proximity'"),
        ("nqq", "proximity", {}, "data set of proximity must be one of .*did you mean 'nq'"),
        ("mmlu", "metis", {}, "data set of metis must be one of nq, qmsum, .*, got 'mmlu'"),
        ("nq", "proximity", {"tolerance": 0.2}, "'proximity' decides tolerance itself"),
        ("nq", "proximity", {"seed": 1}, "decides seed itself"),
        ("nq", "metis", {"k": 3, "synthesis": "stuff"}, "decides k, synthesis itself"),
        ("nq", "prompt-cache", {"link_tokens": 4}, "decides link_tokens itself"),
        ("nq", "ragcache", {"policy": "lru"}, "decides policy itself"),
        ("nq", "ragcache", {"rate": 0}, "rate must be a number above 0"),
        ("nq", "ragcache", {"rate": "fast"}, "rate must be a number"),
        ("nq", "proximity", {"tau": 1}, "unknown knob 'tau'"),
        ("nq", "proximity", {"sample": 100_000}, "sample must be from 1 to"),
        ("nq", "proximity", {"sample": 0}, "sample must be a whole number"),
        ("nq", "proximity", {"seeds": 0}, "seeds must be a whole number of at least 1"),
        ("nq", "proximity", {"seeds": 101}, "at most 100"),
        ("nq", "proximity", {"data": "/no/such/folder"}, "must be a folder"),
        ("nq", "ragcache", {"base_url": "http://a", "model": "m"}, "base_url excludes"),
        ("nq", "metis", {"guard": False}, "guard needs retriever='cache'"),
    ],
)
def test_what_does_not_fit_is_refused(
    dataset: str, preset: str, knobs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        plan_preset(dataset, preset, **knobs)
