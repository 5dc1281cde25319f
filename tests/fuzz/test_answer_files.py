"""Files of cached answers: loaded and usable, or refused, and the cache is as it was."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage

from ragcache_integrations.answers import AnswerCore, AnswerKnobs, Question
from ragcache_integrations.answers.controls import load_answers, save_answers
from ragcache_integrations.answers.langchain.values import CODEC
from ragcache_integrations.core.archive import read_archive, write_archive
from ragcache_integrations.errors import CacheFileError
from tests.answers.traffic import embed
from tests.support.sizes import examples

from .archives import MARKS, changed, sealed
from .bounds import contained
from .hostile import REPLACEMENTS, altered_text, damaged, put_in_place

KIND = "answer cache"
TAG = "a chain"
DOCUMENTS = frozenset({("1", ("text of 1", frozenset([("page", (int, 3))])))})
SCOPES: list[Any] = [("",), ("tenant", frozenset([("language", (str, "it"))]))]
WORDS = ["rome is it nice", "rome is it pretty", "oslo in 1950"]
ANSWERS = ["a text", AIMessage("a text"), {"answer": "a", "context": [Document("rome", id="1")]}]
OURS = Question("bonn", DOCUMENTS, ("",))


def vector(text: str) -> np.ndarray:
    return np.asarray(embed(text), np.float32)


def made(tolerance: Any) -> AnswerCore[Any]:
    return AnswerCore[Any](AnswerKnobs(tolerance=tolerance, capacity=8, ttl=1e6))


def questions() -> list[Question]:
    return [Question(text, DOCUMENTS, scope) for text in WORDS for scope in SCOPES]


@cache
def saved(tolerance: Any) -> bytes:
    """A file with a few answers."""
    core = made(tolerance)
    for number, question in enumerate(questions()):
        core.insert(question, vector(question.text), ANSWERS[number % 3])
    core.insert(Question("bonn", DOCUMENTS, ("",), "a context"), None, "a text")
    near = core.nearest(questions()[0], vector(WORDS[1]))
    if near is not None:
        core.learn(near, wrong=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "answers.npz"
        save_answers(core, path, CODEC, TAG, 0)
        return path.read_bytes()


def use(core: AnswerCore[Any], folder: Path) -> None:
    """Do with a cache whatever can be done with one."""
    for question in questions():
        entry = core.find(question)
        near = core.nearest(question, vector(question.text))
        for found in (entry, None if near is None else near.entry):
            if found is not None:
                assert found.question.documents == question.documents
                assert found.question.scope == question.scope
                assert core.age(found) >= 0
        core.explain(question, vector(question.text))
        if near is not None:
            core.learn(near, wrong=True)
        core.insert(question, vector(question.text), "new")
        assert core.find(question) is not None
    core.stats()
    core.forget(namespace="tenant")
    assert save_answers(core, folder / "again.npz", CODEC, TAG, 0) > 0
    load_answers(core, folder / "again.npz", CODEC, TAG, 0)


def load(tolerance: Any, path: Path, *, refused: bool = False) -> None:
    """Load a file in a process of its own: it is right, or refused."""

    def work() -> str:
        core, loaded = made(tolerance), False
        core.insert(OURS, vector("bonn"), "as before")
        try:
            load_answers(core, path, CODEC, TAG, 0)
        except CacheFileError:
            pass
        except (FileNotFoundError, IsADirectoryError):
            assert not path.is_file()
        except OSError:
            assert path.is_symlink()
        else:
            assert not refused
            loaded = True
        if not loaded:
            entry = core.find(OURS)
            assert entry is not None
            assert entry.answer == "as before"
            assert core.stats().entries == 1
        use(core, path.parent)
        return "loaded" if loaded else "refused"

    event(contained(work))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("answers")


TOLERANCES = st.sampled_from([0.5, "auto"])


@examples(40)
@given(TOLERANCES, st.data())
def test_forged_arrays(folder: Path, tolerance: Any, data: st.DataObject) -> None:
    path = folder / "answers.npz"
    path.write_bytes(saved(tolerance))
    arrays = read_archive(path, kind=KIND)
    names = st.lists(st.sampled_from(sorted(arrays)), min_size=1, max_size=2, unique=True)
    for name in data.draw(names):
        if name == "header":
            text = data.draw(altered_text(json.loads(arrays[name].tobytes()))).encode()
            arrays[name] = np.frombuffer(text, np.uint8)
        else:
            arrays[name] = data.draw(changed(arrays[name], arrays))
    write_archive(path, arrays, KIND)
    load(tolerance, path)


@examples(40)
@given(TOLERANCES, st.data())
def test_forged_records(folder: Path, tolerance: Any, data: st.DataObject) -> None:
    path = folder / "answers.npz"
    path.write_bytes(saved(tolerance))
    arrays = read_archive(path, kind=KIND)
    ends = np.cumsum(arrays["sizes"])[:-1].tolist()
    records = [piece.tobytes() for piece in np.split(arrays["records"], ends)]
    for _ in range(data.draw(st.integers(1, 2))):
        row = data.draw(st.integers(0, len(records) - 1))
        try:
            value = json.loads(records[row])
        except (ValueError, RecursionError):  # it was forged before, maybe nested deeply
            value = None
        text = altered_text(value).map(str.encode)
        records[row] = data.draw(text if value else damaged(records[row], (b"[", b'"')))
    arrays["records"] = np.frombuffer(b"".join(records), np.uint8)
    arrays["sizes"] = np.array(list(map(len, records)), np.int64)
    write_archive(path, arrays, KIND)
    load(tolerance, path)


@examples(30)
@given(TOLERANCES, st.data())
def test_damaged_bytes(folder: Path, tolerance: Any, data: st.DataObject) -> None:
    path, whole = folder / "answers.npz", saved(tolerance)
    content = data.draw(damaged(whole, (whole[:60], whole[-200:], *MARKS)))
    right = data.draw(st.booleans())
    path.write_bytes(sealed(content) if right else content)
    load(tolerance, path, refused=not right and content != whole)


@examples(10)
@given(TOLERANCES, st.sampled_from(REPLACEMENTS))
def test_other_files(folder: Path, tolerance: Any, replacement: str) -> None:
    path, precious = folder / "replaced.npz", folder / "precious"
    precious.write_bytes(b"precious")
    put_in_place(replacement, path, precious)
    load(tolerance, path)
    assert precious.read_bytes() == b"precious"
    path.rmdir() if replacement == "folder" else path.unlink(missing_ok=True)
