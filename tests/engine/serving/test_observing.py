from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ragcache_integrations.engine import Usage
from ragcache_integrations.engine.serving.observing import Observer

USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


TEXT = event({"choices": [{"text": '"usage":{}'}]})
LAST = event({"choices": [], "usage": USAGE})
DONE = b"data: [DONE]\n\n"


async def passed(
    bodies: list[bytes],
    *,
    kind: bytes = b"text/event-stream",
    hide: bool = True,
    grammar: bool = False,
    status: int = 200,
) -> tuple[Observer, list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    observer = Observer(send, "number-1", hide_usage=hide, grammar=grammar)
    headers = [(b"content-type", kind + b"; charset=utf-8")]
    await observer.send({"type": "http.response.start", "status": status, "headers": headers})
    for number, body in enumerate(bodies):
        more = number < len(bodies) - 1
        await observer.send({"type": "http.response.body", "body": body, "more_body": more})
    return observer, sent


def text_of(sent: list[dict[str, Any]]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent)


@pytest.mark.parametrize("hide", [True, False])
@pytest.mark.parametrize("together", [True, False])
async def test_a_streams_usage_is_for_who_asked(hide: bool, together: bool) -> None:
    events = [TEXT, LAST, DONE]
    observer, sent = await passed([b"".join(events)] if together else events, hide=hide)
    assert observer.usage({}) == Usage(7, 2, 4)
    assert text_of(sent) == (TEXT + DONE if hide else TEXT + LAST + DONE)
    assert observer.complete
    assert observer.status == 200
    assert (b"x-request-id", b"number-1") in sent[0]["headers"]


async def test_a_plain_answers_usage_is_what_vllm_left() -> None:
    observer, sent = await passed([b'{"usage":{}}'], kind=b"application/json")
    assert text_of(sent) == b'{"usage":{}}'
    assert observer.usage({}) is None
    left = SimpleNamespace(final_usage_info=SimpleNamespace(model_dump=lambda: USAGE))
    assert observer.usage({"state": {"request_metadata": left}}) == Usage(7, 2, 4)


async def test_a_stream_that_begins_with_an_error_is_an_error() -> None:
    error = {"error": {"message": "no", "code": 400}}
    observer, sent = await passed([event(error), DONE])
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == observer.status == 400
    assert json.loads(sent[1]["body"]) == error
    assert observer.complete
    assert not observer.failed


@pytest.mark.parametrize("code", [None, "x", 200, 7])
async def test_an_error_that_is_none_is_passed_on(code: Any) -> None:
    strange = event({"error": {"code": code}})
    observer, sent = await passed([strange, DONE])
    assert text_of(sent) == strange + DONE
    assert observer.status == 200
    assert observer.failed


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
INTERNAL = {"error": {"message": "Internal server error", "code": 500}}


@pytest.mark.parametrize("opening", [[], [ROLE], [ROLE, ROLE]])
async def test_a_grammar_that_cannot_be_compiled(opening: list[bytes]) -> None:
    observer, sent = await passed([*opening, event(INTERNAL), DONE], grammar=True)
    assert sent[0]["status"] == observer.status == 400
    assert "can't be compiled" in json.loads(sent[1]["body"])["error"]["message"]
    assert len(sent) == 2
    raw = json.dumps(INTERNAL).encode()
    for grammar, status in ((True, 400), (False, 500)):
        observer, sent = await passed([raw], kind=b"application/json", grammar=grammar, status=500)
        assert sent[0]["status"] == observer.status == status
    observer, sent = await passed([b"{}"], kind=b"application/json", grammar=True, status=500)
    assert sent[0]["status"] == 500
    assert text_of(sent) == b"{}"


async def test_another_answer_for_one_that_never_got_on() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    observer = Observer(send, "number-1", hide_usage=True)
    stream = [(b"content-type", b"text/event-stream")]
    await observer.send({"type": "http.response.start", "status": 200, "headers": stream})
    await observer.send({"type": "http.response.body", "body": ROLE, "more_body": True})
    assert observer.status is None
    await observer.send({"type": "http.response.start", "status": 503, "headers": []})
    await observer.send({"type": "http.response.body", "body": b'{"error":{"code":503}}'})
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert observer.status == 503


async def test_openings_are_passed_on() -> None:
    for events in ([ROLE, TEXT, DONE], [ROLE, ROLE, TEXT, DONE], [ROLE], [ROLE, DONE]):
        observer, sent = await passed(events, grammar=True)
        assert text_of(sent) == b"".join(events)
        assert observer.status == 200
        assert observer.complete


async def test_a_stream_that_breaks_off() -> None:
    observer, sent = await passed([TEXT, event({"error": {"code": 500}})], hide=False)
    assert observer.status == 200
    assert observer.failed
    assert len(sent) == 3


async def test_an_answer_that_does_not_come() -> None:
    async def send(message: Any) -> None: ...

    observer = Observer(send, "number-1", hide_usage=True)
    assert observer.status is None
    assert not observer.complete
    assert observer.elapsed_ms >= 0


async def test_vllm_raises() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    before = Observer(send, "number-1", hide_usage=True)
    before.crashed()
    assert (before.status, before.complete, before.failed) == (500, True, True)
    assert sent == []

    midway = Observer(send, "number-2", hide_usage=True)
    await midway.send({"type": "http.response.start", "status": 200, "headers": []})
    midway.crashed()
    assert (midway.status, midway.complete, midway.failed) == (200, False, True)
