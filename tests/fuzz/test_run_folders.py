"""Folders of runs: read, resumed and reported, or refused; and nothing else is written to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation import EvalRun, compare, evaluate, throughputs, write_report
from ragcache_workbench.evaluation.records import RunDirectory, read_records
from tests.evaluation.world import Echo, make_retriever
from tests.support.sizes import examples

from .bounds import contained
from .hostile import REPLACEMENTS, altered_text, damaged, put_in_place

SMALL: dict[str, Any] = {"sample": 6, "workload": "uniform", "variants": 2, "length": None, "k": 3}
PRECIOUS = b"precious" * 100
NAMES = [
    *("checkpoint.json", "config.json", "records.jsonl", "scores.jsonl", "summary.json"),
    "environment.json",
]


class BrokenOffError(RuntimeError):
    """What the model runs into."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of a complete run, and of one that was broken off."""

    def called(number: int) -> None:
        if number == 5:
            raise BrokenOffError

    contents = {}
    for name, model in (("complete", Echo()), ("broken off", Echo(called=called))):
        out = tmp_path_factory.mktemp("runs")
        knobs: dict[str, Any] = {"checkpoint_seconds": 0.0, **SMALL}
        try:
            evaluate("nq", retriever=make_retriever, model=model, out=out, **knobs)
        except BrokenOffError:
            assert name == "broken off"
        (folder,) = out.iterdir()
        if name == "complete":  # and all that a report loads is there before there are children
            write_report([folder], tmp_path_factory.mktemp("report"), images=False)
        contents[name] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return contents


class Folder:
    """A folder of a run, which may be damaged."""

    def __init__(self, within: Path, files: dict[str, bytes]) -> None:
        shutil.rmtree(within)
        within.mkdir()
        self.files = files
        self.path = within / "run"
        self.path.mkdir()
        for name, content in files.items():
            (self.path / name).write_bytes(content)
        self.precious = within / "precious"
        self.precious.write_bytes(PRECIOUS)

    def seal(self, records: bytes) -> None:
        """Change the records, and what the checkpoint says of them."""
        (self.path / "records.jsonl").write_bytes(records)
        checkpoint = json.loads(self.files["checkpoint.json"])
        checkpoint |= {"records_bytes": len(records), "records_sha256": sha256(records).hexdigest()}
        (self.path / "checkpoint.json").write_text(json.dumps(checkpoint))

    def read(self) -> None:
        """Read it in a process of its own, in every way: it is right, or refused."""
        event(contained(lambda: f"{self._load()}, {self._records()}, {self._resume()}"))
        assert self.precious.read_bytes() == PRECIOUS
        assert {path.name for path in self.path.parent.iterdir()} <= {"run", "precious", "out"}

    def _load(self) -> str:
        try:
            run = EvalRun.load(self.path)
        except ConfigurationError:
            return "no run"
        assert len(run.records) == len(run.scores)
        assert run.figures is not None
        with suppress(ConfigurationError):
            compare([run, run])
        throughputs([run])
        write_report([run, run], self.path.parent / "out", images=False)
        return "a run"

    def _records(self) -> str:
        try:
            read_records(self.path)
        except ConfigurationError:
            return "no records"
        return "records"

    def _resume(self) -> str:
        config = json.loads(self.files["config.json"])
        before = dict(self._contents())
        try:
            with RunDirectory(self.path, config) as directory:
                assert all(record.number < 12 for record in directory.records)
                file = directory.cache_file
                assert file is None or file.parent == self.path
                directory.write_json_lines("scores.jsonl", [])
        except ConfigurationError:
            assert dict(self._contents()) == before
            return "not resumed"
        return "resumed"

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        for path in self.path.iterdir():
            if path.name != ".lock":
                plain = path.is_file() and not path.is_symlink()
                yield path.name, path.read_bytes() if plain else b""


@pytest.fixture(scope="module")
def within(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("within")


KINDS = st.sampled_from(["complete", "broken off"])
Runs = dict[str, dict[str, bytes]]


@examples(40)
@given(KINDS, st.data())
def test_forged_json(within: Path, runs: Runs, kind: str, data: st.DataObject) -> None:
    folder = Folder(within, runs[kind])
    names = st.sampled_from(sorted(set(NAMES) & set(folder.files)))
    for name in data.draw(st.lists(names, min_size=1, max_size=2)):
        lines = folder.files[name].decode().split("\n")
        if name.endswith(".jsonl"):
            at = data.draw(st.integers(0, len(lines) - 2))
            lines[at] = data.draw(altered_text(json.loads(lines[at])))
            (folder.path / name).write_text("\n".join(lines))
            if name == "records.jsonl":
                folder.seal("\n".join(lines).encode())
        else:
            value = json.loads(folder.files[name])
            (folder.path / name).write_text(data.draw(altered_text(value)))
    folder.read()


@examples(20)
@given(KINDS, st.data())
def test_damaged_bytes(within: Path, runs: Runs, kind: str, data: st.DataObject) -> None:
    folder = Folder(within, runs[kind])
    name = data.draw(st.sampled_from(sorted(set(folder.files) - {".lock"})))
    content = data.draw(damaged(folder.files[name], (b"\n", b"{}", b"NaN", b"\xff", b"[[")))
    if name == "records.jsonl" and data.draw(st.booleans()):
        folder.seal(content)
    else:
        (folder.path / name).write_bytes(content)
    folder.read()


@examples(20)
@given(KINDS, st.sampled_from([*NAMES, ".lock", "cache-1-1.npz"]), st.sampled_from(REPLACEMENTS))
def test_other_files(within: Path, runs: Runs, kind: str, name: str, replacement: str) -> None:
    folder = Folder(within, runs[kind])
    put_in_place(replacement, folder.path / name, folder.precious)
    folder.read()
