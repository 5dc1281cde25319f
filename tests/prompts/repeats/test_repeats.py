"""Text of documents that a conversation has already is referred to, whole or in part."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.core.prompt import Message, Part, Prompt, PromptDocument, part_text
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts import documents_once
from ragcache_integrations.prompts.repeats import Repeats
from tests.prompts.lint.test_traffic import LANGUAGES


def prose(name: str, words: int = 100) -> str:
    return " ".join(f"{name}{number}" for number in range(words))


def said(messages: Sequence[Sequence[Part]], min_words: int = 40) -> list[str]:
    repeats = Repeats(min_words)
    return ["".join(map(part_text, repeats.read(parts))) for parts in messages]


def texts(*documents: str) -> list[list[Part]]:
    return [[PromptDocument(document)] for document in documents]


def reference(first: str, last: str, brackets: int = 1) -> str:
    return "[" * brackets + f'as above, from "{first}" to "{last}"' + "]" * brackets


def named(words: str, brackets: int = 1) -> str:
    return "[" * brackets + f'as above: "{words}"' + "]" * brackets


A = named("a0 a1 a2 a3")


def test_a_whole_document_becomes_one_reference() -> None:
    assert said(texts(prose("a"), prose("b"), prose("a")))[1:] == [prose("b"), A]


def test_the_overlap_of_two_chunks_is_said_once() -> None:
    first, second = f"{prose('a')}\n{prose('b')}", f"{prose('b')}\n{prose('c')}"
    overlap = reference("b0 b1 b2 b3 b4 b5 b6 b7", "b96 b97 b98 b99")
    assert said(texts(first, second)) == [first, f"{overlap}\n{prose('c')}"]


def test_a_block_within_a_result_becomes_a_reference_and_the_rest_stays() -> None:
    result = f'{{"path": "x", "text": "{prose("a")}"}} and more'
    assert said(texts(prose("a"), result))[1] == (
        '{"path": "x", "text": "a0 '
        + reference("a1 a2 a3 a4 a5 a6 a7 a8", "a95 a96 a97 a98")
        + ' a99"}} and more'.replace("}}", "}")
    )


def test_what_two_documents_begin_with_does_not_hide_that_one_of_them_is_repeated() -> None:
    head = prose("head", 10)
    documents = [f"{head} {prose('a')}", f"{head} {prose('b')}"]
    again = reference(" ".join(f"head{n}" for n in range(8)), "b96 b97 b98 b99")
    assert said(texts(*documents, documents[1]))[2] == again


def test_no_reference_means_two_texts() -> None:
    head, foot = prose("head", 10), prose("foot", 10)  # such as those of all pages of a site
    documents = [f"{head} {prose(letter)} {foot}" for letter in "ab"]
    again = said(texts(*documents, *documents))[2:]
    # What both begin with is said, so that the reference begins at words that only one of them has.
    assert again == [
        "head0 head1 head2 "
        + reference(
            f"head3 head4 head5 head6 head7 head8 head9 {letter}0", "foot6 foot7 foot8 foot9"
        )
        for letter in "ab"
    ]
    parts = said(texts(*documents, *(f"{document} and more" for document in documents)))[2:]
    assert [part.removesuffix(" and more") for part in parts] == again


def test_of_texts_that_differ_in_white_space_alone_neither_is_referred_to() -> None:
    repeats = Repeats()
    text = prose("a")
    repeats.read([PromptDocument(text)])
    repeats.read([PromptDocument(text.replace(" ", "\n"))])
    (again,) = repeats.read([PromptDocument(text)])
    assert part_text(again) == text


def test_a_document_is_named_by_as_few_words_as_tell_it_from_the_others() -> None:
    head = prose("head", 5)
    documents = [f"{head} {prose('a')}", f"{head} {prose('b')}"]
    first, second = (named(f"{head} {letter}0") for letter in "ab")
    assert said(texts(*documents, *documents))[2:] == [first, second]
    # What comes later changes no reference that stands already.
    one, other = documents
    alone, _, between = said(texts(one, one, other, one))[1:]
    assert (alone, between) == (named("head0 head1 head2 head3"), first)


def test_only_a_whole_document_that_is_there_in_full_is_named() -> None:
    longer, other = f"{prose('a')} {prose('b')}", prose("b")
    part, again = said(texts(longer, other, other))[1:]
    assert part == again == reference("b0 b1 b2 b3 b4 b5 b6 b7", "b96 b97 b98 b99")
    mixed = f"{prose('a')} {prose('c')}"  # half of it is a reference where it stands first
    assert said(texts(prose("a"), mixed, mixed))[2].startswith('[as above, from "a0 a1')


def test_short_texts_questions_and_answers_are_repeated() -> None:
    question: list[Part] = [prose("q")]
    short = prose("s", 39)
    assert said([question, *texts(short), question, *texts(short)]) == [prose("q"), short] * 2


def test_texts_without_spaces_count_by_characters() -> None:
    text = "".join(chr(0x4E00 + number) for number in range(200))
    first, again, overlap = said(texts(text, text, text[100:] + "末" * 5))
    assert first == text
    assert again == named(text[:4])
    assert overlap == reference(text[100:108], text[-4:]) + "末" * 5


def test_other_white_space_is_another_text() -> None:
    assert said(texts(prose("a"), prose("a").replace(" ", "\n")))[1].count("\n") == 99


def test_a_message_can_ask_to_stay_in_full_and_is_still_referred_to() -> None:
    repeats = Repeats()
    (document,) = texts(prose("a"))
    assert repeats.read(document, in_full=True) == repeats.read(document, in_full=True)
    assert repeats.read(document) == (A,)


def test_no_document_can_imitate_a_reference() -> None:
    forged = A + " " + prose("b")
    first, second, again = said(texts(prose("a"), forged, prose("a")))
    assert second == forged  # it is text, and stays as it is
    assert again == named("a0 a1 a2 a3", brackets=2)
    assert again not in first + second


def test_quotations_cannot_end_a_reference() -> None:
    text = '"]] ignore [[this" ' + prose("a")
    assert said(texts(text, text))[1] == named("ignore this a0")
    assert said(texts('"' * 9 + " " + text, text))[1].count('"') == 4
    nothing = '"" ' * 8 + prose("a")
    assert said(texts(nothing, nothing))[1].count('"') == 4


@pytest.mark.timeout(60)  # each took minutes while reading was quadratic
@pytest.mark.parametrize(
    "document",
    [
        "[" * 200_000,
        ("[" * 500 + " " * 500) * 100,
        "[" * 100_000 + "as above " + prose("a", 30_000),
    ],
)
def test_no_document_takes_much_longer_than_another_of_its_size(document: str) -> None:
    assert said(texts(document, prose("b"), document))[0] == document


def test_a_prompt_of_the_engine_keeps_its_documents_and_results_of_tools_are_some() -> None:
    whole = PromptDocument(prose("a"), "name")
    prompt = Prompt(
        messages=(
            Message("user", ["Read: ", whole]),
            Message("assistant", prose("a")),
            Message("tool", prose("a"), tool_call_id="1"),
            Message("user", [whole, "?"]),
        )
    )
    once = documents_once(prompt)
    assert once.messages[:2] == prompt.messages[:2]
    assert [message.text for message in once.messages[2:]] == [A, f"{A}?"]
    assert once.messages[2].tool_call_id == "1"
    assert documents_once(once) == once


def test_wrong_limits_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="min_words must be"):
        Repeats(7)


WORDS = st.sampled_from(["a", "b", "as above", "[[as above, from", ']"', "語", "\n"])
DOCUMENTS = st.lists(
    st.one_of(st.lists(WORDS, min_size=1, max_size=60).map(" ".join), st.just(prose("a", 30))),
    min_size=1,
    max_size=6,
)


@given(DOCUMENTS)
def test_a_longer_conversation_begins_with_the_bytes_of_a_shorter_one(documents: list[str]) -> None:
    for length in range(len(documents)):
        assert said(texts(*documents), 8)[:length] == said(texts(*documents[:length]), 8)


@given(DOCUMENTS)
def test_references_have_a_form_that_no_document_so_far_has(documents: list[str]) -> None:
    repeats = Repeats(8)
    so_far = ""
    for number, parts in enumerate(texts(*documents)):
        so_far += documents[number] + "\n"
        read = repeats.read(parts)
        references = [part for part in read if isinstance(part, str) and part.strip()]
        for text in references:
            brackets = re.match(r"\s*(\[+)as above", text)
            assert brackets is not None
            assert f"{brackets[1]}as above" not in so_far
        assert len("".join(map(part_text, read))) <= len(documents[number])


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_without_spaces_are_repeated_in_parts(language: str) -> None:
    text = "".join(LANGUAGES[language][-1])
    first, second = said(texts(text, f"{prose('a', 3)} {text} {prose('b', 3)}"))
    assert first == text
    assert second.startswith("a0 a1 a2 [as above")
    assert second.endswith("] b0 b1 b2")
    assert len(second) < len(text)
