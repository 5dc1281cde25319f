from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ragcache_integrations.engine import EngineStats, Usage
from ragcache_integrations.engine.serving.observing import Observer, RequestLog
from ragcache_integrations.engine.serving.reports import metrics_text, read_counts, write_counts
from ragcache_integrations.knowledge_tree.stats import TreeStats

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


# Counts of the workers


def test_what_was_written_is_read(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_counts(str(tmp_path), rank, 100, TreeStats(documents=1))
        write_counts(str(tmp_path), rank, 100, TreeStats(documents=rank + 2, swap_outs=3))
    found = read_counts(str(tmp_path))
    assert found == {
        "0": EngineStats(tree=TreeStats(documents=2, swap_outs=3), block_bytes=100),
        "1": EngineStats(tree=TreeStats(documents=3, swap_outs=3), block_bytes=100),
    }


def test_files_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text("[100, {")
    (tmp_path / "1.json").write_text('[100, {"unknown": 1}]')
    (tmp_path / "2.json").write_text("7")
    assert read_counts(str(tmp_path)) == {}
    assert read_counts(str(tmp_path / "missing")) == {}
    assert read_counts("") == {}
    write_counts(str(tmp_path / "missing"), 0, 100, TreeStats())


def test_every_metric_is_named_once(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_counts(str(tmp_path), rank, 100, TreeStats(documents=rank + 2, swap_outs=3))
    text = metrics_text(EngineStats(requests=5), str(tmp_path), {400: 2, 429: 1}).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE")
    assert [sample.value for sample in families["ragcache_requests"].samples] == [5]
    documents = {
        sample.labels["engine"]: sample.value
        for sample in families["ragcache_documents"].samples
        if sample.name.endswith("_total")
    }
    assert documents == {"0": 2, "1": 3}
    refused = {s.labels["status"]: s.value for s in families["ragcache_refused_requests"].samples}
    assert refused == {"400": 2, "429": 1}
    swapped = [s.value for s in families["ragcache_swap_out_bytes"].samples]
    assert swapped == [300, 300]


def test_without_a_tree() -> None:
    text = metrics_text(EngineStats(requests=5), "", {}).decode()
    assert "ragcache_requests_total 5.0" in text
    assert "ragcache_documents" not in text


# The log of requests


class Full(io.StringIO):
    """A disk that is full for a while."""

    full = True

    def flush(self) -> None:
        if self.full:
            msg = "No space left on device"
            raise OSError(msg)


def test_it_writes_what_is_known() -> None:
    stream = io.StringIO()
    RequestLog(stream).write("request", path="/x", status=None)
    line = json.loads(stream.getvalue())
    assert line.pop("time")
    assert line == {"event": "request", "path": "/x"}


def test_a_log_that_cannot_be_written_is_said_once_and_harms_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = Full()
    log = RequestLog(stream)
    for _ in range(3):
        log.write("request")
    assert capsys.readouterr().err.count("No space left on device") == 1
    stream.full = False
    log.write("request")
    stream.close()
    log.write("request")
    log.write("request")
    assert capsys.readouterr().err.count("cannot be written") == 1
