"""Equal prompts are answered once, where only retrieval differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import ChatRAGCache
from ragcache_workbench.evaluation import (
    compare,
    evaluate,
    evaluate_grid,
)
from ragcache_workbench.evaluation.datasets import load_dataset
from ragcache_workbench.evaluation.report.report import verdicts
from ragcache_workbench.evaluation.report.tables import remarks

from .world import Echo, make_retriever

SMALL: dict[str, Any] = {"sample": 6, "workload": "uniform", "variants": 2, "k": 3}


def test_equal_prompts_are_answered_once_over_all_runs(tmp_path: Path) -> None:
    tolerances = {"tolerance": [0.0, 0.8, 1.2]}
    knobs: dict[str, Any] = {"retriever": make_retriever, **SMALL}
    every = evaluate_grid("nq", tolerances, model=Echo(), out=tmp_path / "each", **knobs)
    counted: list[int] = []
    echo = Echo(called=counted.append)
    once = evaluate_grid("nq", tolerances, model=echo, out=tmp_path, answer_once=True, **knobs)
    prompts = {(r.question, r.text, r.documents) for run in every for r in run.records}
    assert len(counted) == len(prompts) + 1  # and one to warm up
    assert sum(len(run.records) for run in once) > len(prompts)
    for all_asked, some_asked in zip(every, once, strict=True):
        assert some_asked.quality == all_asked.quality
        assert [(r.answer, r.hit) for r in some_asked.records] == [
            (r.answer, r.hit) for r in all_asked.records
        ]
        assert some_asked.figures["retrieval_ms_mean"] > 0
        for record in some_asked.records:
            assert record.retrieval_seconds > 0
            assert (record.end_to_end_seconds is None) == record.reused
            assert (record.prompt_tokens is None) == record.reused
    assert once[0].figures["prompt_tokens"] > 0
    assert any(record.reused for record in once[1].records)
    # Tokens and times of the few questions that were asked stand for nothing.
    assert not {"prompt_tokens", "tokens_saved", "ttft_ms_mean"} & set(once[1].figures)
    assert {each.metric for each in compare(once, baseline=0)} >= {"retrieval_ms", "cache_hit_rate"}
    assert not {"ttft_ms", "cached_tokens"} & {each.metric for each in compare(once)}
    assert "cached_tokens" in {each.metric for each in compare(every)}
    assert "prompt tokens" not in verdicts(once)[0].text
    numbers = {str(run.path): number for number, run in enumerate(once, 1)}
    assert any("equal prompts were answered once" in each for each in remarks(once, numbers, ()))


def test_documents_of_the_same_ids_and_other_texts_make_other_prompts(tmp_path: Path) -> None:
    """Also where an earlier call has answered those of the first corpus."""
    corpora = []
    for end in ("", "!"):
        lines = [
            {"id": document.id, "text": document.text + end}
            for document in load_dataset("nq").documents[:60]
        ]
        corpora.append(tmp_path / f"corpus{end}.jsonl")
        corpora[-1].write_text("\n".join(map(json.dumps, lines)))
    knobs: dict[str, Any] = {"retriever": "plain", "sample": 6, "corpus": "all", "k": 1}
    every = evaluate_grid(
        "nq", {"documents": corpora}, model=Echo(), out=tmp_path / "each", **knobs
    )
    knobs |= {"out": tmp_path / "once", "answer_once": True}
    evaluate_grid("nq", {"documents": corpora[:1]}, model=Echo(), **knobs)
    once = evaluate_grid("nq", {"documents": corpora}, model=Echo(), **knobs)
    for all_asked, some_asked in zip(every, once, strict=True):
        answers = [record.answer for record in all_asked.records]
        assert [record.answer for record in some_asked.records] == answers
    first, second = (run.records[0] for run in every)
    assert first.documents == second.documents
    assert first.answer != second.answer


def test_a_model_whose_answers_depend_on_what_came_before_is_asked_every_time(
    tmp_path: Path,
) -> None:
    model = ChatRAGCache(reuse="anywhere")  # its engine does not even start
    knobs: dict[str, Any] = {"out": tmp_path, "model": model, "random_weights": True, "sample": 2}
    with pytest.raises(ConfigurationError, match="answer_once needs a model with reuse='prefix'"):
        evaluate("nq", retriever=make_retriever, answer_once=True, **knobs)


def test_answers_of_complete_runs_are_known_when_it_is_resumed(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {
        "retriever": make_retriever,
        "out": tmp_path,
        "answer_once": True,
        **SMALL,
        "checkpoint_seconds": 0.0,
    }
    (first,) = evaluate_grid("nq", {"tolerance": [0.0]}, model=Echo(), **knobs)

    def stop(number: int) -> None:
        if number == 2:  # after the call that warms up, the first that is really asked
            message = "broken off"
            raise OSError(message)

    sweep = {"tolerance": [0.0, 1.2]}
    with pytest.raises(OSError, match="broken off"):
        evaluate_grid("nq", sweep, model=Echo(called=stop), **knobs)
    counted: list[int] = []
    same, other = evaluate_grid("nq", sweep, model=Echo(called=counted.append), **knobs)
    assert same.path == first.path
    before = {(r.question, r.text, r.documents) for r in first.records}
    new = {(r.question, r.text, r.documents) for r in other.records} - before
    assert len(counted) == 1 + len(new)
