from __future__ import annotations

import datetime as dt
import itertools
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.core.prompt import Message, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout.layout import (
    PARTS,
    Change,
    PartLike,
    PromptLayout,
    PromptPart,
    Turn,
)

ROME = PromptDocument("Rome is the capital of Italy.", "rome")
BERN = PromptDocument("Bern is the seat of the government.", "bern")
ALSO_ROME = PromptDocument(ROME.text, "also rome")

ALL = {
    "system": "You are a librarian.",
    "tools": '[{{"name": "search"}}]',
    "instructions": "Answer briefly.",
    "examples": "Q: 1+1? A: 2",
    "documents": "Context:\n{context}",
    "dynamic_examples": "{examples}",
    "history": "{history}",
    "query": "Question: {question}",
}
VALUES = {
    "context": [ROME, BERN],
    "examples": "Q: 2+2? A: 4",
    "history": [Message("user", "Hello"), Message("assistant", "Hi")],
    "question": "What is Rome?",
}


def kinds(layout: PromptLayout) -> list[str]:
    return [part.kind for part in layout.parts]


def test_a_conversation_has_its_history_before_this_turns_documents() -> None:
    assert kinds(PromptLayout(ALL.items())) == [
        *("system", "tools", "instructions", "examples", "history"),
        *("documents", "dynamic_examples", "query"),
    ]


def test_a_single_turn_has_documents_before_all_that_is_new() -> None:
    assert kinds(PromptLayout(ALL.items(), flow="single_turn")) == [
        *("system", "tools", "instructions", "examples", "documents"),
        *("dynamic_examples", "history", "query"),
    ]


@given(
    order=st.permutations(list(PARTS)),
    left_out=st.sets(st.sampled_from([kind for kind in PARTS if kind != "query"])),
    changes=st.dictionaries(
        st.sampled_from([kind for kind in PARTS if kind != "query"]), st.sampled_from(Change)
    ),
    flow=st.sampled_from([None, "single_turn", "conversation"]),
)
def test_no_part_stands_before_one_that_changes_less(
    order: list[str], left_out: set[str], changes: dict[str, Change], flow: None
) -> None:
    declared = [
        PromptPart(kind, ALL[kind], changes.get(kind)) for kind in order if kind not in left_out
    ]
    layout = PromptLayout(declared, flow=flow)
    ranks = [layout.change(part).rank for part in layout.parts]
    assert ranks == sorted(ranks)
    assert set(kinds(layout)) == set(PARTS) - left_out
    assert kinds(layout)[-1] == "query"
    declared.sort(key=lambda part: part.kind)
    again = PromptLayout(declared, flow=flow)
    assert again.parts == layout.parts  # the order in which they were declared does not matter


def test_a_part_may_say_that_it_changes_otherwise() -> None:
    clock = PromptPart("instructions", "It is {now}.", "request")
    greeting = PromptPart("system", "You talk to {user}.", Change.CONVERSATION)
    parts: list[PartLike] = [
        greeting,
        clock,
        ("tools", "none"),
        ("documents", "{d}"),
        ("query", "{q}"),
    ]
    assert kinds(PromptLayout(parts, flow="conversation"))[:2] == ["tools", "system"]
    alone = PromptLayout(parts)
    assert kinds(alone) == ["tools", "documents", "system", "instructions", "query"]
    values = {"now": dt.datetime(2030, 1, 1, tzinfo=dt.UTC), "user": "Ada", "d": [ROME], "q": "?"}
    roles = [part.role for part in alone.render(values).parts]
    assert roles == ["system", "user", "user", "user", "user"]


def test_the_turns_of_a_whole_prompt() -> None:
    turns = PromptLayout(ALL.items()).render(VALUES).turns
    head, history, tail = turns
    assert isinstance(head, Turn)
    assert head.role == "system"
    assert head.text == (
        'You are a librarian.\n\n[{"name": "search"}]\n\nAnswer briefly.\n\nQ: 1+1? A: 2'
    )
    assert not isinstance(history, Turn)
    assert list(history.messages) == VALUES["history"]
    assert isinstance(tail, Turn)
    assert tail.role == "user"
    assert tail.pieces == (
        *("Context:\n", ROME, "\n\n", BERN),
        "\n\nQ: 2+2? A: 4\n\nQuestion: What is Rome?",
    )
    assert "".join(p if isinstance(p, str) else p.text for p in tail.pieces) == tail.text


