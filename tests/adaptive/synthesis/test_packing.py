"""What goes into the context window."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ragcache_integrations.adaptive import (
    ModelRequest,
    Synthesis,
    SynthesisConfig,
    SynthesisPrompts,
    SynthesisSettings,
    synthesise,
)
from ragcache_integrations.adaptive.synthesis import longest_prefix
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import PromptTooLongError
from tests.adaptive.askers import ScriptedAsker, documents, read, said

SHORT = SynthesisPrompts(
    system="S",
    answer="A {question}",
    summary="M {question} {words}",
    reduce="R {question}",
    candidate="C {question}",
    scored="D {question}",
)
METHODS = st.sampled_from(["stuff", "map_reduce", "map_rerank"])
PAGES = st.lists(st.integers(1, 120), min_size=1, max_size=8).map(
    lambda lengths: documents(*(chr(97 + n) * length for n, length in enumerate(lengths)))
)


def wordy(request: ModelRequest) -> str:
    """An answer as long as it may be, as a model without manners would give."""
    return "w" * (request.max_tokens or 20)


@given(method=METHODS, pages=PAGES, window=st.integers(20, 400), length=st.integers(1, 60))
@example(method="map_reduce", pages=documents("a"), window=43, length=1)  # one token too few
@example(method="map_reduce", pages=documents("a"), window=44, length=1)
def test_every_request_fits_or_it_is_said_why(
    method: Synthesis, pages: list[PromptDocument], window: int, length: int
) -> None:
    asker = ScriptedAsker(
        lambda request: said(wordy(request), -0.1), context_window=window, answer_tokens=20
    )
    config = SynthesisConfig(method, len(pages), length if method == "map_reduce" else None)
    settings = SynthesisSettings(prompts=SHORT)
    frame = asker.count_prompt(SHORT.stuff("Q?", ()))
    if window - 20 - frame < 3:  # not even one character and the separator
        with pytest.raises(PromptTooLongError, match=f"a context window of {window} tokens"):
            synthesise(asker, "Q?", pages, config, settings)
        assert not asker.requests
        return
    result = synthesise(asker, "Q?", pages, config, settings)
    for request in asker.requests:
        answer = 20 if request.max_tokens is None else request.max_tokens
        assert asker.count_prompt(request.prompt) + answer <= window
        assert request.prompt.documents
    read_ = {place for step in result.steps for place in step.chunks}
    assert read_ | set(result.left_out) == set(range(len(pages)))
    assert not read_ & set(result.left_out)
    assert set(result.shortened) <= read_


@given(pages=PAGES, window=st.integers(60, 400))
def test_stuff_leaves_out_only_what_does_not_fit(pages: list[PromptDocument], window: int) -> None:
    asker = ScriptedAsker(context_window=window)
    config = SynthesisConfig("stuff", len(pages))
    result = synthesise(asker, "Q?", pages, config, SynthesisSettings(prompts=SHORT))
    room = window - 20 - asker.count_prompt(asker.requests[0].prompt)
    if not result.shortened:
        assert all(len(pages[place].text) + 2 > room for place in result.left_out)


def test_map_reduce_shortens_summaries_rather_than_dropping_chunks() -> None:
    asker = ScriptedAsker(lambda request: said(wordy(request)), context_window=200)
    config = SynthesisConfig("map_reduce", 5, 100)
    result = synthesise(asker, "Q?", documents(*"abcde"), config, SynthesisSettings(prompts=SHORT))
    assert result.calls == 6
    lengths = {request.max_tokens for request in asker.requests[:-1]}
    assert len(lengths) == 1
    assert 16 <= (lengths.pop() or 0) < 133
    assert [len(text) for text in read(asker.requests[-1])] == [asker.requests[0].max_tokens] * 5


def test_a_long_chunk_is_cut_between_words_and_is_another_document() -> None:
    asker = ScriptedAsker(context_window=80)
    page = documents("word " * 50)[0]
    for method in ("stuff", "map_rerank"):
        config = SynthesisConfig(method, 1)
        result = synthesise(asker, "Q?", [page], config, SynthesisSettings(prompts=SHORT))
        (kept,) = asker.requests[-1].prompt.documents
        assert set(kept.text.split()) == {"word"}
        assert kept.id != page.id
        assert result.shortened == (0,)
        assert result.citations[0].id == page.id


def test_the_settings_window_and_answer_win() -> None:
    asker = ScriptedAsker(context_window=10)
    settings = SynthesisSettings(prompts=SHORT, context_window=500, max_tokens=7)
    config = SynthesisConfig("stuff", 3)
    synthesise(asker, "Q?", documents("a" * 100, "b" * 100, "c" * 100), config, settings)
    (request,) = asker.requests
    assert len(read(request)) == 3
    assert request.max_tokens == 7


def test_without_a_known_window_nothing_is_left_out() -> None:
    asker = ScriptedAsker()
    config = SynthesisConfig("stuff", 3)
    result = synthesise(asker, "Q?", documents(*("x" * 10_000 for _ in range(3))), config)
    assert result.left_out == result.shortened == ()


@given(st.text("ab ", max_size=60), st.integers(0, 60))
def test_a_prefix_is_the_longest_to_within_a_word(text: str, room: int) -> None:
    kept = longest_prefix(text, lambda beginning: len(beginning) <= room)
    assert text.startswith(kept)
    assert len(kept) <= room
    if len(text) <= room:
        assert kept == text.rstrip()
    elif " " in text[:room].strip(" "):
        # Whole words alone, and the next one does not fit.
        behind = text[len(kept) :]
        assert not behind.strip() or behind.startswith(" ")
        next_word = behind.split()[0] if behind.split() else ""
        assert not next_word or text.index(next_word, len(kept)) + len(next_word) > room
    elif " " not in text[: room + 1]:
        assert kept == text[:room]


@pytest.mark.parametrize("method", ["stuff", "map_reduce", "map_rerank"])
def test_a_question_that_fills_the_window(method: Synthesis) -> None:
    asker = ScriptedAsker(context_window=100)
    config = SynthesisConfig(method, 1, 10 if method == "map_reduce" else None)
    with pytest.raises(PromptTooLongError, match="a context window of 100 tokens"):
        synthesise(asker, "why " * 30, documents("a"), config)
    assert not asker.requests
