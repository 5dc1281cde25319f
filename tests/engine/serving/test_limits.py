"""A server that wants a key, takes few tenants, and logs what it is asked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ragcache_integrations.engine import Prompt, SamplingOptions
from ragcache_integrations.errors import ServerResponseError
from ragcache_integrations.llms.openai.server import OpenAIServer

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
        *("--max-headers", "50", "--max-header-bytes", "9000", "--header-seconds", "2"),
        *("--body-seconds", "2", "--max-connections-per-client", "20"),
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
        assert "requires a key" in said["error"]["message"]


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
    def ask(salt: str | None, model: str = MODEL) -> int:
        salted = {} if salt is None else {"cache_salt": salt}
        body = {"model": model, "prompt": "x", "max_tokens": 1, **salted}
        status, said = guarded.ask("POST", "/v1/completions", body, WITH_KEY)
        if status == 429:
            assert 1 <= int(guarded.headers["retry-after"]) <= 60
            assert "3 a minute" in said["error"]["message"]
        return status

    # What is refused computes nothing, and uses up nobody's minute.
    assert {ask(f"refused {number}", "no-such-model") for number in range(9)} == {404}
    assert [ask(salt) for salt in ("a", "b", "c", "a", "d", "e", "b", None)] == [
        *(200, 200, 200, 200, 429, 429, 200, 200)
    ]
    assert guarded.metrics()["ragcache_refused_requests_total"] >= 2


HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (HEAD + b"X: y\r\n" * 50 + b"\r\n", 431),
        (HEAD + b"X: " + b"y" * 9000 + b"\r\n\r\n", 431),
        (HEAD + b"X: " + b"y" * 1_000_000, 431),
        (b"GET /" + b"y" * 9000, 414),
        (HEAD, 408),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\n\r\n{", 401),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),
    ],
)
def test_what_is_refused_before_it_is_looked_at(guarded: Server, raw: bytes, status: int) -> None:
    name = "ragcache_refused_requests_total"
    before = guarded.metrics().get(name, 0)
    answer = guarded.exchange(raw)
    assert not answer or answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer or len(raw) > 500_000
    assert guarded.metrics()[name] > before


def test_an_unfinished_body_ends_with_its_time(guarded: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer %s\r\n" % KEY.encode()
    assert guarded.exchange(head + b"Content-Length: 5\r\n\r\n{").startswith(b"HTTP/1.1 408 ")


def test_metrics_for_a_client_that_is_gone(guarded: Server) -> None:
    raw = b"POST /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n"
    assert guarded.exchange(raw).startswith(b"HTTP/1.1 400 ")
    assert guarded.metrics()["ragcache_refused_requests_total"] > 0
    assert "Exception in ASGI application" not in guarded.err.read_text()


def test_one_client_has_so_many_connections(guarded: Server) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", guarded.port)))
        assert guarded.ask("GET", "/health")[0] == 429
        assert guarded.exchange(HEAD + b"Connection: close\r\n\r\n", "127.0.0.2").startswith(
            b"HTTP/1.1 200 "
        )


def test_nobody_upgrades(guarded: Server) -> None:
    upgrade = (
        b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert guarded.exchange(upgrade).startswith(b"HTTP/1.1 401 ")


def test_prompts_are_logged_where_that_was_asked_for(guarded: Server) -> None:
    headers = {**WITH_KEY, "X-Request-Id": "logged"}
    body = {"model": MODEL, "prompt": "Who is Ophelia?", "max_tokens": 1}
    assert guarded.ask("POST", "/v1/completions", body, headers)[0] == 200
    assert guarded.logged("logged")["body"] == body
    assert KEY not in guarded.out.read_text() + guarded.err.read_text()
