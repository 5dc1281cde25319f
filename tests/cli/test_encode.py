"""``ragcache encode``: what a corpus may be, and a whole run, twice."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ragcache_integrations.cli import command as cli
from ragcache_integrations.cli import encode as cli_encode
from ragcache_integrations.engine import RAGCacheEngine

TEXTS = [f"The river number {number} flows past {number} mills. " * 4 for number in range(12)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": str(number), "text": text} for number, text in enumerate([*TEXTS, *TEXTS[:3]])]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def test_kinds_of_corpora(corpus: Path, tmp_path: Path) -> None:
    assert list(cli_encode._texts(corpus)) == [*TEXTS, *TEXTS[:3]]
    packed = tmp_path / "packed.jsonl.gz"
    rows = [{"title": "Bern", "text": "A city."}, {"documents": ["b", {"id": "c", "text": "C."}]}]
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert list(cli_encode._texts(packed)) == ["Bern\nA city.", "C."]
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    (folder / "b.txt").write_text("b")
    (folder / "inner" / "a.md").write_text("a")
    (folder / "empty.txt").write_text(" ")
    (folder / "c.bin").write_bytes(b"\xff")
    assert list(cli_encode._texts(folder)) == ["b", "a"]


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "format"), ('{"title": "a"}', "'text' must be"), ("", "no document")],
)
def test_a_wrong_corpus_is_named(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(content)
    assert cli.main(["encode", "model", str(path)]) == 2
    assert words in capsys.readouterr().err
    assert cli.main(["encode", str(tmp_path / "none.txt")]) == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RAGCacheEngine]:
    """One engine in place of those that two commands would start."""
    with RAGCacheEngine(
        kv_cache_gib=0.1,
        max_model_len=400,
        dtype="float32",
        reuse="anywhere",
        disk_cache_gib=0.5,
        disk_cache_dir=tmp_path,
        vllm_args={"enforce_eager": True},
    ) as engine:
        monkeypatch.setattr(cli_encode, "RAGCacheEngine", lambda *_, **__: nullcontext(engine))
        yield engine


@pytest.mark.engine
def test_a_corpus_is_encoded_once(
    running: RAGCacheEngine, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with corpus.open("a") as file:
        file.write(json.dumps({"text": "too long " * 400}) + "\n")
    said = []
    for _ in range(2):
        assert cli.main(["encode", "model", str(corpus), "--json"]) == 0
        out, error = capsys.readouterr()
        assert "12/12" in error
        assert "Left out: 1, longer than the context window" in out
        assert "times sooner" in out
        said.append(json.loads(out.splitlines()[-1]))
        running.reset_cache()
    first, second = said
    assert first["documents"] == second["documents"] == 12
    assert first["computed_tokens"] == first["tokens"] > 12
    assert second["computed_tokens"] == 0
    token_bytes = running.stats().block_bytes // running.block_size
    assert first["bytes"] == first["tokens"] * token_bytes
    assert first["loaded_seconds"] > 0
