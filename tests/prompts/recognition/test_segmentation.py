"""Earlier turns are split as they were, by whoever sends exactly the same messages."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.engine import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts import mark_prompt
from ragcache_integrations.prompts.recognition.segmentation import MAX_LENGTHS, Segmentations

DOCUMENTS = [
    PromptDocument(f"Document {n}: {'it says something, ' * 5}", f"d{n}") for n in range(4)
]
FIRST, SECOND, *_ = DOCUMENTS
SYSTEM = Message("system", "Be brief.")


def ask(document: PromptDocument, question: str = "Who?") -> Message:
    return Message("user", f"{document.text}\n\n{question}")


def settle(
    memory: Segmentations, prompt: Prompt, *found: PromptDocument, namespace: str = ""
) -> Prompt:
    return memory.settle(prompt, mark_prompt(prompt, found), namespace)


def turns(*messages: Message) -> Prompt:
    return Prompt(messages=messages)


ANSWER = Message("assistant", "They.")


def test_an_earlier_turn_is_split_as_it_was() -> None:
    memory = Segmentations()
    first = settle(memory, turns(SYSTEM, ask(FIRST)), FIRST)
    second = settle(memory, turns(SYSTEM, ask(FIRST), ANSWER, ask(SECOND)), SECOND)
    third = settle(
        memory, turns(SYSTEM, ask(FIRST), ANSWER, ask(SECOND), ANSWER, Message("user", "Why?"))
    )
    assert first.documents == (FIRST,)
    assert second.documents == third.documents == (FIRST, SECOND)
    assert second.messages[:2] == first.messages
    assert third.messages[:4] == second.messages


def test_what_was_not_split_is_not_split_later() -> None:
    memory = Segmentations()
    settle(memory, turns(ask(FIRST)))
    later = settle(memory, turns(ask(FIRST), ANSWER, ask(FIRST)), FIRST)
    assert [message.parts for message in later.messages[:2]] == [ask(FIRST).parts, ANSWER.parts]
    assert later.documents == (FIRST,)


def test_this_turn_is_split_by_its_own_documents_first() -> None:
    memory = Segmentations()
    settle(memory, turns(ask(FIRST)))
    assert settle(memory, turns(ask(FIRST)), FIRST).documents == (FIRST,)
    other = PromptDocument(FIRST.text[:70], "other")
    assert settle(memory, turns(ask(FIRST)), other).documents == (other,)
    assert settle(memory, turns(ask(FIRST))).documents == (other,)


def test_documents_that_the_caller_names_stay() -> None:
    memory = Segmentations()
    settle(memory, turns(ask(FIRST)), FIRST)
    named = Message("user", [PromptDocument(FIRST.text, "named"), "\n\nWho?"])
    assert settle(memory, turns(named, ANSWER, ask(SECOND))).documents[0].id == "named"


def test_texts_of_several_blocks_keep_their_cuts() -> None:
    memory = Segmentations()
    blocks = Message("user", ["Read ", "this: ", FIRST.text, " Who", " is it?"])
    first = settle(memory, turns(blocks), FIRST)
    joined = Message("user", blocks.text)
    later = settle(memory, turns(joined, ANSWER, Message("user", "Why?")))
    assert later.messages[0] == first.messages[0]
    assert len(later.messages[0].parts) == 5


@pytest.mark.parametrize(
    "other",
    [
        turns(SYSTEM, ask(FIRST, "Who? ")),
        turns(Message("system", "Be brief"), ask(FIRST)),
        turns(ask(FIRST)),
        turns(SYSTEM, Message("assistant", ask(FIRST).text)),
        turns(Message("system", "Be brief." + ask(FIRST).text)),
        Prompt.raw("Be brief." + ask(FIRST).text),
    ],
)
def test_anything_else_is_not_known(other: Prompt) -> None:
    memory = Segmentations()
    settle(memory, turns(SYSTEM, ask(FIRST)), FIRST, namespace="tenant")
    assert settle(memory, other, namespace="tenant") == other
    same = turns(SYSTEM, ask(FIRST))
    assert settle(memory, same, namespace="other") == settle(memory, same) == same
    assert settle(memory, same, namespace="tenant").documents == (FIRST,)


def test_raw_text_that_grows() -> None:
    memory = Segmentations()
    text = f"Answer from what is given.\n{FIRST.text}\nQ: Who?\nA:"
    assert settle(memory, Prompt.raw(text), FIRST).documents == (FIRST,)
    text += f" They.\n{SECOND.text}\nQ: Where?\nA:"
    assert settle(memory, Prompt.raw(text), SECOND).documents == (FIRST, SECOND)
    assert settle(memory, Prompt.raw(f"{text} There.")).documents == (FIRST, SECOND)
    assert settle(memory, Prompt.raw(f"{text} There."), namespace="other").documents == ()
    assert settle(memory, Prompt.raw("X" + text)).documents == ()


def test_memory_is_bounded() -> None:
    memory = Segmentations(capacity=5, max_cuts=20)
    for number in range(50):
        settle(memory, turns(SYSTEM, ask(FIRST, f"{number}?")), FIRST)
        settle(memory, Prompt.raw("x" * 80 + str(number) + FIRST.text), FIRST)
        assert len(memory) <= 5
        assert memory._cuts.held == sum(map(len, memory._cuts.values())) <= 20
    assert len(memory._lengths) <= 5
    assert all(len(lengths) <= MAX_LENGTHS for lengths in memory._lengths.values())
    memory.clear()
    assert (len(memory), memory._cuts.held, len(memory._lengths)) == (0, 0, 0)


@pytest.mark.parametrize("knobs", [{"capacity": 0}, {"max_cuts": 0}])
def test_bad_bounds(knobs: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="of at least 1, got"):
        Segmentations(**knobs)


pieces = st.lists(
    st.one_of(
        st.sampled_from([*(d.text for d in DOCUMENTS), DOCUMENTS[0].text[:-9], "é\ud800", "", "x"]),
        st.text("ab \n", max_size=4),
    ),
    max_size=4,
)
messages = st.builds(
    lambda role, parts, blocks: Message(role, parts if blocks else "".join(parts)),
    st.sampled_from(["system", "user", "assistant", "tool"]),
    pieces,
    st.booleans(),
)


@given(
    st.lists(
        st.tuples(
            st.lists(messages, min_size=1, max_size=5),
            st.lists(st.sampled_from(DOCUMENTS), max_size=3),
            st.sampled_from(["", "x"]),
            st.booleans(),
        ),
        max_size=5,
    )
)
def test_no_text_changes_and_the_same_twice_is_split_alike(
    prompts: list[tuple[list[Message], list[PromptDocument], str, bool]],
) -> None:
    memory = Segmentations()
    for listed, found, namespace, raw in prompts:
        text = "".join(message.text for message in listed)
        if not text:
            continue
        prompt = Prompt.raw(text) if raw else turns(*listed)
        marked = settle(memory, prompt, *found, namespace=namespace)
        assert [(m.role, m.text) for m in marked.messages] == [
            (m.role, m.text) for m in prompt.messages
        ]
        joined = "".join(part if isinstance(part, str) else part.text for part in marked.parts)
        assert joined == (text if raw else "")
        again = settle(memory, prompt, *found, namespace=namespace)
        assert replace(again) == marked


def test_from_many_threads_at_once() -> None:
    memory = Segmentations(capacity=20)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(300):
                document, namespace = rng.choice(DOCUMENTS), rng.choice("ab")
                prompt = turns(SYSTEM, ask(document, str(rng.random())[:4]))
                marked = settle(memory, prompt, document, namespace=namespace)
                assert marked.documents == (document,)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert memory._cuts.held == sum(map(len, memory._cuts.values()))
