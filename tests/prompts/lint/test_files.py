"""Logs as they are: of many tools, cut, damaged, compressed, too large."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.lint.lint import lint_prompt
from ragcache_workbench.logs import files as lint_files
from ragcache_workbench.logs import read_requests, read_text
from ragcache_workbench.logs.requests import MAX_PROMPTS, recorded_requests

SYSTEM = {"role": "system", "content": "Be brief."}
MESSAGES = [SYSTEM, {"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "search"}}]


def serialised(kind: str, content: str) -> dict[str, Any]:
    """A message as LangChain's tracer sends it to LangSmith."""
    names = ["langchain", "schema", "messages", f"{kind}Message"]
    return {"lc": 1, "type": "constructor", "id": names, "kwargs": {"content": content}}


LANGSMITH = [serialised("System", "Be brief."), serialised("Human", "Hello")]
LITELLM = {
    "model": "m",
    "messages": "{}",
    "proxy_server_request": json.dumps({"messages": MESSAGES}),
}

FORMS: dict[str, Any] = {
    "messages in a string": {"model": "m", "messages": json.dumps(MESSAGES)},
    "LiteLLM without messages": LITELLM,
    "Langfuse": {"type": "GENERATION", "model": "m", "input": MESSAGES},
    "Langfuse, with tools": {"type": "GENERATION", "input": {"messages": MESSAGES, "tools": TOOLS}},
    "Langfuse, as the API sends it": {"type": "GENERATION", "input": json.dumps(MESSAGES)},
    "Langfuse's trace": {
        "trace": {"id": "1", "input": "Hello"},
        "observations": [
            {"type": "SPAN", "input": {"messages": MESSAGES}},
            {"type": "GENERATION", "input": MESSAGES},
        ],
    },
    "LangSmith": {"run_type": "llm", "inputs": {"messages": [LANGSMITH]}},
    "LangSmith, OpenAI's client": {"run_type": "llm", "inputs": {"messages": MESSAGES}},
    "LangSmith, a table's row": {"run_type": "llm", "inputs": json.dumps({"messages": MESSAGES})},
    "LangSmith's chain": {
        "run_type": "chain",
        "inputs": {"question": "Hello"},
        "child_runs": [{"run_type": "llm", "inputs": {"messages": [LANGSMITH]}}],
    },
    "LangChain's dicts": [
        {"type": "system", "data": {"content": "Be brief."}},
        {"type": "human", "data": {"content": "Hello"}},
    ],
    "Gemini": {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
    },
    "ShareGPT": {
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "Hello"},
        ]
    },
    "a recorded HTTP exchange": {"url": "/", "request_body": json.dumps({"messages": MESSAGES})},
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_tools(name: str) -> None:
    (request,) = recorded_requests(FORMS[name])
    assert (request.system, request.history, request.last) == ("Be brief.", (), "Hello")