def test_the_engine_gets_the_documents_as_such() -> None:
    prompt = PromptLayout(ALL.items()).render(VALUES).prompt()
    assert prompt.documents == (ROME, BERN)
    assert [message.role for message in prompt.messages] == ["system", "user", "assistant", "user"]
    foreign = {**VALUES, "history": ["hello"]}
    with pytest.raises(ConfigurationError, match="Message objects, got a str"):
        PromptLayout(ALL.items()).render(foreign).prompt()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(first=TEXT, second=TEXT, space=st.sampled_from(["", " ", "\n\n", "\t"]))
def test_requests_share_all_that_stands_before_the_query(
    first: str, second: str, space: str
) -> None:
    """However the white space at the seams is written, and whatever the line ends are."""
    templates = (
        ALL,
        {kind: space + text.replace("\n", "\r\n") + space for kind, text in ALL.items()},
    )
    texts = [
        "\x00".join(
            message.text
            for message in PromptLayout(parts.items())
            .render({**VALUES, "question": question})
            .prompt()
            .messages
        )
        for parts, question in zip(templates, (first, second), strict=True)
    ]
    length = texts[0].index("\n\nQuestion:") + len("\n\nQuestion:")
    assert texts[0][:length] == texts[1][:length]


def test_a_turn_of_a_conversation_shares_the_history_of_the_one_before() -> None:
    layout = PromptLayout(ALL.items())
    told: list[Message] = []
    before = ""
    for turn in range(4):
        document = PromptDocument(f"Document of turn {turn}.")
        values = {**VALUES, "history": list(told), "context": [document], "question": f"Q{turn}"}
        messages = layout.render(values).prompt().messages
        text = "".join(f"<{message.role}>{message.text}" for message in messages)
        stable = "".join(f"<{message.role}>{message.text}" for message in messages[:-1])
        assert stable.startswith(before)
        assert text.startswith(stable)
        before = stable
        told += [Message("user", f"Q{turn}"), Message("assistant", f"A{turn}")]


def test_a_history_may_be_left_out_or_be_text() -> None:
    layout = PromptLayout(ALL.items())
    assert layout.history_variable == "history"
    without = {name: value for name, value in VALUES.items() if name != "history"}
    assert "history" not in [part.kind for part in layout.render(without).parts]
    text = layout.render({**without, "history": " user: Hello\n"})
    assert [part.text for part in text.parts if part.kind == "history"] == ["user: Hello"]
    with pytest.raises(ConfigurationError, match="messages or text, got a int"):
        layout.render({**without, "history": 3})


def test_documents_stand_stripped_and_without_a_rank() -> None:
    layout = PromptLayout([("documents", "{context}"), ("query", "{question}")])
    again = PromptDocument(f"  {ROME.text}\n", "another id")
    documents = ["", ROME, again, " \n", "  A string. ", ROME]
    (turn,) = layout.render({"context": documents, "question": "?"}).turns
    assert turn.text == f"{ROME.text}\n\n{ROME.text}\n\nA string.\n\n{ROME.text}\n\n?"
    assert layout.render({"context": documents, "question": "?"}).documents[0] is ROME
    for count in range(4):  # the text of a document does not depend on those around it
        for chosen in itertools.product([ROME, BERN, ALSO_ROME], repeat=count):
            rendered = layout.render({"context": list(chosen), "question": "?"})
            assert rendered.documents == chosen


def test_no_documents_and_one_string_of_them() -> None:
    layout = PromptLayout([("documents", "Context:\n{context}"), ("query", "{question}")])
    assert layout.render({"context": [], "question": "?"}).turns[0].text == "Context:\n\n?"
    (turn,) = layout.render({"context": "all of them", "question": "?"}).turns
    assert turn.text == "Context:\nall of them\n\n?"
    with pytest.raises(ConfigurationError, match="documents or strings, got int"):
        layout.render({"context": [ROME, 3], "question": "?"})


