"""What the three synthesis methods ask, and what they make of the answers."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.adaptive import (
    ModelAnswer,
    ModelRequest,
    Synthesis,
    SynthesisConfig,
    Synthesised,
    SynthesisPrompts,
    SynthesisSettings,
    astream_synthesis,
    asynthesise,
    stream_synthesis,
    synthesise,
)
from ragcache_integrations.adaptive.synthesis import (
    NOT_FOUND,
    NOTHING_TO_READ,
    best,
    found_nothing,
    mean_logprob,
    self_rated,
)
from ragcache_integrations.core.generation import Usage
from ragcache_integrations.errors import ConfigurationError
from tests.adaptive.askers import Answer, ScriptedAsker, documents, read, said

METHODS: tuple[Synthesis, ...] = ("stuff", "map_reduce", "map_rerank")
QUESTION = "Who purrs?"
PAGES = ("Cats purr.", "Dogs bark.", "Cows moo.")


def config(method: Synthesis, num_chunks: int = 3) -> SynthesisConfig:
    return SynthesisConfig(method, num_chunks, 30 if method == "map_reduce" else None)


def streamed(*arguments: Any) -> Synthesised:
    *texts, result = stream_synthesis(*arguments)
    assert isinstance(result, Synthesised)
    assert "".join(str(text) for text in texts).strip() == result.text
    return result


def awaited(*arguments: Any) -> Synthesised:
    return asyncio.run(asynthesise(*arguments))


def astreamed(*arguments: Any) -> Synthesised:
    async def collect() -> list[str | Synthesised]:
        async with aclosing(astream_synthesis(*arguments)) as pieces:
            return [piece async for piece in pieces]

    *texts, result = asyncio.run(collect())
    assert isinstance(result, Synthesised)
    assert "".join(str(text) for text in texts).strip() == result.text
    return result


WAYS = (synthesise, awaited, streamed, astreamed)
every_way = pytest.mark.parametrize("way", WAYS)
every_method = pytest.mark.parametrize("method", METHODS)


def by_page(**answers: ModelAnswer) -> Answer:
    """Answer by the first word of the only document; anything else with ``other``."""

    def answer(request: ModelRequest) -> ModelAnswer:
        texts = read(request)
        return answers.get(texts[0].split()[0] if len(texts) == 1 else "", answers["other"])

    return answer


def test_the_ways_take_the_same_arguments() -> None:
    ways = (synthesise, asynthesise, stream_synthesis, astream_synthesis)
    signatures = {tuple(inspect.signature(way).parameters.values()) for way in ways}
    assert len(signatures) == 1


# How often is asked, and what


@every_way
@pytest.mark.parametrize("chunks", [1, 2, 7])
@pytest.mark.parametrize(
    ("method", "more"), [("stuff", None), ("map_rerank", 0), ("map_reduce", 1)]
)
def test_so_many_calls_as_the_paper_says(
    way: Callable[..., Synthesised], method: Synthesis, more: int | None, chunks: int
) -> None:
    asker = ScriptedAsker()
    pages = documents(*(f"Page {number}." for number in range(9)))
    result = way(asker, QUESTION, pages, config(method, chunks))
    calls = {"stuff": 1, "map_rerank": chunks, "map_reduce": chunks + 1}[method]
    assert len(asker.requests) == len(result.steps) == result.calls == calls
    assert result.usage == Usage(10 * calls, 2 * calls, 4 * calls)


@every_method
def test_every_prompt_is_system_then_documents_then_question(method: Synthesis) -> None:
    asker = ScriptedAsker()
    synthesise(asker, QUESTION, documents(*PAGES), config(method))
    systems = set()
    for request in asker.requests:
        system, user = request.prompt.messages
        systems.add(system)
        first, *_, last = user.parts
        assert first in request.prompt.documents
        assert QUESTION in str(last)
        assert not any(QUESTION in str(part) for part in user.parts[:-1])
    assert len(systems) == 1


def test_all_methods_begin_alike_over_a_chunk() -> None:
    beginnings = set()
    for method in METHODS:
        asker = ScriptedAsker()
        synthesise(asker, QUESTION, documents(*PAGES), config(method))
        system, user = min(asker.requests, key=lambda request: read(request)[0]).prompt.messages
        beginnings.add((system, user.parts[0]))
    assert len(beginnings) == 1


def test_stuff_puts_the_first_chunks_into_one_prompt() -> None:
    asker = ScriptedAsker()
    synthesise(asker, QUESTION, documents(*PAGES), config("stuff", 2))
    (request,) = asker.requests
    assert read(request) == ["Cats purr.", "Dogs bark."]
    assert [document.id for document in request.prompt.documents] == ["id-0", "id-1"]


@every_way
def test_map_reduce_answers_from_the_summaries(way: Callable[..., Synthesised]) -> None:
    asker = ScriptedAsker(
        by_page(
            Cats=said("they purr "),
            Dogs=said(NOT_FOUND),
            Cows=said("they moo"),
            other=said("Cats.", -0.25, -0.75),
        )
    )
    result = way(asker, QUESTION, documents(*PAGES), config("map_reduce"))
    *mappers, reduce = asker.requests
    assert sorted(read(request) for request in mappers) == [[page] for page in sorted(PAGES)]
    assert {request.max_tokens for request in mappers} == {40}
    assert all("30 words" in request.prompt.messages[1].text for request in mappers)
    assert read(reduce) == ["they purr", NOT_FOUND, "they moo"]
    assert result.text == "Cats."
    assert [citation.index for citation in result.citations] == [0, 2]
    assert (result.confidence, result.confidence_kind) == (-0.5, "logprob")
    assert [step.text for step in result.steps] == ["they purr", NOT_FOUND, "they moo", "Cats."]


def test_a_summary_that_says_nothing_is_not_read() -> None:
    asker = ScriptedAsker(by_page(Cats=said("purr"), other=said("")))
    result = synthesise(asker, QUESTION, documents(*PAGES), config("map_reduce"))
    assert read(asker.requests[-1]) == ["purr"]
    assert result.calls == 4


# map_rerank


@every_way
def test_the_surest_answer_wins(way: Callable[..., Synthesised]) -> None:
    asker = ScriptedAsker(
        by_page(Cats=said("a", -1.0, -0.2), Dogs=said("b", -0.5), other=said("c", -0.7))
    )
    result = way(asker, QUESTION, documents(*PAGES), config("map_rerank"))
    assert (result.text, result.confidence, result.confidence_kind) == ("b", -0.5, "logprob")
    assert [citation.id for citation in result.citations] == ["id-1"]


def test_not_in_the_document_comes_last() -> None:
    asker = ScriptedAsker(
        by_page(Cats=said(NOT_FOUND, -0.0), Dogs=said("b", -9.0), other=said("", -0.0))
    )
    result = synthesise(asker, QUESTION, documents(*PAGES), config("map_rerank"))
    assert result.text == "b"


@every_method
def test_nothing_is_cited_where_nothing_was_found(method: Synthesis) -> None:
    asker = ScriptedAsker(lambda request: said("It is not in the document.", -0.1))
    result = synthesise(asker, QUESTION, documents(*PAGES), config(method))
    assert result.citations == ()
    assert not result.steps[-1].found


def test_summaries_that_do_not_answer_are_not_cited() -> None:
    asker = ScriptedAsker(by_page(Cats=said("purr"), Dogs=said("bark"), other=said(NOT_FOUND)))
    result = synthesise(asker, QUESTION, documents(*PAGES), config("map_reduce"))
    assert [step.found for step in result.steps] == [True, True, False, False]
    assert result.citations == ()


candidates = st.lists(
    st.tuples(st.booleans(), st.none() | st.floats(max_value=0, allow_nan=False)), min_size=1
)


@given(candidates)
def test_the_best_is_beaten_by_none(given: list[tuple[bool, float | None]]) -> None:
    def value(place: int) -> tuple[bool, bool, float]:
        found, confidence = given[place]
        return found, confidence is not None, confidence or 0.0

    chosen = best(given)
    assert all(value(chosen) >= value(place) for place in range(len(given)))
    assert all(value(chosen) > value(place) for place in range(chosen))


@given(st.lists(st.floats(min_value=-50, max_value=0), min_size=1))
def test_confidence_is_the_mean(logprobs: list[float]) -> None:
    mean = mean_logprob(said("x", *logprobs).logprobs)
    assert mean == pytest.approx(sum(logprobs) / len(logprobs), abs=1e-9)


def test_confidence_of_odd_tokens() -> None:
    assert mean_logprob(()) is None
    assert mean_logprob(said("x", -1.0, math.nan).logprobs) == -math.inf
    assert mean_logprob(said("x", -1.0, -math.inf).logprobs) == -math.inf


# Models without log-probabilities


def scored(request: ModelRequest) -> ModelAnswer:
    assert "Score:" in request.prompt.messages[1].text
    score = {"Cats": 20, "Dogs": 90, "Cows": 100}[read(request)[0].split()[0]]
    text = NOT_FOUND if score == 100 else f"{score} it is"
    return said(f"Answer: {text}\nScore: {score}")


@every_way
def test_a_model_without_logprobs_rates_itself(
    way: Callable[..., Synthesised], caplog: pytest.LogCaptureFixture
) -> None:
    asker = ScriptedAsker(scored, gives_logprobs=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            result = way(asker, QUESTION, documents(*PAGES), config("map_rerank"))
    assert result.calls == 3
    assert (result.text, result.confidence, result.confidence_kind) == (
        "90 it is",
        0.9,
        "self_rated",
    )
    assert not any(request.logprobs for request in asker.requests)
    (record,) = (one for one in caplog.records if "log-probabilities" in one.message)
    assert "a score from 0 to 100 that it gives itself" in record.message


@every_way
def test_a_model_that_promised_logprobs_is_asked_again_once(
    way: Callable[..., Synthesised],
) -> None:
    asker = ScriptedAsker(lambda request: said("b") if request.logprobs else scored(request))
    first = way(asker, QUESTION, documents(*PAGES), config("map_rerank"))
    second = way(asker, QUESTION, documents(*PAGES), config("map_rerank"))
    assert first.text == second.text == "90 it is"
    assert (first.calls, second.calls) == (6, 3)


@pytest.mark.parametrize("promised", [True, False])
def test_logprobs_can_be_insisted_on(promised: bool) -> None:
    asker = ScriptedAsker(lambda request: said("b"), gives_logprobs=promised)
    settings = SynthesisSettings(ranking="logprobs")
    with pytest.raises(ConfigurationError, match="needs a model that gives log-probabilities"):
        synthesise(asker, QUESTION, documents(*PAGES), config("map_rerank"), settings)


@every_method
def test_self_rating_asks_for_no_logprobs(
    method: Synthesis, caplog: pytest.LogCaptureFixture
) -> None:
    asker = ScriptedAsker(lambda request: said("b\nScore: 50"))
    settings = SynthesisSettings(ranking="self_rated")
    synthesise(asker, QUESTION, documents(*PAGES), config(method), settings)
    assert not any(request.logprobs for request in asker.requests)
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        ("Answer: Cats\nScore: 80", "Cats", 0.8),
        ("Cats purr.\n**Score:** 12.5", "Cats purr.", 0.125),
        ("Cats (score 100)", "Cats", 1.0),
        ("The score: 3 to 1\nScore: 70", "The score: 3 to 1", 0.7),
        ("Cats\nScore: 500", "Cats", None),
        ("Cats", "Cats", None),
        ("Score: high", "Score: high", None),
        ("", "", None),
    ],
)
def test_scores_are_read(text: str, answer: str, score: float | None) -> None:
    assert self_rated(text) == (answer, score)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        NOT_FOUND,
        "The answer is not in the document",
        "That is NOT MENTIONED in the passage.",
        "It was not stated anywhere in the given documents",
        "not found in these texts",
        "That isn't in the document.",
        "It doesn\u2019t appear in the provided passages",
        "not in the above documents",
        "The name is not given in the summaries.",
    ],
)
def test_an_answer_that_finds_nothing(text: str) -> None:
    assert found_nothing(text)


@pytest.mark.parametrize("text", ["Cats.", "in the document", "not in Kansas", "No"])
def test_an_answer_that_finds_something(text: str) -> None:
    assert not found_nothing(text)


# Bad input


@every_way
@every_method
def test_without_chunks_nobody_is_asked(way: Callable[..., Synthesised], method: Synthesis) -> None:
    asker = ScriptedAsker()
    assert way(asker, QUESTION, [], config(method)) == Synthesised(NOTHING_TO_READ, method)
    assert not asker.requests


@every_way
@pytest.mark.parametrize("question", ["", " ", None, 3])
def test_a_question_is_needed(way: Callable[..., Synthesised], question: Any) -> None:
    asker = ScriptedAsker()
    with pytest.raises(ConfigurationError, match="question must be a non-empty string"):
        way(asker, question, documents(*PAGES), config("stuff"))
    assert not asker.requests


def test_chunks_are_documents() -> None:
    with pytest.raises(ConfigurationError, match="chunks must be PromptDocument, got str"):
        synthesise(ScriptedAsker(), QUESTION, ["text"], config("stuff"))  # type: ignore[list-item]  # what users may pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("refine", 3), "method must be one of stuff, map_reduce, map_rerank, got 'refine'"),
        (("stuff", 0), "num_chunks must be a whole number of at least 1, got 0"),
        (("stuff", True), "num_chunks must be a whole number"),
        (("stuff", 3, 30), "intermediate_length is for map_reduce, got 30 with stuff"),
        (("map_reduce", 3), "map_reduce needs intermediate_length"),
        (("map_reduce", 3, 0), "map_reduce needs intermediate_length"),
    ],
)
def test_wrong_configurations(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SynthesisConfig(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, or None, got 0"),
        ({"context_window": 1}, "context_window must be"),
        ({"max_concurrency": None}, "max_concurrency must be"),
        ({"ranking": "luck"}, "ranking must be one of auto, logprobs, self_rated, got 'luck'"),
        ({"prompts": "Answer!"}, "prompts must be SynthesisPrompts, got str"),
    ],
)
def test_wrong_settings(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SynthesisSettings(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answer": "Answer!"}, "answer must hold {question}"),
        ({"answer": "{question} {words}"}, "answer may hold question as variables, got words"),
        ({"summary": "{question} {}"}, "summary may hold question, words as variables"),
        ({"reduce": "{question"}, "reduce is no template"),
        ({"system": None}, "system must be a text"),
    ],
)
def test_wrong_prompts(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SynthesisPrompts(**arguments)


def test_own_prompts_are_asked_and_braces_in_the_question_stay() -> None:
    asker = ScriptedAsker()
    settings = SynthesisSettings(
        prompts=SynthesisPrompts(system="", answer="Q: {question} {{literally}}")
    )
    synthesise(asker, "what is {words}?", documents("a"), config("stuff"), settings)
    (message,) = asker.requests[0].prompt.messages
    assert message.parts[-1] == "Q: what is {words}? {literally}"
