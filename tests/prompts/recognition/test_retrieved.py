"""Documents that were retrieved are found in prompts as if they had been given."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ragcache_integrations.core.texts import content_id
from ragcache_integrations.engine import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts import mark_prompt
from ragcache_integrations.prompts.recognition.requests import MIN_LENGTH, RetrievedDocuments
from ragcache_integrations.resources import load_passages

PASSAGES = [passage.text.strip() for passage in load_passages()[:40]]
FIRST, SECOND, *_ = PASSAGES


def memory_of(*texts: str) -> RetrievedDocuments:
    memory = RetrievedDocuments()
    memory.remember((None, text) for text in texts)
    return memory


def mark(memory: RetrievedDocuments, prompt: Prompt) -> Prompt:
    return memory.mark(prompt)


def marked(memory: RetrievedDocuments, text: str) -> list[str]:
    return [document.text for document in mark(memory, Prompt.raw(text)).documents]


@st.composite
def texts_and_prompt(draw: st.DrawFn) -> tuple[list[str], str]:
    """Documents of few letters, some of them parts of others, and a prompt made of such."""
    # Runs and rows repeat themselves, so that a document stands in many places at once.
    piece = st.one_of(
        st.text("ab é\ud800", min_size=MIN_LENGTH, max_size=2 * MIN_LENGTH),
        st.builds("".join, st.lists(st.sampled_from(["ab", "ab", "b"]), min_size=MIN_LENGTH)),
        st.integers(MIN_LENGTH, 3 * MIN_LENGTH).map("a".__mul__),
    )
    texts = draw(st.lists(piece, min_size=1, max_size=6))
    parts = st.one_of(
        st.sampled_from(texts),
        st.sampled_from(texts).map(lambda text: text[1:-1]),
        st.text("ab é\ud800", max_size=8),
    )
    nested = draw(st.lists(st.sampled_from(texts).map(lambda text: text[3:-5]), max_size=2))
    return texts + nested, "".join(draw(st.lists(parts, max_size=8)))


@given(texts_and_prompt())
@example((["a" * 64, "a" * 65], "a" * 300))
@example((["a" * 64 + "b", "b" + "a" * 64], "a" * 70 + "b" + "a" * 70))
def test_found_as_if_they_had_been_given(case: tuple[list[str], str]) -> None:
    texts, text = case
    prompt = Prompt.raw(text or "x")
    known = [PromptDocument(t.strip()) for t in texts if len(t.strip()) >= MIN_LENGTH]
    assert mark(memory_of(*texts), prompt) == mark_prompt(prompt, known)


@pytest.mark.parametrize("shift", range(20))
def test_it_may_stand_anywhere(shift: int) -> None:
    """At every distance from the places that are looked at, and at both ends."""
    memory = memory_of(FIRST)
    before = "x" * shift
    for text in (before + FIRST, FIRST + before, f"{before}[1]({FIRST})[2]"):
        assert marked(memory, text) == [FIRST]


@pytest.mark.parametrize("length", range(MIN_LENGTH, MIN_LENGTH + 5))
def test_the_shortest_texts(length: int) -> None:
    short = FIRST[: MIN_LENGTH - 1].strip()
    assert marked(memory_of(short), short) == []
    assert marked(memory_of("c" * length), "c" * length) == ["c" * length]


def test_what_was_cut_or_reformatted_is_not_found() -> None:
    memory = memory_of(FIRST)
    spaced = FIRST.replace(" ", "  ", 1)
    for text in (FIRST[:-1], FIRST[1:], FIRST.upper(), spaced, FIRST.replace(". ", ".\n", 1)):
        prompt = Prompt.raw(f"Context: {text}!")
        assert mark(memory, prompt) is prompt


def test_white_space_around_a_text_does_not_belong_to_it() -> None:
    memory = memory_of(f"\n {FIRST}\n\n")
    assert marked(memory, f"Context: {FIRST}?") == [FIRST]
    assert mark(memory, Prompt.raw(f"\n {FIRST}\n\n")).parts == (
        "\n ",
        PromptDocument(FIRST),
        "\n\n",
    )


def test_every_turn_and_every_repetition_is_marked() -> None:
    memory = memory_of(FIRST, SECOND)
    prompt = Prompt(
        messages=(
            Message("system", "Be brief."),
            Message("user", f"{FIRST}\n\n{SECOND}\n\nWho?"),
            Message("assistant", "They."),
            Message("user", [FIRST, f"\n\n{FIRST} Why?"]),
        )
    )
    found = mark(memory, prompt)
    assert [document.text for document in found.documents] == [FIRST, SECOND, FIRST, FIRST]
    assert [(m.role, m.text) for m in found.messages] == [(m.role, m.text) for m in prompt.messages]


def test_the_longest_of_those_that_begin_first() -> None:
    both = f"{FIRST} {SECOND[:100]}".strip()
    memory = memory_of(FIRST[:80], FIRST, FIRST[10:], both)
    assert marked(memory, f"- {FIRST} -") == [FIRST]
    assert marked(memory, f"- {FIRST} {SECOND}") == [both]


def test_its_own_id_where_it_has_one() -> None:
    memory = RetrievedDocuments()
    memory.remember([("own", FIRST), ("", SECOND), (None, PASSAGES[2]), (7, PASSAGES[3])])
    prompt = mark(memory, Prompt.raw("\n".join(PASSAGES[:4])))
    hashed = [content_id(text) for text in PASSAGES[1:4]]
    assert [document.id for document in prompt.documents] == ["own", *hashed]


def test_an_id_stands_for_one_text() -> None:
    """Two stores that count from 0, or a document that changed: neither mixes anything up."""
    memory = RetrievedDocuments(capacity=2)
    memory.remember([("0", FIRST), ("0", SECOND), ("0", FIRST)])
    prompt = Prompt.raw(f"{FIRST} {SECOND}")
    assert mark(memory, prompt).documents == (PromptDocument(FIRST, "0"), PromptDocument(SECOND))
    memory.remember([("1", PASSAGES[2]), ("2", PASSAGES[4]), ("0", PASSAGES[3])])
    assert mark(memory, Prompt.raw(PASSAGES[3])).documents == (PromptDocument(PASSAGES[3], "0"),)


def test_the_same_text_keeps_the_id_that_it_had_first() -> None:
    memory = RetrievedDocuments()
    memory.remember([("first", FIRST), ("made up anew", FIRST)])
    assert len(memory) == 1
    assert mark(memory, Prompt.raw(FIRST)).documents == (PromptDocument(FIRST, "first"),)


def test_those_retrieved_longest_ago_are_forgotten() -> None:
    memory = RetrievedDocuments(capacity=3)
    memory.remember([(None, text) for text in PASSAGES[:3]])
    memory.remember([(None, PASSAGES[0]), (None, PASSAGES[3])])
    assert len(memory) == 3
    everything = "\n".join(PASSAGES[:4])
    assert marked(memory, everything) == [PASSAGES[0], PASSAGES[2], PASSAGES[3]]
    memory.remember([(None, "c" * 64), (None, "d" * 64), (None, "e" * 64)])
    assert marked(memory, everything) == []
    assert len(memory._ids) == 3
    assert {document.text for found in memory._indexed.values() for document in found} == {
        *("c" * 64, "d" * 64, "e" * 64)
    }


def test_the_characters_are_bounded() -> None:
    memory = RetrievedDocuments(max_characters=1000)
    memory.remember([(None, "a" * 400), (None, "b" * 400), (None, "c" * 400), (None, "d" * 1001)])
    assert len(memory) == 2
    assert memory._documents.held == 800
    assert marked(memory, "d" * 1001 + "a" * 400 + "b" * 400) == ["b" * 400]


@pytest.mark.parametrize("knobs", [{"capacity": 0}, {"max_characters": 0}])
def test_bad_bounds(knobs: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="of at least 1, got"):
        RetrievedDocuments(**knobs)


@pytest.mark.parametrize("odd", [(None, None), ([], {}), ("id", b"bytes" * 30), ("id", 3)])
def test_odd_documents_are_passed_over(odd: tuple[Any, Any]) -> None:
    memory = RetrievedDocuments()
    memory.remember([odd, ({}, FIRST)])
    assert len(memory) == 1
    assert mark(memory, Prompt.raw(FIRST)).documents == (PromptDocument(FIRST),)


def test_from_many_threads_at_once() -> None:
    memory = RetrievedDocuments(capacity=10)
    errors: list[BaseException] = []
    begin = threading.Barrier(8)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        begin.wait()
        try:
            for _ in range(300):
                texts = rng.sample(PASSAGES, 3)
                memory.remember((text[:5], text) for text in texts)
                text = " ".join(texts)
                prompt = mark(memory, Prompt.raw(text))
                found = [part if isinstance(part, str) else part.text for part in prompt.parts]
                assert "".join(found) == text
                assert {d.text for d in prompt.documents} <= set(PASSAGES)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(memory) <= 10
    assert memory._documents.held == sum(map(len, memory._documents))
    assert memory._ids == {document.id for document in memory._documents.values()}
