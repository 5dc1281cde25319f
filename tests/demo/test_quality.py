"""What the demo says of answers' quality: several ways of finding them, the same questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import Passage, load_passages, load_questions
from ragcache_workbench.demo.quality import (
    BLOCKS,
    WAYS,
    Quality,
    answer_quality,
    block_quality,
    documents_of,
)
from ragcache_workbench.demo.report import render, show
from ragcache_workbench.demo.run import DemoResult, scored_questions
from ragcache_workbench.demo.settings import DemoSettings

QUESTIONS = load_questions()[:2]


class Store:
    """Finds the passage that answers, then others."""

    def __init__(self) -> None:
        self._passages = {passage.id: passage for passage in load_passages()}

    def nearest(self, questions: Sequence[str], k: int) -> list[list[str]]:
        answering = {question.text: question.passage_id for question in load_questions()}
        return [[answering[one], *list(self._passages)[: k - 1]] for one in questions]

    def passage(self, document_id: str) -> Passage:
        return self._passages[document_id]


STORE: Any = Store()


@pytest.mark.engine
def test_caching_changes_no_answer(engine: RAGCacheEngine) -> None:
    documents = documents_of(STORE, QUESTIONS, 3)
    assert [len(document) for document in documents] == [3, 3]
    assert documents[0][0].id == QUESTIONS[0].passage_id
    answered: list[int] = []
    scored = answer_quality(engine, QUESTIONS, documents, lambda: answered.append(1))
    assert [one.way for one in scored] == list(WAYS)
    assert len(answered) == len(WAYS) * len(QUESTIONS)
    full, cached, reversed_, mapped = scored
    assert (full.same, full.cached) == (1, 0)
    assert cached.same == 1
    assert cached.cached > 0.8
    assert cached.f1 == full.f1
    assert reversed_.same < 1, "noise depends on the order"
    assert all(0 <= one.f1 <= 1 for one in (full, reversed_, mapped))


@pytest.mark.engine
def test_block_by_block_most_is_reused_and_the_answers_are_others() -> None:
    documents = documents_of(STORE, QUESTIONS, 3)
    full = Quality(next(iter(WAYS)), 0, 0, 1, 0, ("said", "said"))
    eager = {"enforce_eager": True}
    with RAGCacheEngine(kv_cache_gib=0.1, reuse="anywhere", vllm_args=eager) as engine:
        none, some = block_quality(engine, QUESTIONS, documents, full)
        assert (engine.reuse, engine.link_tokens) == ("anywhere", 16)
    assert (none.way, some.way) == tuple(BLOCKS.values())
    assert none.cached > some.cached > 0.5
    assert none.texts != some.texts
    assert (none.same, some.same) == (0, 0)


def test_scores_stand_in_the_report_and_on_the_terminal(
    result: DemoResult, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console  # noqa: PLC0415 - writes to what is captured now

    assert "How good the answers are" not in render(result), "random weights"
    assert "quality" not in result.as_dict()
    quality = (
        Quality("computed in full", 0.3456, 0.25, 1.0, 0.0, (QUESTIONS[0].answers[0], "in full")),
        Quality("map_reduce", 0, 0, 0, 0, ("mapped", "mapped")),
        Quality(BLOCKS[16], 0.3333, 0, 0, 0, ("in <blocks>", "in blocks")),
    )
    scored = replace(result, quality=quality, scored=tuple(QUESTIONS))
    page = render(scored)
    assert "All 2 answers" in page
    assert page.count('class="good"') == render(result).count('class="good"') + 1
    assert "in &lt;blocks&gt;" in page
    assert "mapped" not in page
    assert "How good the answers are" in page
    assert "0.346" in page
    right = {"f1": 0.3456, "exact": 0.25, "same": 1.0, "cached": 0.0}
    assert scored.as_dict()["quality"]["computed in full"] == right
    assert scored.as_dict()["blocks"] == {"16": 0.3333}
    show(scored, Console(width=120))
    assert "0.346" in capsys.readouterr().out


def test_which_questions_are_scored_depends_on_the_seed() -> None:
    drawn = scored_questions(DemoSettings(scored=30))
    assert len(set(drawn)) == 30
    assert drawn == scored_questions(DemoSettings(scored=30))
    assert drawn != scored_questions(DemoSettings(scored=30, seed=1))


def test_no_more_is_scored_than_there_are_questions() -> None:
    assert DemoSettings(scored=0).scored == 0
    for wrong in (-1, len(load_questions()) + 1):
        with pytest.raises(ConfigurationError, match="scored"):
            DemoSettings(scored=wrong)
