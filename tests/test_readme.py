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
    frameworks = [example for example in EXAMPLES if "retriever" in example]
    assert len(frameworks) == 2, "one for each framework"
    spaces: list[dict[str, Any]] = [{}, {}]
    try:
        for example, space in zip(frameworks, spaces, strict=True):
            exec(compile(example, "README.md", "exec"), space)
            stats = space["retriever"].stats()
            assert (stats.requests, stats.store_calls, stats.hits) == (2, 1, 1)
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
