"""Relevance checks: what is asked, what is made of the answers, and what the engine computes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.engine import (
    Generation,
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.relevance import (
    RelevanceCheck,
    RelevanceSettings,
    Verdict,
)
from ragcache_integrations.resources import load_passages

DOCUMENTS = [PromptDocument(f"Cats number {n} purr. " * 30, f"c{n}") for n in range(4)]


class Answers:
    """A judge who says what it is told to."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers
        self.prompts: list[Prompt] = []
        self.options: list[SamplingOptions] = []

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        self.prompts += prompts
        self.options.append(options)
        return list(self.answers)

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        return self.ask(prompts, options)


@pytest.mark.parametrize(
    ("answer", "relevant"),
    [("yes", True), ("y", True), ("no", False), ("n", False), (" No.", False), ("perhaps", True)],
)
def test_an_answer_is_read_from_its_first_letter(answer: str, relevant: bool) -> None:
    verdict = RelevanceCheck(Answers(answer)).check("who purrs", DOCUMENTS[:1])
    assert verdict.relevant == (relevant,)
    assert verdict.kept == ((0,) if relevant else ())


def test_parallel_asks_about_each_document_by_itself_for_one_token_of_two() -> None:
    judge = Answers("yes", "no", "yes", "no")
    verdict = RelevanceCheck(judge).check("who purrs", DOCUMENTS)
    assert verdict == Verdict((True, False, True, False), (0, 2))
    assert [prompt.documents for prompt in judge.prompts] == [(doc,) for doc in DOCUMENTS]
    first, *others = (prompt.messages[0] for prompt in judge.prompts)
    assert all(message == first for message in others)  # what they share stands in front
    assert judge.options == [SamplingOptions(max_tokens=1, choice=("yes", "no"))]


@pytest.mark.parametrize(
    ("limit", "least", "kept"),
    [
        (None, 0, (0, 2, 3)),
        (8, 0, (0, 2, 3)),
        (6, 0, (0, 3)),  # the third is too long, the last one fits
        (2, 0, (3,)),
        (2, 1, (0,)),
    ],
)
def test_documents_stay_that_fit_in_addition_to_those_before_them(
    limit: int | None, least: int, kept: tuple[int, ...]
) -> None:
    documents = [PromptDocument("a" * length, f"{length}") for length in (3, 1, 4, 1)]
    settings = RelevanceSettings(min_documents=least, max_document_tokens=limit, count_tokens=len)
    verdict = RelevanceCheck(Answers("yes", "no", "yes", "yes"), settings).check("who", documents)
    assert verdict == Verdict((True, False, True, True), kept)


def test_the_limit_holds_for_an_empty_question_too() -> None:
    settings = RelevanceSettings(max_document_tokens=1)
    assert RelevanceCheck(Answers(), settings).check(" ", DOCUMENTS).kept == ()


def test_a_count_of_tokens_that_is_none_is_refused() -> None:
    settings = RelevanceSettings(max_document_tokens=1, count_tokens=lambda _: -1)
    with pytest.raises(ConfigurationError, match="the result of count_tokens must be a whole"):
        RelevanceCheck(Answers("yes"), settings).check("who", DOCUMENTS[:1])


@pytest.mark.parametrize(("least", "kept"), [(0, (1,)), (2, (0, 1)), (9, (0, 1, 2, 3))])
def test_so_many_documents_stay_at_least(least: int, kept: tuple[int, ...]) -> None:
    judge = Answers("no", "yes", "no", "no")
    check = RelevanceCheck(judge, RelevanceSettings(min_documents=least))
    assert check.check("who purrs", DOCUMENTS).kept == kept


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_shared_keeps_all_and_names_the_irrelevant_ones(said: list[bool]) -> None:
    documents = [PromptDocument(f"text {n}", str(n)) for n in range(len(said))]
    judge = Answers(json.dumps(said))
    verdict = RelevanceCheck(judge, RelevanceSettings(mode="shared")).check("why", documents)
    assert verdict.relevant == tuple(said)
    assert verdict.kept == tuple(range(len(said)))
    (prompt,) = judge.prompts
    assert prompt.documents == tuple(documents)
    named = [str(n + 1) in verdict.note.partition("first, ")[2] for n in range(len(said))]
    if all(said):
        assert not verdict.note
    elif any(said):
        assert named == [not helps for helps in said]
    else:
        assert verdict.note.startswith("None")


