"""What is sent to replicas, and what is counted of it."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from parts.servers.routers import ClientSide
from parts.traffic.routed_traffic import (
    KEYS,
    Delivered,
    Turn,
    deliver,
    hit_rate_difference,
    make_turns,
)
from transformers import AutoTokenizer

from ragcache_integrations.core.prompt import PromptRenderer
from ragcache_integrations.engine.tiny_model import default_model_path

TEXTS = {f"d{number}": f"Document {number}. " * 5 for number in range(20)}


def turns(count: int, each: int, seed: int = 0) -> list[Turn]:
    return make_turns(
        TEXTS, requests=count, turns=each, top_k=2, exponent=1.0, sessions=4, seed=seed
    )


def test_questions_stand_by_themselves() -> None:
    made = turns(40, 1)
    assert len({turn.session for turn in made}) == 4
    assert all(len(turn.prompt.documents) == 2 for turn in made)
    assert made == turns(40, 1)
    assert made != turns(40, 1, seed=1)
    texts = [turn.prompt.messages[-1].text for turn in made]
    assert len(set(texts)) == 40


def test_conversations_grow_to_their_last_turn_and_are_followed_by_others() -> None:
    made = turns(60, 3)
    by_session: dict[str, list[Turn]] = {}
    for turn in made:
        by_session.setdefault(turn.session, []).append(turn)
    assert len(by_session) > 4
    lengths = [len(some) for some in by_session.values()]
    assert max(lengths) == 3
    assert lengths.count(3) >= len(by_session) - 4
    for some in by_session.values():
        for number, turn in enumerate(some, 1):
            roles = [message.role for message in turn.prompt.messages]
            assert roles == ["system", *(["user", "assistant"] * number)[:-1]]
            assert turn.prompt.messages[-1] != turn.prompt.messages[0]
        for earlier, later in itertools.pairwise(some):
            length = len(earlier.prompt.messages)
            assert later.prompt.messages[:length] == earlier.prompt.messages
        assert len({KEYS["document"](turn) for turn in some}) == 1


def test_the_keys() -> None:
    made = turns(40, 1)
    assert {KEYS["round robin"](turn) for turn in made} == {""}
    for one in made:
        for other in made:
            same = one.session == other.session
            assert (KEYS["session"](one) == KEYS["session"](other)) == same
            first = one.prompt.documents[0] == other.prompt.documents[0]
            assert (KEYS["document"](one) == KEYS["document"](other)) == first


def test_hit_rates_are_by_tokens_and_compared_request_by_request() -> None:
    ours = Delivered([0.1] * 4, [50, 0, 100, 50], [100, 100, 200, 100])
    baseline = Delivered([0.1] * 4, [25, 0, 50, 25], [100, 100, 200, 100])
    assert ours.hit_rate == 0.4
    found = hit_rate_difference(ours, baseline)
    assert found.value == pytest.approx(0.2)
    assert 0 < found.low <= found.value <= found.high <= 0.25
    assert hit_rate_difference(ours, ours).as_list() == [0, 0, 0]
    ours.extend(baseline)
    assert (len(ours.ttft), ours.hit_rate) == (8, 0.3)


class Completions(BaseHTTPRequestHandler):
    """Streams three tokens, and says that half of the prompt was cached."""

    server: Answering

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        base = {"id": "1", "object": "text_completion", "created": 0, "model": body["model"]}
        for _ in range(3):
            choice = {"index": 0, "text": "x", "finish_reason": None, "logprobs": None}
            self._send({**base, "choices": [choice]})
        length = len(body["prompt"])
        usage: dict[str, Any] = {
            "prompt_tokens": length,
            "completion_tokens": 3,
            "total_tokens": length + 3,
        }
        if self.server.details:
            usage["prompt_tokens_details"] = {"cached_tokens": length // 2}
        self._send({**base, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, event: object) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, *args: object) -> None:
        pass


class Answering(ThreadingHTTPServer):
    daemon_threads = True
    details = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Completions)
        self.seen: list[dict[str, Any]] = []


@contextmanager
def answering() -> Iterator[Answering]:
    with Answering() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def renderer() -> PromptRenderer:
    return PromptRenderer(AutoTokenizer.from_pretrained(str(default_model_path())))


@pytest.mark.parametrize("timed", [True, False])
def test_requests_are_delivered_with_their_documents(
    renderer: PromptRenderer, *, timed: bool
) -> None:
    made = turns(12, 1)
    with ExitStack() as stack:
        servers = [stack.enter_context(answering()) for _ in range(2)]
        addresses = [f"127.0.0.1:{server.server_address[1]}" for server in servers]
        delivered, seconds = deliver(
            ClientSide(addresses),
            KEYS["round robin"],
            made,
            renderer,
            model="m",
            output_tokens=3,
            arrivals=[0.01 * number for number in range(12)] if timed else None,
            concurrency=3,
        )
        assert [len(one.seen) for one in servers] == [6, 6]
        bodies = servers[0].seen + servers[1].seen
    lengths = [len(renderer.render(turn.prompt).token_ids) for turn in made]
    assert delivered.prompt == lengths
    assert delivered.cached == [length // 2 for length in lengths]
    assert all(0 < one <= seconds for one in delivered.ttft)
    assert sorted(len(body["prompt"]) for body in bodies) == sorted(lengths)
    for body in bodies:
        assert body["stream_options"] == {"include_usage": True}
        assert body["ignore_eos"] is True
        spans = body["vllm_xargs"]
        assert len(spans["rag_documents"]) == 2
        assert spans["rag_starts"][1] >= spans["rag_ends"][0]


def test_a_server_that_tells_no_cached_tokens_is_refused(renderer: PromptRenderer) -> None:
    with answering() as server:
        server.details = False
        side = ClientSide([f"127.0.0.1:{server.server_address[1]}"])
        with pytest.raises(RuntimeError, match="tells no cached tokens"):
            deliver(side, KEYS["document"], turns(1, 1), renderer, model="m", output_tokens=3)
