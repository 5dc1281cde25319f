"""Requests that no honest client sends: malformed, oversized, lying.

Every one of them has to be answered with a status of 400 to 499, or, where it does not wait for an
answer, to leave the server as it was.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Hostile", "hostile_requests", "send_all"]

ANSWER_SECONDS = 120.0
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

Json = dict[str, Any]


@dataclass(frozen=True)
class Hostile:
    """One request.

    Attributes:
        kind: What is wrong with it.
        raw: The bytes to send.
        waits: Whether the client waits for an answer before it goes away.
    """

    kind: str
    raw: bytes
    waits: bool = True


def hostile_requests(number: int, model: str, seed: int = 0) -> Iterator[Hostile]:
    """Draw requests of all kinds, evenly.

    Args:
        number: How many.
        model: The name under which the model is served.
        seed: Of the drawing.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    kinds = list(KINDS.items())
    for index in range(number):
        kind, make = kinds[index % len(kinds)]
        raw = make(draw, model)
        yield Hostile(kind, raw, waits=kind not in SILENT)


async def send_all(
    requests: Sequence[Hostile], host: str, port: int, *, concurrency: int = 8
) -> Counter[tuple[str, int]]:
    """Send all of them.

    Returns:
        How often each kind got each status; 0 where the connection ended without one, -1 for those
        that did not wait.
    """
    found: Counter[tuple[str, int]] = Counter()
    pending = iter(requests)

    async def work() -> None:
        for request in pending:
            found[request.kind, await _status(request, host, port)] += 1

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return found


async def _status(request: Hostile, host: str, port: int) -> int:
    async with asyncio.timeout(ANSWER_SECONDS):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(request.raw)
            try:
                await writer.drain()
                if not request.waits:
                    return -1
                line = await reader.readline()
            except ConnectionError:  # it was answered before it had been read to its end
                line = await reader.readline()
            words = line.split()
            return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") else 0
        finally:
            writer.close()


def _http(
    body: bytes,
    path: str = CHAT,
    *,
    method: str = "POST",
    kind: str = "application/json",
    length: int | None = None,
    more: str = "",
) -> bytes:
    length = len(body) if length is None else length
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: server\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {length}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


def _chat(model: str, **fields: Any) -> Json:
    messages = [{"role": "user", "content": "Who purrs?"}]
    return {"model": model, "messages": messages, "max_tokens": 2, **fields}


def _completion(model: str, **fields: Any) -> Json:
    return {"model": model, "prompt": list(range(10, 42)), "max_tokens": 2, **fields}


def _send(body: Json, path: str) -> bytes:
    return _http(json.dumps(body).encode(), path)


def _broken_json(draw: random.Random, model: str) -> bytes:
    good = json.dumps(_chat(model)).encode()
    broken = [
        good[: draw.randrange(1, len(good) - 1)],
        good + b"}",
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe" + good,
        good.replace(b"purrs", b"\xc3\x28"),
        good.replace(b"2", b"NaN"),
        good.replace(b"2", b"-Infinity"),
        good.replace(b'"', b"'"),
        bytes(draw.randrange(256) for _ in range(draw.randrange(1, 400))),
        good.replace(b"purrs", b"\\ud800"),
        good.replace(b"purrs", b"purrs\\"),
    ]
    return _http(draw.choice(broken), draw.choice([CHAT, COMPLETION]))


def _numbers(draw: random.Random, model: str) -> bytes:
    number = draw.choice(
        ["1e999", "-1e400", "9" * 30, "9" * 5000, "1" + "0" * 400, "18446744073709551616"]
    )
    field = draw.choice(["max_tokens", "seed", "top_k", "temperature", "n", "min_tokens"])
    path, body = draw.choice([(CHAT, _chat(model)), (COMPLETION, _completion(model))])
    text = json.dumps({**body, field: "@"}).replace('"@"', number)
    return _http(text.encode(), path)


def _nested(draw: random.Random, model: str) -> bytes:
    depth = draw.choice([100, 1000, 20_000, 100_000])
    opening, closing = draw.choice([("[", "]"), ('{"a":', "}")])
    nest = opening * depth + ("1" if opening != "[" else "") + closing * depth
    where = draw.choice(["messages", "prompt", "response_format", "vllm_xargs", "tools", "nothing"])
    text = json.dumps({**_chat(model), where: "@"}).replace('"@"', nest)
    return _http(text.encode(), draw.choice([CHAT, COMPLETION]))