@pytest.mark.parametrize(
    ("answer", "relevant"),
    [
        ("[false, tr", (False, True, True, True)),
        ("I cannot say", (True, True, True, True)),
        ("[true, false, false, true, false, false]", (True, False, False, True)),
    ],
)
def test_an_answer_that_was_cut_off_keeps_the_rest(answer: str, relevant: tuple[bool, ...]) -> None:
    check = RelevanceCheck(Answers(answer), RelevanceSettings(mode="shared"))
    assert check.check("who purrs", DOCUMENTS).relevant == relevant


@pytest.mark.parametrize("mode", ["parallel", "shared"])
def test_no_documents_ask_nobody(mode: str) -> None:
    judge = Answers()
    check = RelevanceCheck(judge, RelevanceSettings(mode=mode))
    assert check.check("who purrs", []) == asyncio.run(check.acheck("who purrs", []))
    assert not judge.prompts


@pytest.mark.parametrize("mode", ["parallel", "shared"])
@pytest.mark.parametrize("query", ["", " \n"])
def test_an_empty_question_finds_all_documents_relevant(mode: str, query: str) -> None:
    judge = Answers()
    check = RelevanceCheck(judge, RelevanceSettings(mode=mode))
    verdict = check.check(query, DOCUMENTS)
    assert verdict == asyncio.run(check.acheck(query, DOCUMENTS))
    assert verdict == Verdict((True,) * 4, (0, 1, 2, 3))
    assert not judge.prompts


def test_bad_input_is_refused_in_words() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"mode": "joint"}, "mode must be one of parallel, shared"),
        ({"min_documents": -1}, "min_documents must be a whole number"),
        ({"max_document_tokens": 0}, "max_document_tokens must be a whole number of at least 1"),
        ({"mode": "shared", "max_document_tokens": 9}, "needs mode='parallel'"),
        ({"instruction": 3}, "instruction must be a text"),
    ]
    for settings, said in wrong:
        with pytest.raises(ConfigurationError, match=said):
            RelevanceSettings(**settings)
    with pytest.raises(ConfigurationError, match="query must be a string"):
        RelevanceCheck(Answers()).check(None, DOCUMENTS)  # type: ignore[arg-type] # on purpose


class Counted:
    """An engine's judge that remembers its answers."""

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._engine = engine
        self.answers: list[Generation] = []

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        self.answers = self._engine.generate_batch(prompts, options)
        return [answer.text for answer in self.answers]

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        self.answers = await self._engine.agenerate_batch(prompts, options)
        return [answer.text for answer in self.answers]


def long_documents() -> list[PromptDocument]:
    passages = load_passages()
    return [
        PromptDocument(" ".join(p.text for p in passages[4 * n : 4 * n + 4]), f"long{n}")
        for n in range(3)
    ]


@pytest.mark.engine
def test_the_engine_answers_with_one_token_of_two(engine: RAGCacheEngine) -> None:
    judge = Counted(engine)
    verdict = RelevanceCheck(judge).check("who got the first nobel prize", long_documents())
    assert all(len(answer.token_ids) == 1 for answer in judge.answers)
    assert all("yes".startswith(a.text) or "no".startswith(a.text) for a in judge.answers)
    assert all(answer.text for answer in judge.answers)
    assert len(verdict.relevant) == 3


@pytest.mark.engine
def test_another_question_finds_the_documents_of_a_parallel_check(engine: RAGCacheEngine) -> None:
    assert engine.reset_cache()
    judge = Counted(engine)
    check = RelevanceCheck(judge)
    check.check("who got the first nobel prize", long_documents())
    cold = [answer.usage.cached_tokens for answer in judge.answers]
    check.check("when does the sun set", long_documents())
    for before, answer in zip(cold, judge.answers, strict=True):
        assert answer.usage.cached_tokens > before
        rest = answer.usage.prompt_tokens - answer.usage.cached_tokens
        assert rest < engine.block_size + 60  # the question, and what is no whole block


@pytest.mark.engine
def test_the_answer_reuses_the_documents_of_a_shared_check(engine: RAGCacheEngine) -> None:
    assert engine.reset_cache()
    documents = long_documents()

    def lay_out(docs: Sequence[PromptDocument], asked: str) -> Prompt:
        return Prompt.rag(asked, docs, system="Answer from the documents.")

    check = RelevanceCheck(Counted(engine), RelevanceSettings(mode="shared"))
    verdict = asyncio.run(check.acheck("who got the first nobel prize", documents, lay_out))
    asked = f"{verdict.note}\n\nwho got the first nobel prize"
    usage = engine.generate(lay_out(documents, asked), SamplingOptions(max_tokens=1)).usage
    behind = len(engine.tokenize(asked)) + 8
    assert usage.prompt_tokens - usage.cached_tokens <= behind + engine.block_size
    assert usage.cached_tokens > 0.7 * usage.prompt_tokens
