import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions, tiny_model
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.resources import load_passages, load_questions

BUILD = "from ragcache_integrations.engine.tiny_model import default_model_path as f; print(f())"


@pytest.fixture(scope="module")
def model() -> Path:
    return default_model_path()


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model)
    return loaded


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_processes_at_once_make_the_same_model(model: Path, tmp_path: Path) -> None:
    environment = os.environ | {"RAGCACHE_HOME": str(tmp_path)}
    runs = [
        subprocess.Popen([sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    paths = {run.communicate(timeout=300)[0].decode().strip() for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    assert len(paths) == 1
    assert files(Path(paths.pop())) == files(model)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [model.name]


def test_another_recipe_is_another_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_model._Recipe(hidden=64, layers=1, intermediate=64)
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    monkeypatch.setitem(tiny_model._RECIPES, "random-small", recipe)
    other = default_model_path()
    assert other.name != model.name
    assert json.loads((other / "config.json").read_text())["hidden_size"] == 64


def test_the_notice_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    tiny_model._notice.cache_clear()
    with caplog.at_level(logging.WARNING):
        default_model_path()
        default_model_path()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "noise" in caplog.text
    assert "timings are real" in caplog.text


def test_making_it_needs_no_torch(tmp_path: Path) -> None:
    code = (
        BUILD + "; import sys; sys.exit(bool({'torch', 'vllm', 'transformers'} & {*sys.modules}))"
    )
    environment = os.environ | {"RAGCACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


@pytest.mark.parametrize(("name", "size"), [("random", 21e6), ("random-small", 4.5e6)])
def test_weights(monkeypatch: pytest.MonkeyPatch, name: str, size: float) -> None:
    monkeypatch.setenv("RAGCACHE_DEFAULT_MODEL", name)
    model = default_model_path()
    config = json.loads((model / "config.json").read_text())
    weights = load_file(model / "model.safetensors")
    assert all(array.dtype == np.float32 for array in weights.values())
    assert all(np.isfinite(array).all() for array in weights.values())
    assert sum(array.size for array in weights.values()) == pytest.approx(size, rel=0.05)
    # Memory has room for as many tokens, so that what is tried with one holds with the other.
    assert config["num_hidden_layers"] * config["num_key_value_heads"] == 12
    assert config["max_position_embeddings"] == 8192
    assert config["head_dim"] % 32 == 0


def test_every_text_comes_back_whole(tokenizer: PreTrainedTokenizerBase) -> None:
    assert len(tokenizer) == 4096
    for text in ("plain", "  two spaces\n\ttabs ", "ünïcödé 漢字 🙂", "\x00\x07", "<|user|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_is_compressed(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = [passage.text for passage in load_passages()[:100]]
    tokens = sum(len(tokenizer.encode(text)) for text in texts)
    assert sum(map(len, texts)) / tokens > 3


def test_the_chat_template_parts_turns_by_single_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    turns = [
        {"role": "system", "content": " Answer. "},
        {"role": "user", "content": "Document.\n\nwho is it"},
        {"role": "assistant", "content": "He"},
        {"role": "user", "content": "and her"},
    ]
    rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|begin|><|system|> Answer. <|end|><|user|>Document.\n\nwho is it<|end|>"
        "<|assistant|>He<|end|><|user|>and her<|end|><|assistant|>"
    )
    tokens = tokenizer.encode(rendered, add_special_tokens=False)
    contents = [token for turn in turns for token in tokenizer.encode(turn["content"])]
    assert [token for token in tokens if token >= len(tiny_model.SPECIAL_TOKENS)] == contents
    # Begin, then two for each turn, then the turn to come.
    assert len(tokens) - len(contents) == 1 + 2 * len(turns) + 1


def test_the_chat_template_refuses_unknown_roles(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(Exception, match="unknown role critic"):
        tokenizer.apply_chat_template([{"role": "critic", "content": "no"}], tokenize=False)


@pytest.mark.engine
def test_different_prompts_have_different_answers(engine: RAGCacheEngine) -> None:
    passages, questions = load_passages(), load_questions()[:100]
    prompts = [
        Prompt.rag(
            question.text,
            [passage.text for passage in passages[5 * number : 5 * number + 5]],
            system="Answer from the documents.",
        )
        for number, question in enumerate(questions)
    ]
    options = SamplingOptions(max_tokens=16, logprobs=20)
    schema = {
        "type": "object",
        "properties": {"why": {"type": "string"}, "when": {"type": "integer"}},
        "required": ["why", "when"],
    }
    answers = engine.generate_batch(prompts, options)
    structured = engine.generate_batch(
        prompts[:20], SamplingOptions(max_tokens=512, json_schema=schema)
    )
    assert len({answer.token_ids for answer in answers}) >= 95
    assert sum(answer.finish_reason == "length" for answer in answers) >= 95
    for answer in answers:
        first = answer.logprobs[0]
        assert -8 < first.logprob < -0.1  # neither flat nor certain
        assert first.top[1].logprob > first.logprob - 5
    whole = [answer for answer in structured if len(answer.token_ids) < 512]
    assert len(whole) >= 19
    for answer in whole:
        assert set(json.loads(answer.text)) == {"why", "when"}
