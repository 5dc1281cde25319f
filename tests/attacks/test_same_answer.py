"""Answers that say something else although only signs, case or marks differ.

They count as wrong wherever a bound on wrong answers is learnt or proven, and ``ragcache
cache-report`` recommends nothing from a log that cannot show a wrong hit.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.answers import AnswerStats
from ragcache_integrations.cli import command as cli
from tests.support.embeddings import LangChainEmbeddings, LlamaIndexEmbeddings
from tests.support.waiting import wait_until

DIFFERENT = [
    ("-3 %", "3 %"),
    ("The balance is -120 euros.", "The balance is 120 euros."),
    ("grade A+", "grade A-"),
    ("blood group O+", "blood group O-"),
    ("written in C", "written in C++"),
    ("F", "F#"),
    ("≤ 5 days", "≥ 5 days"),
    ("x = 1", "x != 1"),
    ("x == y", "x === y"),
    ("a && b", "a || b"),
    ("It ships to the US.", "It ships to us."),
    ("Ask the IT office.", "Ask the it office."),
    ("10 mN", "10 MN"),
    ("16 Gb", "16 GB"),
    ("10", "10 %"),
    ("10 %", "10 ‰"),
    ("$20", "£20"),
    ("vitamin A", "vitamin"),
    ("plan A", "plan"),
    ("1.5 tablets", "15 tablets"),
    ("1,5 Tabletten", "15 Tabletten"),
    ("version 3.11", "version 31.1"),
    ("pages 3-4", "pages 34"),
    ("1/2", "12"),
    ("2^3", "23"),
    ("5²", "52"),
    ("5!", "5"),
    ("10.0.0.1", "100.0.1"),
    ("at 1:30", "at 13:0"),
    ("[0, 1)", "[0, 1]"),
    ("(0, 1)", "[0, 1]"),
    ("✓", "✗"),
    ("↑", "↓"),
    ("😀", "😡"),
    ("use -o", "use -O"),
    ("-v", "v"),
    ("/usr", "usr"),
    ("call getId()", "call getID()"),
    ("self._name", "self.__name"),
    ("set $HOME", "set HOME"),
    ("Please resign the form.", "Please re-sign the form."),
    ("well, go", "we'll go"),
    ("Maße", "Masse"),
    ("CO", "Co"),
    ("¬p", "p"),
    ("~5", "5"),
    ("*", "**"),
]

SAME = [
    ("Yes", "yes"),
    ("Homer", "homer"),
    ("Within two weeks.", "Within two weeks"),
    ("Within two weeks.", "within two weeks"),
    ("The parcel comes on Monday.", "the parcel comes on Monday."),
    ("It costs 5 euros.", "It costs 5 euros"),
    ("two  weeks", "two weeks"),
    (" two weeks\n", "two weeks"),
    ("Élodie Martin.", "Élodie Martin"),
    ("-3 %", "-3 %"),
    ("C++", "C++"),
    ("Yes.", "yes"),
]

NEAR = ("rome is it nice", "rome is it lovely")


def _embed(question: str) -> list[float]:
    """All but the last word decide where a question is; the last one moves it a little."""
    *subject, last = question.split()
    vector = np.random.default_rng(zlib.crc32(" ".join(subject).encode())).standard_normal(24)
    vector /= np.linalg.norm(vector)
    step = np.random.default_rng(zlib.crc32(last.encode())).standard_normal(24)
    vector += 0.05 * step / np.linalg.norm(step)
    return [float(value) for value in vector / np.linalg.norm(vector)]


class _OnePage(BaseRetriever):
    """Finds one page for every question."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="the page", id_="1"), score=1.0)]