WRONG: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("model", ("another", 7, ["x"], {})),
    ("max_tokens", (-1, "many", [], {}, 1.5)),
    ("temperature", (-1, "hot", [], {})),
    ("top_p", (0, -0.5, 1.5, "all", [])),
    ("top_k", (-7, "few", [], 0.5)),
    ("n", (0, -1, "two", [], {})),
    ("seed", ("s", [], {})),
    ("stop", (7, [7], {}, [["x"]])),
    ("stream", ("maybe", [], {})),
    ("logit_bias", ({"x": 1}, {"999999999": 1}, 7, [1])),
    ("presence_penalty", (9, -9, "x")),
    ("frequency_penalty", (9, -9, "x")),
    ("repetition_penalty", (-1, "x")),
    ("min_p", (-1, 2, "x")),
    ("allowed_token_ids", ([], [-1], [10**9], "x")),
    ("stop_token_ids", ("x", [[1]], {})),
    ("min_tokens", (-1, 10**6, "x")),
    ("cache_salt", ("", 7, [], "a/b", "x" * 2000)),
    ("vllm_xargs", (7, "x", [1], {"a": {"b": 1}}, {"a": [[1]]})),
    ("kv_transfer_params", (7, "x", [1])),
    ("response_format", ("json", {"type": "none"}, {"type": "json_schema"}, 7)),
    # No grammars that only some of vLLM's compilers refuse: the first request chooses among them.
    (
        "structured_outputs",
        (
            *("x", 7, [], {"choice": []}, {"regex": "("}),
            *({"json": {"$ref": "#/x"}}, {"json": "{"}, {"json": {"type": "nothing"}}),
        ),
    ),
    ("stream_options", ("x", 7, {"include_usage": True})),
    ("priority", ("x", [])),
    ("step", (7, [], {}, "x" * 300)),
    ("next_steps", ("x", 7, [1], {"b": 1}, {"b": "1"})),
)


def _wrong_field(draw: random.Random, model: str) -> bytes:
    field, values = draw.choice(WRONG)
    path, body = draw.choice([(CHAT, _chat(model)), (COMPLETION, _completion(model))])
    if not field.startswith("stream"):
        body |= _sometimes_streaming(draw)
    return _send({**body, field: draw.choice(values)}, path)


def _wrong_messages(draw: random.Random, model: str) -> bytes:
    messages: list[Any] = [
        [],
        "Who purrs?",
        7,
        None,
        {},
        ["Who purrs?"],
        [[]],
        [7],
        [{}],
        [{"role": 7, "content": "x"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": [7]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "nonsense", "text": "x"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}],
        [{"role": "tool", "content": []}, None],
    ]
    return _send({**_chat(model), "messages": draw.choice(messages)}, CHAT)


def _wrong_prompt(draw: random.Random, model: str) -> bytes:
    prompts: list[Any] = [
        [],
        "",
        7,
        None,
        {},
        [-1],
        [10**9],
        [1.5],
        ["x", 1],
        [1, "x"],
        [[]],
        [[1], "x"],
        [None],
        [{"type": "text"}],
        [{"type": "nonsense", "text": "x"}],
        [{}, 1],
        [2**40],
    ]
    return _send(_completion(model, prompt=draw.choice(prompts)), COMPLETION)


def _lying_spans(draw: random.Random, model: str) -> bytes:
    lies: list[Any] = [
        {"rag_documents": ["a", "b"], "rag_starts": [0, 4], "rag_ends": [8, 12]},
        {"rag_documents": ["a"], "rag_starts": [8], "rag_ends": [4]},
        {"rag_documents": ["a"], "rag_starts": [4], "rag_ends": [4]},
        {"rag_documents": ["a"], "rag_starts": [0], "rag_ends": [33]},
        {"rag_documents": ["a"], "rag_starts": [-4], "rag_ends": [4]},
        {"rag_documents": ["b", "a"], "rag_starts": [8, 0], "rag_ends": [12, 4]},
        {"rag_documents": [7], "rag_starts": [0], "rag_ends": [4]},
        {"rag_documents": [""], "rag_starts": [0], "rag_ends": [4]},
        {"rag_documents": ["x" * 5000], "rag_starts": [0], "rag_ends": [4]},
        {"rag_documents": ["a"], "rag_starts": ["0"], "rag_ends": [4]},
        {"rag_documents": ["a"], "rag_starts": [0.5], "rag_ends": [4]},
        {"rag_documents": ["a"], "rag_starts": [0]},
        {"rag_starts": [0], "rag_ends": [4]},
        {"rag_documents": "a", "rag_starts": 0, "rag_ends": 4},
        {"rag_documents": ["a"] * 2, "rag_starts": [0], "rag_ends": [4]},
        {"rag_documents": ["a"], "rag_starts": [0], "rag_ends": [2**62]},
        {"rag_documents": ["a"], "rag_starts": [True], "rag_ends": [4]},
    ]
    body = _completion(model, vllm_xargs=draw.choice(lies), **_sometimes_streaming(draw))
    return _send(body, COMPLETION)


def _misplaced_spans(draw: random.Random, model: str) -> bytes:
    spans = {"rag_documents": ["a"], "rag_starts": [0], "rag_ends": [4]}
    return draw.choice(
        [
            _send(_chat(model, vllm_xargs=spans), CHAT),
            _send(_completion(model, vllm_xargs=spans, prompt="text"), COMPLETION),
            _send(_completion(model, vllm_xargs=spans, prompt=[[1, 2, 3, 4]] * 2), COMPLETION),
            _send(
                _completion(model, vllm_xargs=spans, truncate_prompt_tokens=3),
                COMPLETION,
            ),
        ]
    )


def _wrong_documents(draw: random.Random, model: str) -> bytes:
    good = {"type": "document", "id": "a", "text": "Cats purr."}
    wrong: list[Any] = [
        {**good, "text": ""},
        {**good, "text": 7},
        {**good, "id": 7},
        {**good, "id": ""},
        {**good, "id": "x" * 5000},
        {**good, "extra": 1},
        {"type": "document"},
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}},
        {"type": ["document"]},
        7,
        None,
        "text",
    ]
    parts = [good, draw.choice(wrong)]
    draw.shuffle(parts)
    if draw.random() < 0.1:  # noqa: PLR2004 - they are large
        parts = [good] * 5000
    if draw.random() < 0.5:  # noqa: PLR2004 - either way
        messages = [{"role": "user", "content": parts}]
        return _send({**_chat(model), "messages": messages}, CHAT)
    return _send(_completion(model, prompt=parts), COMPLETION)


