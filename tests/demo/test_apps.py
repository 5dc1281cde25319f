"""Both frameworks' applications on the real engine, over a real store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from ragcache_integrations.engine import Message, Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.resources import load_questions
from ragcache_workbench.demo import langchain, llama_index
from ragcache_workbench.demo.apps import App, Corpus
from ragcache_workbench.demo.engines import StockChunk
from ragcache_workbench.demo.settings import DemoSettings

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


class Stock:
    """Stands in for stock vLLM, over the shared engine: starting another one takes half a minute.

    The real one is in ``test_cli.py``.
    """

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._engine = engine

    def stream(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int
    ) -> Iterator[StockChunk]:
        prompt = Prompt(tuple(Message(turn["role"], turn["content"]) for turn in messages))
        answer = self._engine.generate(prompt, SamplingOptions(max_tokens=max_tokens))
        usage = answer.usage
        yield StockChunk(answer.text[:3], usage.prompt_tokens, usage.cached_tokens)
        yield StockChunk(answer.text[3:], usage.prompt_tokens, usage.cached_tokens)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(1000)


@pytest.fixture(scope="module", params=["langchain", "llama_index"])
def apps(request: pytest.FixtureRequest, corpus: Corpus, engine: RAGCacheEngine) -> tuple[App, ...]:
    stock: Any = Stock(engine)
    settings = DemoSettings(top_k=3, tolerance=0.3, max_tokens=6)
    module: Any = langchain if request.param == "langchain" else llama_index
    made: tuple[App, ...] = module.make_apps(corpus, stock, [(engine, "")], settings)
    return made


def test_the_swap_changes_no_answer(apps: tuple[App, ...]) -> None:
    before, after = apps
    for question in load_questions()[:5]:
        old, new = before.ask(question.text), after.ask(question.text)
        assert old.document_ids == new.document_ids
        assert question.passage_id in old.document_ids
        assert old.answer == new.answer != ""
        assert old.prompt_tokens == new.prompt_tokens > 100
        assert new.cached_prompt_tokens > 0  # the other side has just asked the same engine


def test_what_is_observed(apps: tuple[App, ...]) -> None:
    before, after = apps
    question = load_questions()[6].text
    rephrased = f"{question} please"
    for app, asked, hit, embedded in (
        (before, question, False, True),
        (before, question, False, True),
        (after, question, False, True),
        (after, question, True, False),
        (after, rephrased, True, True),
    ):
        seen = app.ask(asked)
        assert seen.hit == hit
        assert seen.store_calls == (0 if hit else 1)
        assert (seen.embedding_ms > 0.2) == embedded  # else it was found in a memo
        assert len(seen.document_ids) == 3
        assert 0 < seen.retrieval_ms < seen.first_token_ms
        assert 0 < seen.ttft_ms < seen.first_token_ms < seen.end_to_end_ms
