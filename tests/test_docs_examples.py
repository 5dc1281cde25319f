"""Every Python block of README.md and docs/ runs, and prints what it says.

A comment behind a ``print`` is the line that it prints, ``...`` standing for anything. A block
behind ``<!-- continues -->`` goes on where the one before it ended; one behind
``<!-- not run: ... -->`` is compiled, and its imports of ours are looked at in ``test_docs.py``.
"""

from __future__ import annotations

import dataclasses
import linecache
import re
from collections.abc import Iterator
from typing import Any

import pytest

from ragcache_integrations.engine.arguments import with_bundled_model
from ragcache_integrations.engine.protocol import EngineSettings
from tests.support.doc_pages import CONTINUES, NOT_RUN, Block, blocks

ENGINE = re.compile(r"\b(?:RAGCacheEngine|ChatRAGCache|RAGCacheLLM)\(")
# Their examples need a running server, and their rooms' tests have one.
SERVED = {"docs/serving.md", "docs/scaling.md", "docs/shared_query_cache.md"}
# Its example compiles the model, as for users. That takes longer than all else in the others.
COMPILED = "docs/howto/swap_llm.md"
EXPECTATION = re.compile(r"(?<![.\w])print\(.*\)  # (.+)$", re.MULTILINE)

Space = dict[str, Any]


def examples() -> list[list[Block]]:
    """Blocks that run one after the other."""
    found: list[list[Block]] = []
    for block in blocks("python"):
        if block.mark.startswith(NOT_RUN) or block.page in SERVED:
            continue
        if block.mark == CONTINUES:
            assert found, f"{block.page}:{block.line}: nothing to go on from"
            assert found[-1][-1].page == block.page, f"{block.page}:{block.line}: likewise"
            found[-1].append(block)
        else:
            found.append([block])
    return found


def name_of(example: list[Block]) -> str:
    return f"{example[0].page}:{example[0].line}"


def is_shown(expected: str, shown: list[str]) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return any(re.fullmatch(pattern, line.strip()) for line in shown)


def marks_of(text: str) -> list[pytest.MarkDecorator]:
    if ENGINE.search(text):
        return [pytest.mark.engine]
    return [pytest.mark.slow] if "MiniLM" in text else []  # it reads hundreds of passages


EXAMPLES = [
    pytest.param(
        example,
        id=name_of(example),
        marks=marks_of("\n".join(block.text for block in example)),
    )
    for example in examples()
]


@pytest.fixture(scope="module")
def spaces() -> Iterator[list[Space]]:
    """What the examples made, kept so that they share an engine; closed at the end."""
    kept: list[Space] = []
    yield kept
    for space in kept:
        for name in ("chain", "query_engine", "model", "llm"):
            close = getattr(space.get(name), "close", None)
            if close is not None:
                close()


@pytest.fixture
def _eager(example: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    if example[0].page == COMPILED:
        return

    def resolved(settings: EngineSettings) -> EngineSettings:
        eager = {"enforce_eager": True} | settings.vllm_args
        return with_bundled_model(dataclasses.replace(settings, vllm_args=eager))

    monkeypatch.setattr("ragcache_integrations.engine.engine.with_bundled_model", resolved)


@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("example", EXAMPLES)
def test_it_runs_and_prints_what_it_says(
    example: list[Block], spaces: list[Space], capsys: pytest.CaptureFixture[str]
) -> None:
    space: Space = {}
    spaces.append(space)
    for block in example:
        name = f"{block.page}:{block.line}"
        # Prompt programs read their own source, as they would in a notebook.
        lines = block.text.splitlines(keepends=True)
        linecache.cache[name] = (len(block.text), None, lines, name)
        exec(compile(block.text, name, "exec"), space)
    shown = capsys.readouterr().out.splitlines()
    for block in example:
        for expected in EXPECTATION.findall(block.text):
            assert is_shown(expected, shown), f"{expected!r} is not in {shown}"


def test_what_is_not_run_compiles_and_says_why() -> None:
    for block in blocks("python"):
        if block.mark.startswith(NOT_RUN) or block.page in SERVED:
            assert block.page in SERVED or re.fullmatch(
                re.escape(NOT_RUN) + r"needs .+ -->", block.mark
            )
            compile(block.text, f"{block.page}:{block.line}", "exec")


def test_the_quickstart_has_two_steps_for_both_frameworks() -> None:
    quick = [block.text for block in blocks("python") if block.page == "docs/quickstart.md"]
    for framework in ("langchain", "llama_index"):
        first, second = (text for text in quick if f"ragcache_integrations.{framework}" in text)
        assert "print(stats.requests, stats.store_calls, stats.hits)  # 2 1 1" in first
        assert not ENGINE.search(first)
        assert ENGINE.search(second)


def test_the_readme_begins_with_an_example_of_ten_lines_that_shows_what_it_prints() -> None:
    first = next(block.text for block in blocks("python") if block.page == "README.md")
    assert len([line for line in first.splitlines() if line]) <= 10
    assert EXPECTATION.search(first)