def _excluded_documents(draw: random.Random, model: str) -> bytes:
    parts = [{"type": "document", "text": "Cats purr."}, {"type": "text", "text": "Who?"}]
    messages = [{"role": "user", "content": parts}]
    excluding: list[Json] = [
        {"echo": True},
        {"truncate_prompt_tokens": 4},
        {"vllm_xargs": 7},
        {"kv_transfer_params": [1]},
        {"vllm_xargs": {"rag_documents": ["a"], "rag_starts": [0], "rag_ends": [1]}},
    ]
    return _send({**_chat(model), "messages": messages, **draw.choice(excluding)}, CHAT)


def _too_long(draw: random.Random, model: str) -> bytes:
    words = "purr " * draw.choice([5000, 50_000])
    document = {"type": "document", "text": words}
    return draw.choice(
        [
            _send({**_chat(model), "messages": [{"role": "user", "content": words}]}, CHAT),
            _send({**_chat(model), "messages": [{"role": "user", "content": [document]}]}, CHAT),
            _send(_completion(model, prompt=words), COMPLETION),
            _send(_completion(model, prompt=[document]), COMPLETION),
            _send(_completion(model, prompt=[5] * 100_000), COMPLETION),
            _send(_completion(model, prompt=words, stream=True), COMPLETION),
        ]
    )


def _too_large(draw: random.Random, model: str) -> bytes:
    del model
    return _http(b"x" * 1000, length=draw.choice([2**30, 2**40, 2**62]))


def _wrong_place(draw: random.Random, model: str) -> bytes:
    good = json.dumps(_chat(model)).encode()
    return draw.choice(
        [
            _http(good, "/v1/nothing"),
            _http(good, "/v1/../../etc/passwd"),
            _http(good, "/" + "x" * 3000),
            _http(good, CHAT, method="PUT"),
            _http(good, CHAT, method="DELETE"),
            _http(b"", CHAT, method="GET"),
            _http(good, "/v1/models"),
            _http(good, "/health/../ready"),
            _http(good, f"{CHAT}%00"),
        ]
    )


def _wrong_kind(draw: random.Random, model: str) -> bytes:
    good = json.dumps(_chat(model)).encode()
    kind = draw.choice(
        [
            "text/plain",
            "",
            "application/xml",
            "multipart/form-data; boundary=x",
            "application/jsonx",
        ]
    )
    return _http(good, kind=kind)


def _no_http(draw: random.Random, model: str) -> bytes:
    del model
    return draw.choice(
        [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32) + b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X-Long: " + b"x" * 200_000 + b"\r\n\r\n",
            b"nonsense " * 20 + b"\r\n\r\n",
        ]
    )


def _gone(draw: random.Random, model: str) -> bytes:
    """Goes away in the middle of its body, of its prefill, or of its stream."""
    long = "purr " * 200
    streamed = bool(draw.getrandbits(1))
    body = _chat(model, max_tokens=1000, ignore_eos=True, stream=streamed)
    body["messages"] = [{"role": "user", "content": long}]
    raw = _send(body, CHAT)
    return raw[: draw.choice([len(raw) // 2, len(raw)])]


def _sometimes_streaming(draw: random.Random) -> Json:
    return {"stream": True} if draw.random() < 0.3 else {}  # noqa: PLR2004 - now and then


KINDS: dict[str, Callable[[random.Random, str], bytes]] = {
    "broken JSON": _broken_json,
    "impossible numbers": _numbers,
    "deep nesting": _nested,
    "wrong field": _wrong_field,
    "wrong messages": _wrong_messages,
    "wrong prompt": _wrong_prompt,
    "lying spans": _lying_spans,
    "misplaced spans": _misplaced_spans,
    "wrong documents": _wrong_documents,
    "excluded documents": _excluded_documents,
    "prompt too long": _too_long,
    "request too large": _too_large,
    "wrong place": _wrong_place,
    "wrong content type": _wrong_kind,
    "no HTTP": _no_http,
    "gone": _gone,
}
SILENT = frozenset({"gone"})