class _Told(BaseSynthesizer):
    """Answers as it was told."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        super().__init__(llm=MockLLM())
        self._answer = answer

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None: ...

    def get_response(self, query_str: str, text_chunks: Any, **_: Any) -> Any:
        return self._answer(query_str)

    async def aget_response(self, query_str: str, text_chunks: Any, **_: Any) -> Any:
        return self._answer(query_str)


class _LangChain:
    """A cache in front of a chain that answers as it was told."""

    def __init__(self, answer: Callable[[str], str], **knobs: Any) -> None:
        self._cached = langchain.AnswerCache(
            chain=RunnableLambda(lambda inputs: answer(inputs["input"])),
            retriever=RunnableLambda(lambda question: [Document("the page", id="1")]),
            documents_key="context",
            embeddings=LangChainEmbeddings(_embed),
            guard=False,
            **knobs,
        )

    def ask(self, question: str) -> str:
        return str(self._cached.invoke(question))

    async def aask(self, question: str) -> str:
        return str(await self._cached.ainvoke(question))

    def stats(self) -> AnswerStats:
        return self._cached.stats()


class _LlamaIndex:
    """A cache in front of a query engine that answers as it was told."""

    def __init__(self, answer: Callable[[str], str], **knobs: Any) -> None:
        engine = RetrieverQueryEngine(retriever=_OnePage(), response_synthesizer=_Told(answer))
        self._cached = llama_index.AnswerCache(
            engine, embed_model=LlamaIndexEmbeddings(_embed), guard=False, **knobs
        )

    def ask(self, question: str) -> str:
        return str(self._cached.query(question))

    async def aask(self, question: str) -> str:
        return str(await self._cached.aquery(question))

    def stats(self) -> AnswerStats:
        return self._cached.stats()


FRAMEWORKS = [_LangChain, _LlamaIndex]


async def _counted_wrong(
    make: Callable[..., Any], pair: tuple[str, str], asynchronous: bool
) -> bool:
    """Whether a hit that is answered again counts as wrong, with these two answers."""
    answers = dict(zip(NEAR, pair, strict=True))
    cached = make(answers.__getitem__, start_tolerance=0.6)
    for question in NEAR:
        if asynchronous:
            await cached.aask(question)
        else:
            await asyncio.to_thread(cached.ask, question)
    # A check counts when it begins, and its two answers as a label when they have been compared.
    await asyncio.to_thread(wait_until, lambda: cached.stats().learning.labels == 1)
    stats = cached.stats()
    assert (stats.lookups, stats.hits, stats.checks, stats.failed_checks) == (2, 1, 1, 0)
    return bool(stats.wrong)


@pytest.mark.parametrize("make", FRAMEWORKS)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
class TestChecks:
    async def test_answers_that_say_something_else(
        self, make: Callable[..., Any], asynchronous: bool
    ) -> None:
        pairs = [*DIFFERENT, *((other, one) for one, other in DIFFERENT)]
        same = [pair for pair in pairs if not await _counted_wrong(make, pair, asynchronous)]
        assert same == []

    async def test_answers_that_say_the_same(
        self, make: Callable[..., Any], asynchronous: bool
    ) -> None:
        wrong = [pair for pair in SAME if await _counted_wrong(make, pair, asynchronous)]
        assert wrong == []


def _stream(pairs: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield 1,600 questions, each with its answer: two near ones after each other."""
    draw = random.Random(64)
    for number in range(800):
        one, other = draw.choice(pairs)
        yield f"what is {number} of the first", one
        yield f"what is {number} of the second", other


@pytest.mark.slow
@pytest.mark.parametrize("make", FRAMEWORKS)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
class TestLearning:
    @pytest.mark.parametrize(
        "pairs",
        [
            [("-3 %", "3 %"), ("x = 1", "x != 1"), ("5!", "5")],
            [("written in C", "written in C++"), ("F", "F#")],
            [("10 mN", "10 MN"), ("16 Gb", "16 GB"), ("CO", "Co")],
            [("1.5 tablets", "15 tablets"), ("1/2", "12"), ("10.0.0.1", "100.0.1")],
            [("vitamin A", "vitamin"), ("plan A", "plan")],
            [("✓", "✗"), ("😀", "😡"), ("↑", "↓")],
        ],
        ids=["signs", "languages", "case", "dots", "articles", "symbols"],
    )
    async def test_nothing_is_learnt_from_answers_that_say_something_else(
        self, make: Callable[..., Any], asynchronous: bool, pairs: list[tuple[str, str]]
    ) -> None:
        truth = dict(_stream(pairs))
        cached = make(truth.__getitem__, capacity=5000)
        wrong = 0
        for question, right in truth.items():
            got = await cached.aask(question) if asynchronous else cached.ask(question)
            wrong += got != right
        assert (wrong, cached.stats().hits, cached.stats().tolerance) == (0, 0, 0)

    async def test_answers_that_say_the_same_still_open_the_tolerance(
        self, make: Callable[..., Any], asynchronous: bool
    ) -> None:
        truth = dict(_stream(SAME))
        cached = make(truth.__getitem__, capacity=5000)
        for question in truth:
            await cached.aask(question) if asynchronous else cached.ask(question)
        assert cached.stats().tolerance > 0
        assert cached.stats().hits > 100


