"""Presets over a real store, with a model that answers at once."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from papers.metis import CHUNKS
from papers.outcome import PresetResult, run_plan
from papers.plan import plan_preset

from ragcache_integrations.errors import ConfigurationError, GenerationTimeoutError
from ragcache_workbench.evaluation import evaluate
from ragcache_workbench.evaluation.report import FOLLOWED
from tests.evaluation.world import Echo, store

from .made import retriever, run_preset


def proximity(out: Path, model: Echo, **knobs: Any) -> PresetResult:
    return run_preset("proximity", model, out, **({"sample": 3, "k": 2} | knobs))


def answers(result: PresetResult) -> list[tuple[str, str, bool | None]]:
    return [
        (record.text, record.answer, record.hit) for run in result.runs for record in run.records
    ]


def test_all_settings_are_run_on_the_same_questions(tmp_path: Path) -> None:
    result = proximity(tmp_path, Echo(), seeds=2)
    assert len(result.runs) == 2 * len(result.plan.variants)
    assert [run.settings for run in result.runs] == list(result.plan.configurations)
    streams: dict[tuple[int, str], set[tuple[str, ...]]] = defaultdict(set)
    for run in result.runs:
        key = run.settings.seed, run.settings.workload
        streams[key].add(tuple(record.text for record in run.records))
    assert len(streams) == 4
    assert all(len(texts) == 1 for texts in streams.values())
    uniform = result.tables[0]
    assert len(uniform.rows) == 7
    without, least, *_, most = (row[3].plain for row in uniform.rows)
    assert without is None
    assert most[0] >= least[0]
    content = json.loads(json.dumps(result.headline))
    assert content["preset"] == "proximity"
    assert content["seeds"] == 2
    assert content["runs"] == len(result.runs)
    assert FOLLOWED in result.remarks
    assert result.remarks[0].startswith("The paper uses LLaMA 3.1 Instruct")
    assert "Echo" in result.remarks[0]
    assert "fewer than 100 different questions" in result.remarks[-1]


def test_the_same_call_resumes(tmp_path: Path) -> None:
    def fail(call: int) -> None:
        if call == middle:
            message = "broken off"
            raise RuntimeError(message)

    whole_model, model, idle = Echo(), Echo(), Echo()
    whole = proximity(tmp_path / "whole", whole_model)
    middle = len(whole_model.calls) // 2
    with pytest.raises(RuntimeError, match="broken off"):
        proximity(tmp_path / "broken", Echo(called=fail))
    resumed = proximity(tmp_path / "broken", model)
    assert answers(resumed) == answers(whole)
    assert 0 < len(model.calls) < middle + len(whole.runs)
    # What is complete is read, and nothing is asked.
    again = proximity(tmp_path / "broken", idle)
    assert idle.calls == []
    assert again.headline == resumed.headline


def test_a_store_on_disk_is_said_of_ours_alone(tmp_path: Path) -> None:
    plan = plan_preset("nq", "proximity", sample=1, k=2, store="disk")
    ours = run_plan(plan, model=Echo(), out=tmp_path / "ours")
    assert all(run.settings.store == "disk" for run in ours.runs)
    assert "vectors every search reads from the disk." in ours.remarks[0]
    assert "from the disk" in ours.markdown()
    theirs = proximity(tmp_path / "theirs", Echo(), sample=1, store="disk")
    assert "from the disk" not in theirs.remarks[0]


def test_failed_questions_and_other_machines_are_said(tmp_path: Path) -> None:
    def called(number: int) -> None:
        if number == 4:
            msg = "no answer within 1 s"
            raise GenerationTimeoutError(msg)

    result = proximity(tmp_path, Echo(called=called))
    (words,) = (words for words in result.remarks if "failed" in words)
    assert words == (
        "uniform, no cache: questions failed (1 GenerationTimeoutError). They score 0, and have no "
        "times of answers."
    )
    assert words in result.markdown()
    file = result.runs[-1].path / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"cores": 77}))
    again = proximity(tmp_path, Echo())
    assert " or 77 cores" in again.remarks[0]
    assert " or " not in result.remarks[0].split("These runs use")[1].split(", and ")[0]


def test_metis_with_a_model_of_ones_own(tmp_path: Path) -> None:
    prices = {"input": 1, "cached_input": 0.5, "output": 2}
    result = run_preset("metis", Echo(), tmp_path, sample=3, prices=prices)
    assert len(result.runs) == 14
    by_stuff = result.runs[[one.name for one in result.plan.variants].index(CHUNKS)]
    assert {record.configuration.split()[0] for record in by_stuff.records} == {"stuff"}
    assert "cost" in result.tables[0].columns
    assert result.headline["headline"]["best_fixed"] in result.plan.describe()
    adaptive = result.headline["headline"]["adaptive"]["adaptive, profiler: the model"]
    assert 0 <= adaptive["profiler_share"][0] <= 1


def test_golden_feedback_asks_the_model_again(tmp_path: Path) -> None:
    calls = []
    for every in (None, 1):
        model = Echo()
        evaluate(
            "nq",
            model=model,
            retriever=retriever,
            out=tmp_path / str(every),
            sample=2,
            k=3,
            synthesis="adaptive",
            golden_every=every,
        )
        calls.append(len(model.calls))
    assert calls[1] >= calls[0] + 4  # three summaries, and what they come to


def test_random_weights_are_said_to_show_no_equal_quality(tmp_path: Path) -> None:
    result = run_preset("metis", Echo(), tmp_path, random_weights=True, sample=2)
    assert result.headline["quality_is"] == "mechanics only"
    assert "nothing shows that it answers as well" in result.remarks[-1]


def test_the_tables_are_written(tmp_path: Path) -> None:
    result = proximity(tmp_path, Echo())
    page, data = result.write(tmp_path / "new")
    assert page.name.startswith("proximity-nq-quick-k=2-sample=3-")
    assert page.read_text() == result.markdown()
    content = json.loads(data.read_text())
    assert content["headline"] == json.loads(json.dumps(result.headline["headline"]))
    assert len(content["tables"]) == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot write the tables"):
        result.write(tmp_path / "file")


def test_nothing_starts_where_something_is_refused(tmp_path: Path) -> None:
    model = Echo()
    for wrong in ({"tolerance": 0.2}, {"retriever": "plain"}, {"seed": 3}, {"sample": 10_000}):
        with pytest.raises(ConfigurationError):
            proximity(tmp_path / "runs", model, **wrong)
    # A knob of the store's cache is not for a retriever that is an object.
    with pytest.raises(ConfigurationError, match="cannot be set on a retriever that is given"):
        proximity(tmp_path / "runs", model, retriever=store().as_retriever())
    assert model.calls == []
    assert not (tmp_path / "runs").exists()
