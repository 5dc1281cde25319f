from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.engine import Message, Prompt, PromptDocument, SamplingOptions
from ragcache_integrations.errors import ConfigurationError


def test_a_document_without_id_gets_a_stable_one_from_its_text() -> None:
    assert PromptDocument("some text").id == PromptDocument("some text").id
    assert PromptDocument("some text").id != PromptDocument("other text").id
    assert PromptDocument("some text", "mine").id == "mine"


@given(st.text(min_size=1))
def test_every_string_has_an_id(text: str) -> None:
    assert PromptDocument(text).id


def test_the_usual_question_over_documents() -> None:
    prompt = Prompt.rag("why?", ["one", PromptDocument("two", "b")], system="Be brief.")
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert prompt.messages[1].text == "one\n\ntwo\n\nwhy?"
    assert [document.text for document in prompt.documents] == ["one", "two"]
    assert prompt.documents[1].id == "b"


def test_a_text_is_not_taken_for_several_documents() -> None:
    with pytest.raises(ConfigurationError, match="several, such as a list, got 'a text'"):
        Prompt.rag("Why?", "a text")


def test_a_raw_prompt_holds_its_parts() -> None:
    prompt = Prompt.raw(["before ", PromptDocument("text"), " behind"])
    assert prompt.parts == ("before ", PromptDocument("text"), " behind")
    assert Prompt.raw("alone").parts == ("alone",)


@pytest.mark.parametrize("query", ["", "   ", None, 3])
def test_an_empty_query_is_refused(query: object) -> None:
    with pytest.raises(ConfigurationError, match="query"):
        Prompt.rag(query)  # type: ignore[arg-type] # bad input is the point


def test_what_is_no_prompt_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="either messages or parts"):
        Prompt()
    with pytest.raises(ConfigurationError, match="either messages or parts"):
        Prompt(messages=(Message("user", "a"),), parts=("a",))
    with pytest.raises(ConfigurationError, match="empty"):
        Prompt(messages=(Message("user", ""),))
    with pytest.raises(ConfigurationError, match="unknown role 'robot'"):
        Message("robot", "a")
    with pytest.raises(ConfigurationError, match="str and PromptDocument, got bytes"):
        Message("user", [b"bytes"])  # type: ignore[list-item] # bad input is the point
    with pytest.raises(ConfigurationError, match="must not be empty"):
        PromptDocument("")
    with pytest.raises(ConfigurationError, match="must be strings"):
        PromptDocument(b"bytes")  # type: ignore[arg-type] # bad input is the point


def test_options_are_strings_or_tuples_of_strings() -> None:
    assert SamplingOptions(stop="END").stop == ("END",)  # type: ignore[arg-type] # accepted
    assert SamplingOptions(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type] # accepted


def _nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "none"}, "max_tokens"),
        ({"temperature": -1}, "temperature must be a number of at least 0, got -1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "0.3"}, "temperature"),
        ({"top_p": 0}, "top_p must be a number above 0 and at most 1, got 0"),
        ({"top_p": 1.1}, "top_p must be a number above 0 and at most 1, got 1.1"),
        ({"top_k": -1}, "top_k"),
        (
            {"frequency_penalty": 2.1},
            "frequency_penalty must be a number of at least -2 and at most 2, got 2.1",
        ),
        (
            {"presence_penalty": "1"},
            "presence_penalty must be a number of at least -2 and at most 2, got '1'",
        ),
        ({"repetition_penalty": -1}, "repetition_penalty must be a number above 0, got -1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a number above 0, got 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"logprobs": 21}, "logprobs must be a whole number of at least 0 and at most 20, got 21"),
        ({"stop": [""]}, "stop must be non-empty strings"),
        ({"choice": [3]}, "choice must be non-empty strings"),
        ({"json_schema": "{}"}, "json_schema must be a mapping, got str"),
        (
            {"json_schema": {"const": print}},
            "which this is not: it contains a builtin_function_or_method",
        ),
        ({"json_schema": _nested(100_000)}, "json_schema must be a JSON schema"),
        ({"json_schema": {}, "choice": ["a"]}, "exclude each other"),
    ],
)
def test_bad_options_say_what_is_allowed(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        SamplingOptions(**options)  # type: ignore[arg-type] # bad input is the point