SUBJECTS = ["card", "loan", "account", "deposit", "transfer", "fund", "bond", "share"]
FORMS = ["what is the fee of the {}", "what is the fee for the {}", "how high is the fee of the {}"]


def _rows(fill: Callable[[dict[str, Any], int, random.Random], None]) -> list[dict[str, Any]]:
    """Return 900 requests, each a form of a question about a subject."""
    draw = random.Random(5)
    rows = []
    for _ in range(900):
        subject = draw.randrange(len(SUBJECTS))
        row: dict[str, Any] = {"question": draw.choice(FORMS).format(SUBJECTS[subject])}
        fill(row, subject, draw)
        rows.append(row)
    return rows


def _report(rows: list[dict[str, Any]], folder: Path, capsys: Any) -> dict[str, Any]:
    log = folder / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert cli.main(["cache-report", str(log), "--error", "0.01", "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return data


def _one_page(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    row["documents"] = [{"id": "faq"}]


def _one_text(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    row["documents"] = [{"text": "All fees of the bank on one page."}]


def _all_pages(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    row["documents"] = [{"id": name} for name in draw.sample(["a", "b", "c"], 3)]


def _no_documents(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    row["documents"] = []


def _questions_alone(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    """The log has questions and nothing else."""


def _a_page_of_each_tenant(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    row["tenant"] = draw.choice(["north", "south"])
    row["documents"] = [{"id": row["tenant"]}]


def _few_answers(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    row["documents"] = [{"id": "faq"}]
    if draw.random() < 0.1:
        row["answer"] = "See the page."


def _empty_answers(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    row["documents"] = [{"id": "faq"}]
    row["answer"] = ""


def _pages_with_times(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    row["documents"] = [{"id": "faq"}]
    row["time"] = f"2026-03-01T{draw.randrange(24):02}:00:00Z"


def _pages_with_costs(row: dict[str, Any], subject: int, draw: random.Random) -> None:
    row["documents"] = [{"id": "faq"}]
    row |= {"seconds": 2.0, "cost": 0.01}


@pytest.mark.parametrize(
    "fill",
    [
        _one_page,
        _one_text,
        _all_pages,
        _no_documents,
        _questions_alone,
        _a_page_of_each_tenant,
        _few_answers,
        _empty_answers,
        _pages_with_times,
        _pages_with_costs,
    ],
)
def test_a_log_that_cannot_show_a_wrong_hit_recommends_nothing(
    fill: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not _report(_rows(fill), tmp_path, capsys)["tolerance"]


@pytest.mark.parametrize(
    "answers",
    [
        ["-1", "1"],
        ["C", "C++", "C#"],
        ["< 5", "> 5", "= 5"],
        ["5 mW", "5 MW"],
        ["$5", "£5", "€5"],
        ["👍", "👎"],
        ["1.5", "15", "1,5"],
        ["1/2", "12", "1-2"],
        ["O+", "O-"],
        ["vitamin A", "vitamin"],
    ],
)
def test_a_report_counts_answers_that_say_something_else_as_wrong(
    answers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(row: dict[str, Any], subject: int, draw: random.Random) -> None:
        # Even the same question has a changing answer: every way of serving is wrong at times.
        row["documents"] = [{"id": "faq"}]
        row["answer"] = draw.choice(answers)

    data = _report(_rows(fill), tmp_path, capsys)
    assert not data["tolerance"]
    assert data["tolerances"][0]["guarded"]["wrong"]["share"] > 0.3


def test_a_report_still_recommends_where_answers_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(row: dict[str, Any], subject: int, draw: random.Random) -> None:
        row["documents"] = [{"id": SUBJECTS[subject]}]
        answer = f"The fee is {subject} euros."
        row["answer"] = draw.choice([answer, answer[:-1], answer[0].lower() + answer[1:]])

    assert _report(_rows(fill), tmp_path, capsys)["tolerance"] > 0
