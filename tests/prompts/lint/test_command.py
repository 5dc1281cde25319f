from __future__ import annotations

import io
import json
import textwrap
from pathlib import Path

import pytest

from ragcache_integrations.cli import command as cli
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_workbench.logs import read_requests

RULES = "Answer from the context alone, in at most three sentences, and say so when it is silent."


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Requests whose query stands before their documents."""
    path = tmp_path / "requests.jsonl"
    documents = [f"Document {name} tells of much that matters here." for name in "abcdef"]
    lines = [
        json.dumps({"prompt": f"{RULES}\nIs it {n * n} or not?\n" + "\n".join(documents)})
        for n in range(12)
    ]
    path.write_text("\n\n".join(lines), encoding="utf-8")
    return path


def test_a_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", str(log)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{log}: 12 requests of ")
    assert "query-before-fixed-text at token" in out


def test_json_is_the_last_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--json", str(log)]) == 1
    content = json.loads(capsys.readouterr().out.splitlines()[-1])
    (finding,) = content[str(log)]["findings"]
    assert finding["code"] == "query-before-fixed-text"
    assert finding["recomputed_tokens"] >= 16
    assert content[str(log)]["requests"] == 12


def test_lines_of_messages_and_of_characters_that_end_lines_elsewhere(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    talks = [[{"role": "user", "content": f"page\u2028{n}\x85end"}] for n in range(3)]
    lines = [json.dumps(talk, ensure_ascii=False) for talk in talks]
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    requests = read_requests(log).requests
    assert [request.last for request in requests] == [talk[0]["content"] for talk in talks]


def test_an_array_and_a_clean_template(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = tmp_path / "requests.json"
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").split("\n\n")]
    array.write_text(json.dumps(lines, indent=1), encoding="utf-8")
    template = tmp_path / "prompt.txt"
    template.write_text(f"{RULES}\n{{context}}\n{{question}}", encoding="utf-8")
    assert cli.main(["lint", str(array)]) == 1
    assert cli.main(["lint", str(template)]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert cli.main(["lint", str(template), str(array)]) == 1
    assert cli.main(["lint", "--min-tokens", "10000", str(array)]) == 0


def test_prompts_in_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = f"""
        from types import SimpleNamespace
        from langchain_core.prompts import PromptTemplate as LangChain
        from llama_index.core.prompts import PromptTemplate as LlamaIndex

        text = "{{time}} {RULES}"
        langchain = LangChain.from_template(text)
        nested = SimpleNamespace(llama_index=LlamaIndex(text))
        pairs = [("system", text)]
    """
    (tmp_path / "some_prompts.py").write_text(textwrap.dedent(source), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("langchain", "nested.llama_index", "pairs", "text"):
        assert cli.main(["lint", f"some_prompts:{name}"]) == 1
        assert f"some_prompts:{name}: a prompt of about" in (out := capsys.readouterr().out)
        assert "timestamp at token 0: {time}" in out
    assert cli.main(["lint", "some_prompts:nothing"]) == 2
    assert "is neither a file nor MODULE:NAME of a prompt" in capsys.readouterr().err


def test_the_models_own_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = tmp_path / "prompt.txt"
    template.write_text(f"{{time}} {RULES}", encoding="utf-8")
    assert cli.main(["lint", "--tokenizer", str(default_model_path()), str(template)]) == 1
    assert "timestamp" in capsys.readouterr().out


def test_a_limit_that_is_none(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--min-tokens", "0", str(log)]) == 2
    assert (
        "min_tokens must be a whole number of tokens of at least 1, got 0"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "holds no request that can be read: the file is no JSON"),
        ("What?", "holds no request that can be read: line 1 is no JSON"),
        ('"a"\n{"question": "Why?"}', "line 2 has neither messages, prompt nor input"),
        ('"a"', "at least 2 requests, got 1"),
        ("", "holds no request that can be read: it is empty"),
        ("[1, 2]", "entry 1 must be a request's body"),
    ],
)
def test_errors_are_one_line(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(content, encoding="utf-8")
    assert cli.main(["lint", str(path)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("ragcache: ")
    assert words in error
    assert error.count("\n") == 1


def test_the_exit_status_tells_what_was_found_from_what_could_not_be_read(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean, cut, missing = tmp_path / "prompt.txt", tmp_path / "cut.jsonl", tmp_path / "missing"
    clean.write_text("{context} {question}", encoding="utf-8")
    cut.write_text(log.read_text(encoding="utf-8") + '\n{"prompt": "Is', encoding="utf-8")
    assert cli.main(["lint", str(clean)]) == 0
    assert cli.main(["lint", str(cut)]) == 1
    assert "1 that cannot be read are skipped\n  line 24 is no JSON" in capsys.readouterr().out
    assert cli.main(["lint", "--json", str(missing), str(cut), str(clean)]) == 2
    out, error = capsys.readouterr()
    assert f"ragcache: cannot read {missing}" in error
    content = json.loads(out.splitlines()[-1])
    assert "cannot read" in content[str(missing)]["error"]
    assert content[str(cut)]["findings"]
    assert content[str(cut)]["skipped"] == 1
    assert content[str(clean)]["findings"] == []


@pytest.mark.parametrize("source", ["raise SystemExit(1)", "1 / 0", "def f(:"])
def test_a_module_that_cannot_be_imported_is_not_a_finding(
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_prompts.py").write_text(source, encoding="utf-8")
    assert cli.main(["lint", "broken_prompts:prompt"]) == 2
    assert "is neither a file nor MODULE:NAME of a prompt" in capsys.readouterr().err


def test_what_is_shown_cannot_steer_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "requests.jsonl"
    lines = [
        json.dumps({"model": "\x1b[2J", "prompt": f"\x1b]0;{n} \ud800 {RULES}"}) for n in range(9)
    ]
    log.write_text("\n".join(lines), encoding="utf-8")
    assert cli.main(["lint", str(log)]) == 1
    assert "\x1b" not in capsys.readouterr().out
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", narrow)
    assert cli.main(["lint", str(log)]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/no/such/file.jsonl"], "cannot read /no/such/file.jsonl"),
        (["--tokenizer", "/no/such/model", "/no/such/file"], "no tokenizer can be loaded"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lint", *arguments]) == 2
    assert words in capsys.readouterr().err
