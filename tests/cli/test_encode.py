"""``ragcache encode``: what a corpus may be, and a whole run, twice."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from ragcache_integrations.cli import command as cli
from ragcache_integrations.cli import encode as cli_encode
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.process import control
from ragcache_integrations.errors import ConfigurationError, DocumentsNotKeptError
from tests.support.waiting import wait_until

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


def test_links_and_special_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    """A folder out of someone else's archive may lead anywhere, or never end."""
    folder, outside = tmp_path / "texts", tmp_path / "outside.txt"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a.txt").write_text("a")
    outside.write_text("a secret")
    (folder / "s.txt").symlink_to(outside)
    (folder / "same.txt").symlink_to("inner/a.txt")
    (folder / "loop.txt").symlink_to(".")
    (folder / "inner" / "up.md").symlink_to("..")
    (folder / "gone.txt").symlink_to("nowhere")
    (folder / "zero.txt").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket.txt"))
        assert list(cli_encode._texts(folder)) == ["a"]
    # What the user names may be a link, and nothing but a file is read.
    assert list(cli_encode._texts(folder / "s.txt")) == ["a secret"]
    for name in ("pipe.txt", "zero.txt"):
        with pytest.raises(ConfigurationError, match="regular file"):
            list(cli_encode._texts(folder / name))


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[RAGCacheEngine]:
    with RAGCacheEngine(
        kv_cache_gib=0.1,
        max_model_len=400,
        dtype="float32",
        reuse="anywhere",
        disk_cache_gib=0.03,
        disk_cache_dir=folder,
        vllm_args={"enforce_eager": True},
    ) as engine:
        yield engine


@pytest.fixture
def running(
    started: RAGCacheEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> RAGCacheEngine:
    """One engine in place of those that commands would start, and an empty disk."""
    wait_until(started.reset_cache)  # what was aborted may still be computed
    control(started._process, "count_missing", [])  # and written
    for path in files_in(folder):
        path.unlink()
    monkeypatch.setattr(cli_encode, "RAGCacheEngine", lambda *_, **__: nullcontext(started))
    return started


def files_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*.safetensors"))


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


@pytest.mark.engine
def test_what_the_disk_does_not_take_is_an_error(
    running: RAGCacheEngine, corpus: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process may write no large file, which the system refuses as it does on a full disk."""
    with corpus.open("a") as file:
        for number in range(2):
            file.write(json.dumps({"text": f"Long {number}. {' '.join(TEXTS[:4])}"}) + "\n")
    token_bytes = running.stats().block_bytes // running.block_size  # int8 takes a quarter of them
    few = (token_bytes * 100 // 4, resource.RLIM_INFINITY)
    usual = resource.prlimit(running.pid, resource.RLIMIT_FSIZE, few)
    command = ["encode", "model", str(corpus), "--json"]
    assert cli.main(command) == 2
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, usual)
    out, error = capsys.readouterr()
    words = "of 14 encoded documents at least 2 are not on disk: File too large. The others stay"
    assert words in error
    assert "times sooner" not in out
    assert len(files_in(folder)) == 12
    running.reset_cache()
    assert cli.main(command) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 200 < summary["computed_tokens"] < summary["tokens"] // 2
    assert len(files_in(folder)) == 14


@pytest.mark.engine
def test_more_than_the_disk_may_hold_is_an_error(
    running: RAGCacheEngine, corpus: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["encode", "model", str(corpus), "--disk-cache-gib", "0.001"]) == 2
    assert "--disk-cache-gib allows 0.001 GiB: raise it" in capsys.readouterr().err
    assert files_in(folder) == []
    texts = (f"{text} Year {year}." for year in itertools.count() for text in TEXTS)
    with pytest.raises(DocumentsNotKeptError) as caught:
        running.encode(texts)
    words = r"disk_cache_gib=0.03 has no room .*: the first ([\d,]+) were encoded and stay"
    told = re.search(words, str(caught.value))
    assert told, caught.value
    encoded = int(told[1])
    assert encoded > 0
    # A writer of its own puts them there: the last ones may still be on their way.
    wait_until(lambda: len(files_in(folder)) >= encoded)


@pytest.mark.engine
def test_what_is_in_memory_is_written_to_the_disk_again(
    running: RAGCacheEngine, folder: Path
) -> None:
    for _ in range(2):
        running.encode(TEXTS)
        assert len(files_in(folder)) == len(TEXTS)
        for path in files_in(folder):
            path.unlink()


@pytest.mark.engine
def test_what_somebody_else_removes_meanwhile_is_an_error(
    running: RAGCacheEngine, folder: Path
) -> None:
    def texts() -> Iterator[str]:
        yield from TEXTS
        wait_until(lambda: len(files_in(folder)) == len(TEXTS))
        files_in(folder)[0].unlink()

    with pytest.raises(DocumentsNotKeptError, match="at least 1 are not on disk: disk_cache_gib"):
        running.encode(texts())
    assert len(files_in(folder)) == len(TEXTS) - 1
