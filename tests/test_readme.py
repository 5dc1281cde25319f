"""The README does what it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.engine
@pytest.mark.timeout(600)  # the model is compiled, as it is for everybody
def test_the_examples_run_and_the_second_question_asks_no_store() -> None:
    frameworks = [example for example in EXAMPLES if "retriever.stats()" in example]
    speculative = [example for example in EXAMPLES if "speculation" in example]
    assert (len(frameworks), len(speculative)) == (2, 2), "one for each framework"
    spaces: list[dict[str, Any]] = [{}, {}, {}, {}]  # kept, so that they share an engine
    try:
        for example, space in zip([*frameworks, *speculative], spaces, strict=True):
            exec(compile(example, "README.md", "exec"), space)
        for space in spaces[:2]:
            stats = space["retriever"].stats()
            assert (stats.requests, stats.store_calls, stats.hits) == (2, 1, 1)
        langchain, llama_index = (space["result"] for space in spaces[2:])
        assert len(langchain["context"]) == len(llama_index.source_nodes) == 3
        assert langchain["answer"]
        assert str(llama_index)
        for report in (langchain["speculation"], llama_index.metadata["speculation"]):
            assert "first token" in {event.what for event in report.events}
    finally:
        for space in spaces:
            for name in ("model", "llm"):
                if name in space:
                    space[name].close()


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_the_example_of_the_tree_shows_the_tree(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (example for example in EXAMPLES if "engine.tree()" in example)
    assert ".document_hit_rate)  # 0.5" in example
    exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "rome: gpu" in shown
    assert shown.endswith("0.5\n")


def test_the_example_of_document_order_prints_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = (example for example in EXAMPLES if "order_documents" in example)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == "['Rome', 'Bern', 'Oslo']\n"
    assert "# ['Rome', 'Bern', 'Oslo']" in example


def test_the_example_of_a_plan_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (example for example in EXAMPLES if "PrefixPlan" in example)
    exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["documents_first", "Take documents_first."]
    assert "# documents_first" in example


def test_the_example_of_the_layout_and_the_linter_prints_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = (example for example in EXAMPLES if "RAGPromptTemplate" in example)
    exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.startswith("System: Answer briefly.\nHuman: Rome is the capital of Italy.\n\nBern")
    clean, _, broken = shown.partition("nothing found\n")
    assert "Question: What is Rome?" in clean
    assert "query-before-documents at token 2" in broken
    assert "# query-before-documents at token 2" in example


def test_the_targets_it_names_exist() -> None:
    targets = set(re.findall(r"\bmake (\w+)", README)) - {"them"}
    known = set(
        re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {"demo", "test", "setup"} <= targets <= known


def test_the_files_it_names_exist() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    named = set(re.findall(r"`((?:tools|tests|ragcache_integrations)/[\w./]+)", README))
    assert named
    assert named <= set(tracked)