def test_where_prefixes_end_that_later_requests_share() -> None:
    rendered = PromptLayout(ALL.items()).render(VALUES)
    assert [part.kind for part in rendered.cache_boundaries] == ["examples", "history"]
    single = PromptLayout(ALL.items(), flow="single_turn").render(VALUES)
    assert [part.kind for part in single.cache_boundaries] == ["examples"]


def test_the_cache_key_depends_on_what_never_changes_alone() -> None:
    def key(parts: dict[str, str], **values: object) -> str:
        return PromptLayout(parts.items()).render({**VALUES, **values}).cache_key

    assert key(ALL) == key(ALL, question="Another?", context=[], history=[])
    assert key(ALL) != key({**ALL, "system": "You are a teacher."})
    moved = {**ALL, "system": ALL["instructions"], "instructions": ALL["system"]}
    assert key(ALL) != key(moved)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "exactly one query, got 0"),
        ([("system", "Hello")], "exactly one query, got 0"),
        ([("query", "{a}"), ("query", "{b}")], "exactly one query, got 2"),
        ([("query", "{a}"), ("system", "x"), ("system", "y")], "more than one system"),
        ([("query", "question")], r"a variable such as \{question\}, got 'question'"),
        ([("query", "{a}"), ("documents", "context")], "the documents must hold a variable"),
        ([("query", "{a}"), ("history", "So far: {history}")], "the history must be one variable"),
        ([("query", "{a}"), ("sytem", "Hello")], "unknown part 'sytem': allowed are documents, "),
        ([("query", "{a}"), ("system", " ")], "the part 'system' is empty"),
        ([("query", "{a.b}")], r"a plain name such as \{question\}, got \{a.b\}"),
        ([("query", "{a!r}")], "a plain name"),
        ([("query", "{}")], "a plain name"),
        ([("query", "{a")], "braces do not match"),
        ([("query",)], "a PromptPart or a pair"),
        (["query"], "a PromptPart or a pair"),
    ],
)
def test_wrong_parts(parts: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        PromptLayout(parts)


def test_other_wrong_arguments() -> None:
    with pytest.raises(ConfigurationError, match="flow must be"):
        PromptLayout([("query", "{a}")], flow="chat")  # type: ignore[arg-type] # that is the point
    with pytest.raises(ConfigurationError, match="changes must be one of fixed"):
        PromptPart("system", "Hello", "sometimes")
    with pytest.raises(ConfigurationError, match="a query is new in every request"):
        PromptPart("query", "{a}", "fixed")
    with pytest.raises(ConfigurationError, match="no value for the variable 'question'"):
        PromptLayout([("query", "{question}")]).render({"query": "x"})


@pytest.mark.parametrize("moment", [dt.datetime(2030, 1, 1, tzinfo=dt.UTC), uuid.uuid4()])
def test_what_is_new_in_each_request_is_refused_where_nothing_may_change(moment: object) -> None:
    layout = PromptLayout([("system", "It is {now}."), ("query", "{q}")])
    with pytest.raises(ConfigurationError, match='changes="request"'):
        layout.render({"now": moment, "q": "?"})
    assert layout.fixed_variables == {"now"}
    with pytest.raises(ConfigurationError, match="'now' is bound to a function"):
        layout.check_bound({"now": lambda: "noon"})
    layout.check_bound({"q": lambda: "what", "now": "noon"})
    asked = PromptLayout([("query", "At {now}: {q}")])
    assert str(moment) in asked.render({"now": moment, "q": "?"}).turns[0].text


def test_parts_that_are_no_text_are_written_as_json() -> None:
    tools = [{"name": "search", "b": 1, "a": {"z": 0, "y": 1}}]
    layout = PromptLayout(tools=tools, query="{q}", system=None)
    assert layout.render({"q": "?"}).parts[0].text == (
        '[{"a": {"y": 1, "z": 0}, "b": 1, "name": "search"}]'
    )
