"""Logs and templates for the linter: read and linted, or refused; what is broken is skipped."""

from __future__ import annotations

import gzip
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ragcache_integrations.cli import command as cli
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.lint.jinja import jinja_pieces
from ragcache_integrations.prompts.lint.lint import (
    Template,
    TemplateVariable,
    lint_prompt,
    mustache_pieces,
    pieces_of,
)
from ragcache_workbench.logs import read_requests
from ragcache_workbench.logs import requests as lint_requests
from ragcache_workbench.logs.requests import recorded_requests
from tests.prompts.lint.test_files import FORMS
from tests.support.sizes import examples

from .bounds import bounded
from .hostile import altered_text, damaged

NAMES = ["role", "content", "type", "text", "source", "lc", "id", "data", "tools", "model", "extra"]
KEYS = st.sampled_from([*lint_requests._PROMPTS, *lint_requests._ENVELOPES, *NAMES, "runs"])
TEXTS = st.text(max_size=12) | st.sampled_from(["user", "system", "llm", "GENERATION", "text"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
PIECES = (
    *(b"\n", b"{", b"[", b"}", b"]", b'"', b",", b"\\", b"\\ud800", b"\xff", b"\0", b"NaN"),
    *(b"\xe2\x80\xa8", b"1e999", b"\x1f\x8b", b"\xef\xbb\xbf", b"\xff\xfe", b"[" * 2000),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lint")


@given(VALUES)
@examples(300)
def test_any_json_is_read_or_refused(value: Any) -> None:
    for entry in (value, {"messages": json.dumps(value)}, {"messages": value}):
        try:
            requests = recorded_requests(entry)
        except ConfigurationError:
            continue
        lint_prompt([*requests, *requests, "Hello", "Hello you"])
        assert all(request.text.encode() for request in requests if request.text)


def lint(path: Path, content: bytes) -> None:
    """Lint a file, as a function and as a command: it is read, or refused by its name."""
    path.write_bytes(content)
    out = io.StringIO()
    with bounded():
        try:
            log = read_requests(path)
        except ConfigurationError as error:
            event("refused")
            assert str(path) in str(error)  # noqa: PT017 - either is fine
        else:
            event("read, some skipped" if log.skipped else "read")
            assert log.requests
        with redirect_stdout(out), redirect_stderr(out):
            assert cli.main(["lint", "--json", str(path)]) in {0, 1, 2}
    assert all(letter.isprintable() or letter == "\n" for letter in out.getvalue())


@given(noise=st.binary(max_size=60), values=st.lists(VALUES, max_size=3))
@examples(60)
def test_any_file_is_read_or_refused(noise: bytes, values: list[Any], folder: Path) -> None:
    good = "\n".join(map(json.dumps, values)).encode()
    for content in (noise, noise + good, good + noise, gzip.compress(good) + noise):
        lint(folder / "log", content)


@given(data=st.data())
@examples(200)
def test_logs_of_tools_that_were_damaged(folder: Path, data: st.DataObject) -> None:
    entries = data.draw(st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=6))
    texts = [json.dumps(FORMS[name]) for name in entries]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(texts) - 1))
        texts[at] = data.draw(altered_text(FORMS[entries[at]]))
    match data.draw(st.sampled_from(["lines", "lines", "array", "indented", "export"])):
        case "lines":
            whole = "\n".join(texts)
        case "array":
            whole = f"[{','.join(texts)}]"
        case "indented":
            whole = "[\n" + ",\n".join(texts).replace(",", ",\n ") + "\n]\n"
        case _:
            whole = f'{{"data": [{",".join(texts)}], "meta": {{}}}}'
    encoding = data.draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16"]))
    content = whole.encode(encoding, "surrogatepass")
    if data.draw(st.booleans()):
        content = data.draw(damaged(content, PIECES))
    if data.draw(st.integers(0, 4)) == 0:
        content = gzip.compress(content)
        if data.draw(st.booleans()):
            content = data.draw(damaged(content, PIECES))
    lint(folder / "log", content)


JINJA = (
    *("{% for d in docs %}", "{% endfor %}", "{% if not a %}", "{% elif b %}", "{% else %}"),
    *("{% endif %}", "{{ d.x | join(y) }}", "{{ loop.index }}", "{% set x = x ~ x %}", "{{ x }}"),
    *("{% macro m(a, b=1) %}", "{% endmacro %}", "{{ m(m(a), b=c) }}", "{% call m(1) %}"),
    *("{% endcall %}", "{{ caller() }}", "{% chat role='user' %}", "{% endchat %}", "text\n", "{{"),
    *("}}", "{% set y %}", "{% endset %}", "{% raw %}", "{% endraw %}", "{#", "#}", "\ue000"),
    *("{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% block b %}"),
    *("{% endblock %}", "{{ 9 ** 9 ** 9 }}", "{{ x * 10 ** 9 }}", "{{ ((((((1)))))) }}", "{%"),
)
MUSTACHE = (
    *("{{a}}", "{{{a}}}", "{{#s}}", "{{/s}}", "{{^s}}", "{{> p}}", "{{! c }}", "{{=<% %>=}}"),
    *("<%a%>", "{{.}}", "{{a.b}}", "{{", "}}", "{{}}", "{{= =}}", "{{#}}", "{{/}}", "text\n", " "),
)
PLAIN = (
    *("{a}", "{{a}}", "{", "}", "{{", "}}", "{score:.2f}", "{a!r}", "{a[0]}", "{a.b}", "{}", "{0}"),
    *("{context}", "{question}", "{history}", "2024-01-01", "12:30", "text\n", "{a:{b}}", "\ue000"),
)


@pytest.mark.parametrize(
    ("read", "parts", "ending"),
    [
        (jinja_pieces, JINJA, ".j2"),
        (mustache_pieces, MUSTACHE, ".mustache"),
        (pieces_of, PLAIN, ".txt"),
    ],
)
@given(data=st.data())
@examples(150)
def test_any_template_is_read_or_refused(
    folder: Path, read: Any, parts: tuple[str, ...], ending: str, data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(st.sampled_from(parts) | st.characters(), max_size=20))
    template = "".join(drawn) * data.draw(st.sampled_from([1, 1, 1, 2, 100]))
    path = folder / f"template{ending}"
    path.write_text(template, "utf-8", "surrogatepass")
    with bounded():
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            assert cli.main(["lint", str(path)]) in {0, 1, 2}
        try:
            pieces = read(template)
        except ConfigurationError:
            event("refused")
            return
        event("read")
        assert all(isinstance(piece, str | TemplateVariable) for piece in pieces)
        lint_prompt(Template(pieces))
