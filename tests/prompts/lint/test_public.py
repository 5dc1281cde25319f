"""The linter finds in public prompts what a careful reader does, and nothing in mended ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.prompts import PromptTemplate
from llama_index.core.prompts import BasePromptTemplate

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.prompts.lint.rules import REMEDIES, LintReport

from .public_prompts import PUBLIC, STUFF, Public

DOCS = (Path(__file__).parents[3] / "docs/lint.md").read_text(encoding="utf-8")


def linted(prompt: Any) -> LintReport:
    if isinstance(prompt, BasePromptTemplate):
        return llama_index.lint_prompt(prompt)
    return langchain.lint_prompt(prompt)


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.source)
def test_what_is_found(public: Public) -> None:
    report = linted(public.prompt)
    assert {(finding.code, finding.part) for finding in report.findings} == public.found
    assert len(report.findings) == len(public.found)
    for finding in report.findings:
        assert finding.recomputed_tokens >= 16
        assert finding.remedy == REMEDIES[finding.code]
        assert 0 <= finding.token < report.prompt_tokens


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.source)
def test_nothing_is_found_in_the_mended_prompt(public: Public) -> None:
    report = linted(public.mended)
    assert report.findings == ()
    assert report.recomputed_tokens < 16


def test_nothing_is_found_where_there_is_nothing() -> None:
    """langchain_classic's stuff_prompt.py is laid out as it should be."""
    assert langchain.lint_prompt(PromptTemplate.from_template(STUFF)).findings == ()


def test_the_page_lists_all_of_them() -> None:
    assert len(PUBLIC) == 10
    for public in PUBLIC:
        repository, path = public.source.split(", ")[:2]
        assert f"`{repository}`" in DOCS
        for name in re.findall(r"\w+\.(?:py|md)", path):
            assert name in DOCS
        for code, part in public.found:
            assert f"`{code}`" in DOCS
            assert part.strip('"') in DOCS


def test_the_page_explains_every_code() -> None:
    for code in REMEDIES:
        assert f"`{code}`" in DOCS, code
