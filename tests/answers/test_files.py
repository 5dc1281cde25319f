"""Answers that are saved and loaded: served as before, for as long as before, or refused."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.answers import AnswerCore, AnswerKnobs, Question, controls
from ragcache_integrations.answers.controls import load_answers, save_answers
from ragcache_integrations.answers.entries import AnswerCodec
from ragcache_integrations.core.archive import read_archive, write_archive
from ragcache_integrations.errors import CacheFileError, ConfigurationError
from ragcache_integrations.query_cache import Candidate, QueryCache
from tests.answers.traffic import embed
from tests.support.sizes import examples

DOCUMENTS = frozenset({("1", ("text of 1", frozenset([("page", (int, 3))])))})
TAG = "faq 3, a model"
WORDS = ["rome is it nice", "rome is it pretty", "rome is it old", "oslo is it nice"]


def _same(value: Any) -> Any:
    return value


TEXTS: AnswerCodec[str] = AnswerCodec("texts", _same, _same)


@dataclass
class Machine:
    """The clocks of a machine: what processes count with begins anywhere."""

    now: float = 1e9

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def core(self, began: float = 0, **knobs: Any) -> AnswerCore[str]:
        knobs = {"tolerance": 0.5, "ttl": 100.0} | knobs
        return AnswerCore[str](AnswerKnobs(**knobs), lambda: self.now - began)

    @contextmanager
    def running(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(controls, "time", self)
            yield


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    with machine.running():
        yield machine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.npz"


def ask(text: str, tenant: str = "", version: int = 0, documents: Any = DOCUMENTS) -> Question:
    return Question(text, documents, (tenant, frozenset()), "", version)


def vector(text: str) -> np.ndarray:
    return np.asarray(embed(text), np.float32)


def served(core: AnswerCore[str], question: Question) -> str | None:
    entry = core.find(question)
    if entry is None:
        near = core.nearest(question, vector(question.text))
        entry = near.entry if near is not None and near.served else None
    return None if entry is None else entry.answer


def save(core: AnswerCore[str], path: Path, **settings: Any) -> int:
    arguments: dict[str, Any] = {"codec": TEXTS, "tag": TAG, "version": 0}
    return save_answers(core, path, **arguments | settings)


def load(core: AnswerCore[str], path: Path, **settings: Any) -> int:
    arguments: dict[str, Any] = {"codec": TEXTS, "tag": TAG, "version": 0}
    return load_answers(core, path, **arguments | settings)


def filled(machine: Machine, **knobs: Any) -> AnswerCore[str]:
    core = machine.core(**knobs)
    for text in WORDS:
        core.insert(ask(text), vector(text), f"answer to {text}")
    return core


def test_what_was_served_is_served_again(machine: Machine, path: Path) -> None:
    assert save(filled(machine), path) == 4
    core = machine.core(began=12345)
    assert load(core, path) == 4
    assert served(core, ask("Rome  is it nice?")) == "answer to rome is it nice"
    near = core.nearest(ask("rome is it nice really"), vector("rome is it nice really"))
    assert near is not None
    assert near.entry.question == ask("rome is it nice")
    assert near.served
    assert served(core, ask("oslo is it nice")) == "answer to oslo is it nice"
    assert core.stats().entries == 4


@pytest.mark.parametrize(
    "other",
    [
        ask(WORDS[0], tenant="another"),
        ask(WORDS[0], version=1),
        ask(WORDS[0], documents=frozenset({("1", ("another text", frozenset()))})),
        ask(WORDS[0], documents=DOCUMENTS | {("2", "more")}),
        Question(WORDS[0], DOCUMENTS, ("", frozenset([("language", "it")]))),
        Question(WORDS[0], DOCUMENTS, ("", frozenset()), "another conversation"),
    ],
)
def test_nothing_is_served_in_another_scope(machine: Machine, path: Path, other: Question) -> None:
    save(filled(machine), path)
    core = machine.core(tolerance=0)
    load(core, path)
    assert served(core, ask(WORDS[0])) == "answer to rome is it nice"
    assert served(core, other) is None


def test_answers_of_earlier_settings_are_left_out(machine: Machine, path: Path) -> None:
    core = filled(machine)
    core.insert(ask("kyiv", version=7), vector("kyiv"), "new")
    assert save(core, path, version=7) == 1
    other = machine.core()
    assert load(other, path, version=3) == 1
    assert served(other, ask("kyiv", version=3)) == "new"
    assert served(other, ask("kyiv", version=7)) is None


def test_answers_age_while_no_process_runs(machine: Machine, path: Path) -> None:
    old = filled(machine)
    machine.now += 40
    old.insert(ask("kyiv"), vector("kyiv"), "younger")
    save(old, path)
    machine.now += 50
    core = machine.core(began=machine.now)
    assert load(core, path) == 5
    assert served(core, ask("kyiv")) == "younger"
    assert core.age(core.find(ask(WORDS[0]))) == pytest.approx(90)  # type: ignore[arg-type] # there is one
    machine.now += 11
    assert served(core, ask(WORDS[0])) is None
    assert served(core, ask("kyiv")) == "younger"
    machine.now += 40
    assert served(core, ask("kyiv")) is None


def test_what_ended_meanwhile_is_not_loaded(machine: Machine, path: Path) -> None:
    save(filled(machine), path)
    machine.now += 101
    assert load(machine.core(), path) == 0
    assert load(machine.core(ttl=None), path) == 4


def test_a_clock_that_went_back_ends_what_has_a_time_to_live(machine: Machine, path: Path) -> None:
    core = filled(machine)
    machine.now += 5
    save(core, path)
    machine.now -= 1000
    assert load(machine.core(), path) == 0
    forever = machine.core(ttl=None)
    assert load(forever, path) == 4
    entry = forever.find(ask(WORDS[0]))
    assert entry is not None
    assert forever.age(entry) == pytest.approx(5)


def test_caps_are_kept(machine: Machine, path: Path) -> None:
    core = machine.core()
    core.insert(ask(WORDS[0]), vector(WORDS[0]), "yes")
    near = core.nearest(ask(WORDS[1]), vector(WORDS[1]))
    assert near is not None
    assert near.served
    core.learn(near, wrong=True)
    save(core, path)
    other = machine.core()
    load(other, path)
    assert served(other, ask(WORDS[0])) == "yes"
    assert served(other, ask(WORDS[1])) is None
    entry = other.find(ask(WORDS[0]))
    assert entry is not None
    assert entry.cap == near.distance / 2


def test_the_last_used_are_kept_where_there_is_no_room(machine: Machine, path: Path) -> None:
    core = filled(machine, tolerance=0)
    served(core, ask(WORDS[1]))
    save(core, path)
    small = machine.core(capacity=2, tolerance=0)
    assert load(small, path) == 2
    small.insert(ask("kyiv"), vector("kyiv"), "new")  # in the place of oslo
    found = [served(small, ask(text)) is not None for text in WORDS]
    assert found == [False, True, False, False]


def test_what_was_learnt_is_kept_for_equal_settings_alone(machine: Machine, path: Path) -> None:
    auto: dict[str, Any] = {"tolerance": "auto", "ttl": None}
    core = machine.core(**auto)
    core.insert(ask(WORDS[0]), vector(WORDS[0]), "yes")
    for _ in range(600):
        near = core.nearest(ask(WORDS[1]), vector(WORDS[1]))
        assert near is not None
        core.learn(near, wrong=False)
    assert core.tolerance > 0
    save(core, path)
    same = machine.core(**auto)
    load(same, path)
    assert same.tolerance == core.tolerance
    assert served(same, ask(WORDS[1])) == "yes"
    for other in ({"error": 0.001}, {"largest_tolerance": 0.1}, {"confidence": 0.99}):
        strict = machine.core(**auto | other)
        load(strict, path)
        assert strict.tolerance == 0
        assert served(strict, ask(WORDS[0])) == "yes"
        assert served(strict, ask(WORDS[1])) is None


@examples(60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "bare", "wrong", "wait", "use", "again"]),
            st.sampled_from(WORDS),
            st.sampled_from(["", "a"]),
        ),
        max_size=25,
    ),
    st.integers(1, 6),
)
def test_a_loaded_cache_goes_on_as_the_saved_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]], capacity: int
) -> None:
    machine = Machine()
    path = tmp_path_factory.getbasetemp() / "steps.npz"
    core = machine.core(capacity=capacity)
    with machine.running():
        for count, (what, text, tenant) in enumerate(steps):
            question = ask(text, tenant)
            match what:
                case "insert" | "again":
                    core.insert(question, vector(text), f"{text} {count}")
                case "bare":
                    core.insert(question, None, f"{text} {count}")
                case "wrong":
                    near = core.nearest(question, vector(text))
                    if near is not None:
                        core.learn(near, wrong=True)
                case "wait":
                    machine.now += 30
                case _:
                    core.find(question)
        save(core, path)
        machine.now += 10
        other = machine.core(began=machine.now, capacity=capacity)
        load(other, path)
        for _ in range(5):
            for text in (*WORDS, "rome is it new"):
                for tenant in ("", "a"):
                    question = ask(text, tenant)
                    assert served(other, question) == served(core, question)
            machine.now += 25
            core.insert(ask("bonn"), vector("bonn"), "new")
            other.insert(ask("bonn"), vector("bonn"), "new")


class TestRefusal:
    @pytest.fixture
    def held(self, machine: Machine) -> Iterator[AnswerCore[str]]:
        """A cache that must be as it was afterwards."""
        core = machine.core(tolerance="auto")
        core.insert(ask("bonn"), vector("bonn"), "as before")
        before = core.stats()
        yield core
        assert core.stats() == before
        assert served(core, ask("bonn")) == "as before"

    def test_of_another_tag(self, machine: Machine, held: AnswerCore[str], path: Path) -> None:
        save(filled(machine), path)
        with pytest.raises(CacheFileError, match="its tag must be 'faq 4', got 'faq 3, a model'"):
            load(held, path, tag="faq 4")

    def test_of_answers_of_another_kind(
        self, machine: Machine, held: AnswerCore[str], path: Path
    ) -> None:
        save(filled(machine), path)
        with pytest.raises(CacheFileError, match="its kind must be 'numbers', got 'texts'"):
            load(held, path, codec=AnswerCodec("numbers", _same, _same))

    def test_of_a_query_cache(self, held: AnswerCore[str], path: Path) -> None:
        cache = QueryCache[str](2, 10, 0.5)
        cache.insert([1, 0], [Candidate("a", "text a")])
        cache.save(path)
        with pytest.raises(CacheFileError, match="must be a saved answer cache, but is another"):
            load(held, path)

    def test_of_a_pickle(self, held: AnswerCore[str], path: Path) -> None:
        np.savez(path, header=np.array([object()], object))
        with pytest.raises(CacheFileError, match="must be a saved answer cache, but is another"):
            load(held, path)

    def test_of_a_damaged_file(self, machine: Machine, held: AnswerCore[str], path: Path) -> None:
        save(filled(machine), path)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(CacheFileError, match="is damaged: its checksum is wrong"):
            load(held, path)

    def test_of_a_file_that_is_too_large(
        self,
        machine: Machine,
        held: AnswerCore[str],
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        save(filled(machine), path)
        monkeypatch.setattr(controls, "_LARGEST_FILE", 1000)
        with pytest.raises(CacheFileError, match="must have at most 1000 bytes, but has"):
            load(held, path)
        with pytest.raises(ConfigurationError, match="must take at most 1000 bytes"):
            save(held, path)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("ages", [math.nan] * 4, "ages must be seconds from 0"),
            ("ages", [-1.0] * 4, "ages must be seconds from 0"),
            ("caps", [math.nan] * 4, "caps distances from 0"),
            ("caps", [0.5], "must be as many numbers"),
            ("sizes", [2**62] * 4, "from 1 to 1048576 bytes each"),
            ("sizes", [1, 1, 1, 1], "from 1 to 1048576 bytes each"),
        ],
    )
    def test_of_numbers_out_of_range(
        self,
        machine: Machine,
        held: AnswerCore[str],
        path: Path,
        name: str,
        value: list[float],
        message: str,
    ) -> None:
        save(filled(machine), path)
        arrays = read_archive(path, kind="answer cache")
        arrays[name] = np.array(value, arrays[name].dtype)
        write_archive(path, arrays, "answer cache")
        with pytest.raises(CacheFileError, match=message):
            load(held, path)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("text", 3),
            ("scope", ["tuple"]),
            ("scope", ["tuple", 3]),
            ("scope", ["frozenset", ""]),
            ("documents", ["frozenset", "1"]),
            ("documents", ["frozenset", ["tuple", 1, "text"]]),
            ("documents", ["type", "os", "nothing"]),
            ("embedding", "AAAA"),
            ("embedding", "AACAPwAAgD8="),  # of length sqrt(2)
            ("embedding", 3),
        ],
    )
    def test_of_a_record_that_is_none(
        self, machine: Machine, held: AnswerCore[str], path: Path, field: str, value: Any
    ) -> None:
        core = machine.core()
        core.insert(ask(WORDS[0]), vector(WORDS[0]), "yes")
        save(core, path)
        arrays = read_archive(path, kind="answer cache")
        record = json.loads(arrays["records"].tobytes()) | {field: value}
        arrays["records"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
        arrays["sizes"] = np.array([arrays["records"].size])
        write_archive(path, arrays, "answer cache")
        with pytest.raises(CacheFileError, match="a saved answer is malformed"):
            load(held, path)

    @pytest.mark.parametrize("tag", ["", None, 3])
    def test_without_a_tag(self, held: AnswerCore[str], path: Path, tag: Any) -> None:
        for act in (save, load):
            with pytest.raises(ConfigurationError, match="tag must name the chain, its prompt"):
                act(held, path, tag=tag)
        assert not path.exists()

    def test_of_another_file_to_write_to(self, held: AnswerCore[str], path: Path) -> None:
        path.write_text("precious")
        with pytest.raises(ConfigurationError, match="must be new or a saved answer cache"):
            save(held, path)
        assert path.read_text() == "precious"


def test_answers_that_do_not_come_back_as_they_are_are_left_out(
    machine: Machine, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = machine.core()
    for number, answer in enumerate(["a text", ("a", "tuple"), object(), math.nan, "x" * 2**21]):
        core.insert(ask(f"rome {number}"), None, answer)  # type: ignore[arg-type] # the point
    with caplog.at_level(logging.WARNING):
        assert save(core, path) == 1
    assert "4 of 5 answers are not saved, the first because an answer can't be" in caplog.text
    other = machine.core()
    assert load(other, path) == 1
    assert served(other, ask("rome 0")) == "a text"
