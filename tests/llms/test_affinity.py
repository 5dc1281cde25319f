"""The value by which a router brings requests together."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.engine import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.openai.wire import AFFINITY_HEADER, affinity_headers, affinity_key

ROME, BERN, OSLO = (PromptDocument(f"About {name}.", name) for name in ("rome", "bern", "oslo"))


def asked(*documents: PromptDocument, query: str = "What is there?") -> Prompt:
    return Prompt.rag(query, documents, system="Be brief.")


def test_requests_that_begin_with_the_same_document_meet() -> None:
    key = affinity_key(asked(ROME, BERN))
    assert key == affinity_key(asked(ROME, OSLO, query="Who lives there?"))
    assert key != affinity_key(asked(BERN, ROME))


def test_the_depth_says_how_many_documents_count() -> None:
    pair = affinity_key(asked(ROME, BERN), depth=2)
    assert pair == affinity_key(asked(ROME, BERN, OSLO), depth=2)
    assert pair != affinity_key(asked(ROME, OSLO), depth=2)
    assert affinity_key(asked(ROME), depth=2) == affinity_key(asked(ROME), depth=1)


def test_tenants_need_not_meet() -> None:
    keys = {affinity_key(asked(ROME), namespace=name) for name in ("", "a", "b")}
    assert len(keys) == 3


def test_a_session_goes_before_documents() -> None:
    key = affinity_key(asked(ROME), session="alice")
    assert key == affinity_key(asked(BERN), session="alice")
    assert key != affinity_key(asked(ROME), session="bob")
    assert key != affinity_key(asked(ROME), session="alice", namespace="a")
    assert key != affinity_key(asked(ROME))


def test_a_conversation_stays_where_its_documents_brought_it() -> None:
    first = [Message("system", "Be brief."), Message("user", [ROME, "What is there?"])]
    later = [Message("assistant", "Much."), Message("user", [BERN, "And there?"])]
    key = affinity_key(asked(ROME))
    for depth in (1, 2):
        assert affinity_key(Prompt(messages=(*first, *later)), depth=depth) == key


def test_documents_behind_a_conversation_do_not_decide() -> None:
    def turn(document: PromptDocument) -> Prompt:
        return Prompt(
            messages=(
                Message("user", "Hello, I am Ada."),
                Message("assistant", "Hello, Ada."),
                Message("user", [document, "What is there?"]),
            )
        )

    key = affinity_key(turn(ROME))
    assert key == affinity_key(turn(BERN))
    assert key == affinity_key(Prompt(messages=(Message("user", "Hello, I am Ada."),)))
    assert key != affinity_key(Prompt(messages=(Message("user", "Hello, I am Bob."),)))


def test_a_greeting_of_the_assistant_is_no_conversation() -> None:
    def greeted(document: PromptDocument) -> Prompt:
        turns = Message("assistant", "How can I help?"), Message("user", [document, "Well?"])
        return Prompt(messages=turns)

    assert affinity_key(greeted(ROME)) == affinity_key(asked(ROME))
    assert affinity_key(greeted(ROME)) != affinity_key(greeted(BERN))


def test_documents_in_the_system_message_count() -> None:
    prompt = Prompt(messages=(Message("system", ["Read:", ROME]), Message("user", "What?")))
    assert affinity_key(prompt) == affinity_key(asked(ROME))


def test_raw_text_goes_by_its_documents_alone() -> None:
    assert affinity_key(Prompt.raw(["Read: ", ROME, " What?"])) == affinity_key(asked(ROME))
    assert affinity_key(Prompt.raw("Once upon a time")) == ""
    assert affinity_key(Prompt(messages=(Message("system", "Write a poem."),))) == ""


def test_documents_without_ids_meet_by_their_texts() -> None:
    one, same, other = (PromptDocument(text) for text in ("Cats purr.", "Cats purr.", "Cats."))
    assert affinity_key(asked(one)) == affinity_key(asked(same)) != affinity_key(asked(other))


def test_the_headers() -> None:
    key = affinity_key(asked(ROME), namespace="a")
    assert affinity_headers(asked(ROME), namespace="a") == {AFFINITY_HEADER: key}
    assert affinity_headers(asked(ROME), session="s", header="X-Session-ID") == {
        "X-Session-ID": affinity_key(asked(ROME), session="s")
    }
    assert affinity_headers(Prompt.raw("Once upon a time")) == {}


KINDS: dict[str, tuple[Prompt, dict[str, Any]]] = {
    "documents": (asked(ROME, BERN), {}),
    "two documents": (asked(ROME, BERN), {"depth": 2}),
    "tenant": (asked(ROME, BERN), {"namespace": "tenant"}),
    "session": (asked(ROME, BERN), {"session": "alice"}),
    "conversation": (Prompt(messages=(Message("user", "Hello"),)), {}),
}
PINNED = {
    "documents": "beaf9559cdba68ba",
    "two documents": "1b2347786979c0c6",
    "tenant": "035246473c1f5e5b",
    "session": "317d2f23a205499f",
    "conversation": "6422817f554f517a",
}


def test_values_never_change() -> None:
    """Replicas, applications and versions must agree on them."""
    assert {name: affinity_key(prompt, **more) for name, (prompt, more) in KINDS.items()} == PINNED


def test_another_process_says_the_same() -> None:
    script = (
        "import json; from ragcache_integrations.engine import Prompt, PromptDocument;"
        "from ragcache_integrations.llms.openai.wire import affinity_key;"
        "prompt = Prompt.rag('Why?', [PromptDocument('About.', 'rome')]);"
        "print(json.dumps([affinity_key(prompt), affinity_key(prompt, session='s')]))"
    )
    prompt = asked(ROME)
    for seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        assert json.loads(said) == [affinity_key(prompt), affinity_key(prompt, session="s")]


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3), st.text(), st.text())
def test_whatever_the_names_are_the_value_fits_a_header(
    names: list[str], namespace: str, session: str
) -> None:
    prompt = asked(*(PromptDocument("text", name) for name in names))
    for depth in (1, 2):
        key = affinity_key(prompt, namespace=namespace, session=session, depth=depth)
        assert len(key) == 16
        assert set(key) <= set("0123456789abcdef")


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_fields_do_not_run_into_each_other(one: tuple[str, str], other: tuple[str, str]) -> None:
    first, second = (
        affinity_key(asked(ROME), namespace=namespace, session="s" + session)
        for namespace, session in (one, other)
    )
    assert (first == second) == (one == other)


def test_lone_surrogates_have_a_value_too() -> None:
    assert affinity_key(asked(PromptDocument("text", "\ud800"))) != affinity_key(asked(ROME))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"namespace": None}, "namespace must be a string, got None"),
        ({"session": 7}, "session must be a string, got 7"),
        ({"depth": 0}, "depth must be a whole number of documents of at least 1, got 0"),
        ({"depth": True}, "depth must be a whole number"),
        ({"depth": 1.5}, "depth must be a whole number"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        affinity_key(asked(ROME), **wrong)
    with pytest.raises(ConfigurationError, match=message):
        affinity_headers(asked(ROME), **wrong)


def test_what_is_no_prompt() -> None:
    with pytest.raises(ConfigurationError, match="the prompt must be a Prompt, got str"):
        affinity_key("rome")  # type: ignore[arg-type]
