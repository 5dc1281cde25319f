"""A server that wants a key, takes few tenants, and logs what it is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ragcache_integrations.engine import Prompt, SamplingOptions
from ragcache_integrations.errors import ServerResponseError
from ragcache_integrations.llms.openai_server import OpenAIServer

from .starting import MODEL, SMALL, Server

pytestmark = pytest.mark.engine

KEY = "open sesame"
WITH_KEY = {"Authorization": f"Bearer {KEY}"}
RAG = Prompt.rag("Who purrs?", ["Cats purr. " * 30])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = (
        *SMALL,
        *("--api-key", KEY, "--new-tenants-per-minute", "3", "--log-prompts"),
        *("--served-model-name", MODEL, "second-name", "--no-knowledge-tree"),
    )
    with Server(tmp_path_factory.mktemp("guarded"), *arguments) as running:
        yield running.wait_ready()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer another"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer"},
        {"Authorization": ""},
    ],
)
def test_a_key_is_wanted(guarded: Server, headers: dict[str, str]) -> None:
    for method, path, body in (
        ("GET", "/v1/ragcache", None),
        ("GET", "/v1/models", None),
        ("POST", "/v1/completions", {"model": MODEL, "prompt": "x"}),
        ("POST", "/v1/completions", b"{"),
        ("POST", "/tokenize", {"model": MODEL, "prompt": "x"}),
    ):
        status, said = guarded.ask(method, path, body, headers)
        assert status == 401, path
        assert "wants a key" in said["error"]["message"]


def test_what_needs_no_key(guarded: Server) -> None:
    for path in ("/health", "/ready", "/metrics", "/version"):
        assert guarded.ask("GET", path)[0] == 200


def test_with_the_key(guarded: Server) -> None:
    status, facts = guarded.ask("GET", "/v1/ragcache", headers=WITH_KEY)
    assert status == 200
    assert facts["models"] == [MODEL, "second-name"]
    assert facts["knowledge_tree"] is False
    options = SamplingOptions(max_tokens=2)
    client = OpenAIServer(guarded.base_url, "second-name", api_key=KEY, max_retries=0)
    assert client.generate(RAG, options).usage.cached_tokens == 0
    assert client.generate(RAG, options).usage.cached_tokens > 0  # by vLLM's own prefix cache
    client.close()
    for key in (None, "another"):
        stranger = OpenAIServer(guarded.base_url, MODEL, api_key=key, max_retries=0)
        with pytest.raises(ServerResponseError) as caught:
            stranger.generate(RAG, options)
        assert caught.value.status_code == 401
        stranger.close()


def test_new_tenants_are_few(guarded: Server) -> None:
    def ask(salt: str | None) -> int:
        salted = {} if salt is None else {"cache_salt": salt}
        body = {"model": MODEL, "prompt": "x", "max_tokens": 1, **salted}
        status, said = guarded.ask("POST", "/v1/completions", body, WITH_KEY)
        if status == 429:
            assert 1 <= int(guarded.headers["retry-after"]) <= 60
            assert "3 a minute" in said["error"]["message"]
        return status

    assert [ask(salt) for salt in ("a", "b", "c", "a", "d", "e", "b", None)] == [
        *(200, 200, 200, 200, 429, 429, 200, 200)
    ]
    assert guarded.metrics()["ragcache_refused_requests_total"] >= 2


def test_prompts_are_logged_where_that_was_asked_for(guarded: Server) -> None:
    headers = {**WITH_KEY, "X-Request-Id": "logged"}
    body = {"model": MODEL, "prompt": "Who is Ophelia?", "max_tokens": 1}
    assert guarded.ask("POST", "/v1/completions", body, headers)[0] == 200
    assert guarded.logged("logged")["body"] == body
    assert KEY not in guarded.out.read_text() + guarded.err.read_text()
