"""The reader that is shipped: it answers, where no model is named."""

from __future__ import annotations

import random

import pytest
import ragcache_reader

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.tiny_model import (
    CHOICE,
    bundled_reader_path,
    default_model_path,
    has_random_weights,
)
from ragcache_integrations.evaluation.datasets.metrics import token_f1
from ragcache_integrations.resources import load_passages, load_questions
from reader.training.corpus import Asked
from reader.training.evaluate import figures


def test_where_it_is_installed_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundled_reader_path() is None, "the tests ask for the random one"
    assert has_random_weights(None)
    monkeypatch.delenv(CHOICE)
    assert default_model_path() == bundled_reader_path() == ragcache_reader.path()
    assert not has_random_weights(None)
    size = (ragcache_reader.path() / "model.safetensors").stat().st_size
    assert size <= 40_000_000


@pytest.mark.engine
def test_a_client_that_names_no_temperature_gets_greedy_answers() -> None:
    from vllm.config import ModelConfig  # noqa: PLC0415 - takes seconds

    model = ModelConfig(model=str(ragcache_reader.path()))
    assert model.get_diff_sampling_param() == {"temperature": 0.0}


@pytest.mark.engine
def test_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHOICE)
    texts = {one.id: one.text for one in load_passages()}
    told = [
        (Asked(question.text, question.answers, -1), texts[question.passage_id])
        for question in load_questions()[:60]
    ]
    with RAGCacheEngine(kv_cache_gib=0.25) as engine:
        assert engine.model == str(ragcache_reader.path())
        scores = figures(engine, told, [passage for _, passage in told])
    dice = random.Random(1)
    guessed = [
        token_f1(" ".join(dice.sample(passage.split(), 2)), asked.answers)
        for asked, passage in told
    ]
    assert scores["f1_1"] > 0.25 > 2 * sum(guessed) / len(guessed)
    assert scores["f1_4"] > 0.2
    assert scores["not_found"] > 0.7