def test_the_model_and_the_tools_may_stand_outside_of_the_messages() -> None:
    parameters = {"invocation_params": {"model": "m", "tools": TOOLS}}
    run = {"run_type": "llm", "extra": parameters, "inputs": {"messages": [LANGSMITH]}}
    row = {"messages": json.dumps(MESSAGES), "proxy_server_request": {"model": "m", "tools": TOOLS}}
    for entry in (run, row):
        (request,) = recorded_requests(entry)
        assert (request.model, json.loads(request.tools)) == ("m", TOOLS)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"run_type": "chain", "inputs": {"messages": MESSAGES}},
            "of type 'chain', which is no req",
        ),
        ({"type": "SPAN", "input": MESSAGES}, "of type 'SPAN', which is no request"),
        ({"messages": "[]"}, r"has neither messages.* can be read; its keys: \['messages'\]"),
        ({"input": {"question": "Why?"}}, "has neither messages"),
        ({"prompt": ["a"] * (MAX_PROMPTS + 1)}, f"at most {MAX_PROMPTS} prompts, got"),
    ],
)
def test_what_is_no_request(entry: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        recorded_requests(entry)


def test_prompts_that_are_json_stay_what_they_are() -> None:
    for text in ('{"question": "Why?"}', '[{"a": 1}]', "[1, 2]", "[broken"):
        (request,) = recorded_requests({"prompt": text})
        assert request.last == text


def test_several_prompts_and_token_ids_in_a_completion() -> None:
    texts = recorded_requests({"model": "m", "prompt": ["Why?", "How?"]})
    assert [(request.model, request.last) for request in texts] == [("m", "Why?"), ("m", "How?")]
    (one,) = recorded_requests({"prompt": [1, 22, 128000]})
    assert one.token_ids
    several = recorded_requests({"prompt": [[1, 22, 128000], [1, 3]]})
    assert several == [one, *recorded_requests({"prompt": [1, 3]})]


def test_token_ids_are_counted_as_such() -> None:
    shared = list(range(100_000, 100_040))
    sent = [{"prompt": [number, *shared]} for number in range(200_000, 200_012)]
    report = lint_prompt(sent)
    assert report.prompt_tokens == 41
    assert report.shared_prefix == 0
    (finding,) = report.findings
    assert (finding.token, finding.recomputed_tokens) == (0, 40)
    report = lint_prompt([{"prompt": [*shared, number]} for number in range(3, 39)])
    assert report.findings == ()
    assert report.shared_prefix == pytest.approx(35 * 40 / (36 * 41))


IMAGE = "iVBORw0KGgo" * 4000
MEDIA: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
    {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}},
    {"type": "input_audio", "input_audio": {"format": "wav", "data": IMAGE}},
    {"type": "document", "source": {"type": "base64", "data": IMAGE}},
    {"inlineData": {"mimeType": "image/png", "data": IMAGE}},
]


@pytest.mark.parametrize("block", MEDIA)
def test_images_and_recordings_are_no_text(block: dict[str, Any]) -> None:
    def request(block: dict[str, Any]) -> Any:
        content = [block, {"type": "text", "text": "What is this?"}]
        return {"messages": [{"role": "user", "content": content}]}

    assert lint_prompt([request(block), request(block)]).prompt_tokens < 20
    other = json.loads(json.dumps(block).replace(IMAGE, IMAGE + "x"))
    first, second = recorded_requests(request(block)) + recorded_requests(request(other))
    assert first.last != second.last


def test_documents_in_plain_text_are_text() -> None:
    block = {"type": "document", "source": {"type": "text", "data": "A fact."}}
    (request,) = recorded_requests([{"role": "user", "content": [block]}])
    assert request.last == "A fact."


# Files

LINES = [json.dumps({"prompt": f"Is it {number}?"}) for number in range(4)]
LOG = "\n".join(LINES)


