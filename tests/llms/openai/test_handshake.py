"""Which servers are sent documents, and as what."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import transformers

from ragcache_integrations import __version__
from ragcache_integrations.core.prompt import PromptRenderer
from ragcache_integrations.engine import Prompt, PromptDocument, SamplingOptions
from ragcache_integrations.engine.serving.wire import PROTOCOL, content_parts, tokenizer_mark
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import (
    ConfigurationError,
    ServerResponseError,
    ServerUnreachableError,
)
from ragcache_integrations.llms.openai.wire import affinity_key, build_request
from tests.llms.doubles import Exchange, StubServer

from .calls import CHAT, RAW, SAID, Ask, connect, every_way

FACTS: dict[str, Any] = {"ragcache": __version__, "protocol": PROTOCOL, "tokenizer": "another's"}
PLAIN = Prompt.raw("Who purrs?")


def introducing(facts: object, status: int = 200) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.send(facts, status)


def as_text(prompt: Prompt) -> Any:
    return "".join(part if isinstance(part, str) else part.text for part in prompt.parts)


@every_way
def test_our_server_is_sent_documents(stub: StubServer, ask: Ask) -> None:
    stub.introduce = introducing(FACTS)
    with closing(connect(stub)) as server:
        for prompt in (CHAT, RAW, CHAT):
            assert ask(server, prompt, None, None) == SAID
        chat, raw, _ = (seen.body for seen in stub.seen)
    assert [turn["content"] for turn in chat["messages"]] == [
        "Be brief.",
        content_parts(CHAT.messages[1].parts),
    ]
    assert raw["prompt"] == content_parts(RAW.parts)
    assert "vllm_xargs" not in raw
    assert len(stub.introductions) == 1
    assert stub.introductions[0]["Authorization"] == "Bearer none"


@every_way
def test_any_other_server_is_sent_text(stub: StubServer, ask: Ask) -> None:
    with closing(connect(stub)) as server:
        for prompt in (CHAT, RAW):
            assert ask(server, prompt, None, None) == SAID
    assert stub.seen[0].body["messages"][1]["content"] == CHAT.messages[1].text
    assert stub.seen[1].body["prompt"] == as_text(RAW)
    assert len(stub.introductions) == 1


@every_way
def test_nobody_is_asked_without_need(stub: StubServer, ask: Ask) -> None:
    with closing(connect(stub)) as server:
        assert ask(server, PLAIN, None, None) == SAID
    assert not stub.introductions


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"ragcache": "1"},
        {"ragcache": 7, "protocol": 1},
        {"choices": []},
        [],
        "text",
        None,
        {**FACTS, "models": 7},
    ],
)
def test_an_introduction_that_makes_no_sense(stub: StubServer, facts: object) -> None:
    stub.introduce = introducing(facts)
    with closing(connect(stub)) as server:
        for _ in range(2):
            server.generate(RAW)
    assert stub.seen[0].body["prompt"] == as_text(RAW)
    assert len(stub.introductions) == 1


@every_way
def test_another_version_is_sent_text_with_one_warning(
    stub: StubServer, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    stub.introduce = introducing({**FACTS, "ragcache": "9.1", "protocol": PROTOCOL + 1})
    with closing(connect(stub)) as server:
        for _ in range(2):
            assert ask(server, RAW, None, None) == SAID
    assert stub.seen[0].body["prompt"] == as_text(RAW)
    (warning,) = caplog.messages
    assert "runs ragcache-integrations 9.1" in warning
    assert "plain text" in warning


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (405, 1), (501, 2), (429, 2), (401, 2)])
def test_what_may_pass_is_not_remembered(stub: StubServer, status: int, asked: int) -> None:
    stub.introduce = introducing({}, status)
    with closing(connect(stub)) as server:
        server.generate(RAW)
        server.generate(RAW)
        assert len(stub.introductions) == asked
        stub.introduce = introducing(FACTS)
        server.generate(RAW)
    expected = as_text(RAW) if asked == 1 else content_parts(RAW.parts)
    assert stub.seen[-1].body["prompt"] == expected


@every_way
def test_silence_costs_no_more_than_the_requests_own_time(stub: StubServer, ask: Ask) -> None:
    stub.introduce = Exchange.hang
    with closing(connect(stub)) as server:
        assert ask(server, RAW, None, 0.3) == SAID
    assert stub.seen[0].body["prompt"] == as_text(RAW)


def test_breaking_off_and_nobody_there(stub: StubServer, refused_url: str) -> None:
    stub.introduce = Exchange.break_off
    with closing(connect(stub)) as server:
        assert server.generate(RAW) == SAID
    with closing(connect(refused_url)) as nobody, pytest.raises(ServerUnreachableError):
        nobody.generate(RAW)


def test_a_refusal_is_the_requests_own(stub: StubServer) -> None:
    stub.introduce = introducing({"error": {"message": "no key"}}, 401)
    stub.reply = lambda exchange: exchange.send({"error": {"message": "no key"}}, 401)
    with closing(connect(stub)) as server, pytest.raises(ServerResponseError) as caught:
        server.generate(RAW)
    assert caught.value.status_code == 401


def test_many_threads_ask_at_once(stub: StubServer) -> None:
    stub.introduce = introducing(FACTS)
    with closing(connect(stub)) as server:
        threads = [threading.Thread(target=server.generate, args=(RAW,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [seen.body["prompt"] for seen in stub.seen] == [content_parts(RAW.parts)] * 16


async def test_asking_blocks_nothing(stub: StubServer, no_blocking: object) -> None:
    stub.introduce = introducing(FACTS)
    path = str(await asyncio.to_thread(default_model_path))
    server = await asyncio.to_thread(connect, stub, tokenizer=path)  # imports
    assert await server.agenerate(RAW) == SAID
    await server.aclose()


@pytest.mark.parametrize("ours", [True, False])
def test_tokens_are_sent_where_the_tokenizer_is_the_servers(
    stub: StubServer, ours: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(default_model_path())
    renderer = PromptRenderer(transformers.AutoTokenizer.from_pretrained(path))
    mark = tokenizer_mark(renderer.tokenize)
    stub.introduce = introducing({**FACTS, "tokenizer": mark if ours else "another's"})
    with closing(connect(stub, tokenizer=path)) as server:
        for prompt in (RAW, RAW, CHAT):
            server.generate(prompt)
    raw, _, chat = (seen.body for seen in stub.seen)
    assert isinstance(chat["messages"][1]["content"], list)
    if ours:
        rendered = renderer.render(RAW)
        assert raw["prompt"] == rendered.token_ids
        (span,) = rendered.documents
        assert raw["vllm_xargs"] == {
            "rag_documents": [span.id],
            "rag_starts": [span.start],
            "rag_ends": [span.end],
        }
        assert not caplog.messages
    else:
        assert raw["prompt"] == content_parts(RAW.parts)
        assert len(caplog.messages) == 1


def test_a_tokenizer_that_is_not_there(stub: StubServer) -> None:
    stub.introduce = introducing(FACTS)
    with closing(connect(stub, tokenizer="/no/such/tokenizer")) as server:
        server.generate(RAW)
    assert stub.seen[0].body["prompt"] == content_parts(RAW.parts)


def test_the_prompts_text_is_told_whatever_is_sent(stub: StubServer) -> None:
    """It is counted where the server reports no usage."""
    for prompt in (CHAT, RAW):
        sent = [
            build_request("m", prompt, SamplingOptions(), documents=documents).prompt_text
            for documents in (True, False)
        ]
        assert sent[0] == sent[1]
        assert "Cats purr." in sent[0]


@pytest.mark.parametrize(
    ("namespace", "kept"),
    [
        ("", True),
        ("tenant 7", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("alice@example.com", False),
        ("team/alice", False),
        ("a\\b", False),
        ("\x00", False),
        ("\ud800", False),
    ],
)
def test_a_namespace_as_vllm_takes_it(namespace: str, kept: bool) -> None:
    salt = build_request("m", PLAIN, SamplingOptions(), namespace).body.get("cache_salt", "")
    assert (salt == namespace) == kept
    if not kept:
        assert salt.startswith("hash-")
        assert len(salt) < 64
        again = build_request("m", PLAIN, SamplingOptions(), namespace).body["cache_salt"]
        other = build_request("m", PLAIN, SamplingOptions(), namespace + "/").body["cache_salt"]
        assert salt == again != other


@every_way
def test_a_router_is_told_which_requests_should_meet(stub: StubServer, ask: Ask) -> None:
    with closing(connect(stub)) as server:
        for prompt in (CHAT, RAW, PLAIN):
            ask(server, prompt, None, None)
    told = [seen.headers["X-RAGCache-Affinity"] for seen in stub.seen]
    assert told == [affinity_key(CHAT), affinity_key(RAW), None]


def test_documents_without_text_between_them() -> None:
    cats = PromptDocument("Cats purr.", "cats")
    body = build_request("m", Prompt.raw([cats, "", cats]), SamplingOptions(), documents=True).body
    assert body["prompt"] == content_parts([cats, cats])


@every_way
def test_our_server_hears_where_to_reuse_documents(stub: StubServer, ask: Ask) -> None:
    stub.introduce = introducing(FACTS)
    with closing(connect(stub)) as server:
        ask(server, CHAT, None, None)
        assert not {"reuse", "link_tokens"} & stub.seen[-1].body.keys()
        for prompt in (CHAT, RAW):
            server.generate(prompt, reuse="anywhere", link_tokens=0)
            assert (stub.seen[-1].body["reuse"], stub.seen[-1].body["link_tokens"]) == (
                "anywhere",
                0,
            )
        server.generate(PLAIN, reuse="anywhere")
        assert "reuse" not in stub.seen[-1].body


def test_no_other_server_hears_of_it(stub: StubServer) -> None:
    with closing(connect(stub)) as server:
        with pytest.raises(ConfigurationError, match=r"link_tokens are for `ragcache serve`"):
            server.generate(CHAT, reuse="anywhere", link_tokens=0)
        assert not stub.seen
