"""Counting tokens with the best tokenizer at hand."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiktoken
from transformers import AutoTokenizer

from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import ConfigurationError, MissingExtraError
from ragcache_integrations.llms.openai import TokenCounter, server

TEXTS = ["", "a", "Cats purr.", "Zwölf Boxkämpfer jagen Viktor", "日本語", "<|endoftext|>"]


@pytest.fixture
def encoding() -> tiktoken.Encoding:
    """tiktoken's own code with an encoding of our own, since its encodings must be fetched."""
    ranks = {bytes([value]): value for value in range(256)} | {b"Ca": 256, b"ts": 257}
    return tiktoken.Encoding(
        "bytes", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 999}
    )


def test_the_models_own_tokenizer() -> None:
    path = str(default_model_path())
    own = AutoTokenizer.from_pretrained(path)
    counter = TokenCounter("any", path)
    for text in TEXTS:
        assert counter.encode(text) == own.encode(text, add_special_tokens=False)
        assert counter.count(text) == len(counter.encode(text))


@pytest.mark.slow
def test_the_models_own_tokenizer_from_many_threads() -> None:
    counter = TokenCounter("any", str(default_model_path()))
    texts = [f"{text} {n}" for n in range(50) for text in TEXTS]
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(counter.count, texts))
    assert counts == [TokenCounter("any", str(default_model_path())).count(t) for t in texts]


def test_tiktoken_by_the_models_name(
    encoding: tiktoken.Encoding,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tiktoken, "encoding_for_model", {"known": encoding}.__getitem__)
    counter = TokenCounter("known")
    assert counter.encode("Cats") == [256, 257]
    assert counter.count("Cats purr.") == 8
    assert counter.count("<|endoftext|>") == 13  # text is text, whatever it spells
    assert not caplog.records


def test_tiktokens_newest_for_a_model_it_does_not_know(
    encoding: tiktoken.Encoding,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tiktoken, "encoding_for_model", {}.__getitem__)
    monkeypatch.setattr(tiktoken, "get_encoding", {server.FALLBACK_ENCODING: encoding}.__getitem__)
    counter = TokenCounter("unknown")
    assert [counter.count("Cats"), counter.count("Cats")] == [2, 2]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "approximately" in record.getMessage()


def _unreachable(_: str) -> tiktoken.Encoding:
    raise OSError("no network")


@pytest.mark.parametrize("installed", [True, False])
def test_four_bytes_a_token_where_nothing_else_is_at_hand(
    installed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if installed:
        monkeypatch.setattr(tiktoken, "encoding_for_model", _unreachable)
    else:
        monkeypatch.setitem(sys.modules, "tiktoken", None)
    counter = TokenCounter("gpt-4o")
    assert [counter.count(text) for text in ("", "a", "four", "fives", "日本語")] == [0, 1, 1, 2, 3]
    (record,) = caplog.records
    assert "tokenizer=" in record.getMessage()
    with pytest.raises(ConfigurationError, match="tokenizer="):
        counter.encode("a")


@pytest.mark.parametrize("tokenizer", [None, "own"])
def test_text_that_is_no_unicode(tokenizer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiktoken, "encoding_for_model", _unreachable)
    counter = TokenCounter("m", str(default_model_path()) if tokenizer else None)
    for bad in ("a \ud800", b"bytes"):
        with pytest.raises(ConfigurationError, match=r"surrogate|string"):
            counter.count(bad)  # type: ignore[arg-type]  # what is tested


def test_no_such_tokenizer(tmp_path: object) -> None:
    with pytest.raises(ConfigurationError, match="no tokenizer can be loaded"):
        TokenCounter("m", str(tmp_path)).count("a")


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError):
        TokenCounter("m", "somewhere").count("a")