def asked(tmp_path: Path, content: bytes | str) -> tuple[list[str], int]:
    """The prompts in a log, and how many lines of it are skipped."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    log = read_requests(path)
    return [request.last for request in log.requests], log.skipped


ALL = [f"Is it {number}?" for number in range(4)]


@pytest.mark.parametrize(
    "content",
    [
        LOG,
        LOG.replace("\n", "\r\n"),
        f"\n \n{LOG}\n\n",
        b"\xef\xbb\xbf" + LOG.encode(),
        LOG.encode("utf-16"),
        gzip.compress(LOG.encode(), mtime=0),  # the same name in every process
        gzip.compress(b"\xef\xbb\xbf" + LOG.encode(), mtime=0),
        f"[{','.join(LINES)}]",
        json.dumps([json.loads(line) for line in LINES], indent=2),
        json.dumps({"data": [json.loads(line) for line in LINES], "meta": {"page": 1}}),
        json.dumps({"data": [json.loads(line) for line in LINES], "meta": {"page": 1}}, indent=2),
        "\n".join(json.dumps(json.loads(line), indent=2) for line in LINES),
    ],
)
def test_encodings_and_forms_of_files(content: bytes | str, tmp_path: Path) -> None:
    assert asked(tmp_path, content) == (ALL, 0)


@pytest.mark.parametrize(
    "broken",
    ['{"prompt": "cut', "ERROR something", b'{"prompt": "\xff"}', '{"question": 1}', "[" * 99_999],
)
@pytest.mark.parametrize("place", range(5))
def test_a_broken_line_costs_that_line(broken: bytes | str, place: int, tmp_path: Path) -> None:
    line = broken.encode() if isinstance(broken, str) else broken
    lines: list[bytes] = [text.encode() for text in LINES]
    found, skipped = asked(tmp_path, b"\n".join([*lines[:place], line, *lines[place:]]))
    assert set(ALL) <= set(found)
    assert skipped == 1


def test_an_array_or_an_archive_that_is_cut(tmp_path: Path) -> None:
    array = json.dumps([json.loads(line) for line in LINES], indent=2)
    assert asked(tmp_path, array[:-20]) == (ALL[:3], 1)
    assert asked(tmp_path, f"[{','.join(LINES)}"[:-5]) == (ALL[:3], 1)
    rows = [json.dumps({"prompt": f"Is it {n * 37 % 9999}?"}) for n in range(9999)]
    found, skipped = asked(tmp_path, gzip.compress("\n".join(rows).encode())[:-4000])
    assert 100 < len(found) < 9999
    assert skipped == 1


def test_reasons_are_said_but_not_all(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join([*LINES, *["?"] * 9]), encoding="utf-8")
    report = lint_prompt(read_requests(path))
    assert (report.requests, report.skipped, len(report.remarks)) == (4, 9, 3)
    assert "line 5 is no JSON" in str(report)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(LOG, encoding="utf-8")
    monkeypatch.setattr(lint_files, "MAX_REQUESTS", 3)
    log = read_requests(path)
    assert len(log.requests) == 3
    assert "only the first 3 requests are read: at most 3 are" in log.remarks[-1]
    monkeypatch.setattr(lint_files, "MAX_LINE", 40)
    long = json.dumps({"prompt": "x" * 500})
    assert asked(tmp_path, f"{LINES[0]}\n{long}\n{LINES[1]}") == (ALL[:2], 1)
    with pytest.raises(ConfigurationError, match="must have at most 40 characters"):
        read_text(path)
    monkeypatch.setattr(lint_files, "MAX_READ", 200)
    assert asked(tmp_path, f"{LINES[0]}\n{long}\n{LINES[1]}") == (ALL[:1], 1)
    monkeypatch.setattr(lint_files, "MAX_VALUES", 3)
    assert asked(tmp_path, f"{LINES[0]}\n[1,2,3,4]\n{LINES[1]}") == (ALL[:2], 1)


def test_a_prompt_of_all_characters_together(tmp_path: Path) -> None:
    log = lint_files.Log(recorded_requests, room=30)
    log.add("x" * 20, "line 1")
    with pytest.raises(Exception, match="characters together"):
        log.add("x" * 20, "line 2")
    assert len(log) == 1


@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x8b", b"\x1f\x8bnonsense", b"\xff\xfe\x00", b"\x00" * 99]
)
def test_files_of_nothing_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"cannot read|holds no request"):
        read_requests(path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_requests(tmp_path)


@pytest.mark.parametrize("depth", [0, 100, 500, 900])
def test_tools_that_cannot_be_put_in_order_cost_nothing_else(depth: int, tmp_path: Path) -> None:
    tools = json.loads("[" * depth + "NaN" + "]" * depth)
    rows = [{"prompt": f"Is it {n}?", "tools": [tools, n % 2]} for n in range(9)]
    path = tmp_path / "log"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    log = read_requests(path)
    assert len(log.requests) == 9
    assert lint_prompt(log).requests == 9


def test_lists_and_mappings_that_hold_themselves() -> None:
    circle: dict[str, Any] = {"messages": [{"role": "user"}]}
    circle["messages"][0]["content"] = [circle]
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    nested: Any = {"prompt": "x"}
    for _ in range(50):
        nested = {"body": nested}
    for entry in (
        circle,
        {"tools": circle, "prompt": "x"},
        {"messages": [{"content": deep}]},
        nested,
    ):
        with pytest.raises(ConfigurationError):
            recorded_requests(entry)
