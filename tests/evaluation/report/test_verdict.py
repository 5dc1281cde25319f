"""A report begins with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage
from rich.console import Console
from typing_extensions import override

from ragcache_workbench.evaluation import EvalRun, evaluate, evaluate_grid
from ragcache_workbench.evaluation.report.labels import FOLLOWED
from ragcache_workbench.evaluation.report.report import (
    _Candidate,
    _sentence,
    gather,
    render,
    show,
    verdicts,
)
from ragcache_workbench.evaluation.scores import Interval
from tests.evaluation.world import Echo, make_retriever
from tests.support.html_page import HtmlPage

SMALL: dict[str, Any] = {"sample": 6, "workload": "uniform", "variants": 2, "k": 3}


def runs(out: Path, sweep: dict[str, list[Any]], **knobs: Any) -> list[EvalRun]:
    usual = {"retriever": make_retriever, "model": Echo(), "out": out, **SMALL}
    return evaluate_grid("nq", sweep, **(usual | knobs))


def test_the_run_that_saves_most_comes_first(tmp_path: Path) -> None:
    """No answer of this model is right, so that they say nothing of the tolerance."""
    swept = runs(tmp_path, {"tolerance": [0.0, 0.5, 1.0]})
    (verdict,) = verdicts(swept)
    assert verdict.pays is None
    assert verdict.text.startswith("tolerance=1: ")
    assert "fewer searches than tolerance=0. These runs do not show" in verdict.text
    page = HtmlPage(render(gather(swept))).text
    assert page.index(verdict.text) < page.index("Times are in milliseconds")


def test_times_of_runs_are_said_to_follow_one_another(tmp_path: Path) -> None:
    swept = runs(tmp_path, {"tolerance": [0.0, 1.0]})
    shown = StringIO()
    show(swept, Console(file=shown, width=200))
    assert shown.getvalue().count(FOLLOWED) == 1
    # In the comparison and in the figure of delays.
    assert HtmlPage(render(gather(swept))).text.count(FOLLOWED) == 2


def test_no_gain(tmp_path: Path) -> None:
    (verdict,) = verdicts(runs(tmp_path, {"capacity": [100, 200]}, tolerance=0.0))
    assert verdict.pays is False
    assert verdict.text == "Keep capacity=100: no other run saves searches or prompt tokens."


class Remembering(Echo):
    """Like a server, finds in its cache what it read in any run before."""

    read: set[str] = set()  # noqa: RUF012 - pydantic copies it

    @override
    def _words(self, messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
        prompt = "\n".join(message.text for message in messages)
        for word in super()._words(messages):
            if word.usage_metadata is not None:
                tokens = word.usage_metadata["input_tokens"] if prompt in self.read else 0
                word.usage_metadata["input_token_details"] = {"cache_read": tokens}
            yield word
        self.read.add(prompt)


def test_what_an_earlier_run_left_in_a_cache_is_no_gain(tmp_path: Path) -> None:
    first, second = runs(
        tmp_path, {"capacity": [100, 200]}, tolerance=0.0, model=Remembering(), k=1
    )
    assert second.figures["tokens_saved"] > first.figures["tokens_saved"]
    (verdict,) = verdicts([first, second])
    assert verdict.text == "Keep capacity=100: no other run saves searches or prompt tokens."
    assert "may be a matter of their order" in HtmlPage(render(gather([first, second]))).text


def test_random_weights_say_nothing_of_the_answers(tmp_path: Path) -> None:
    (verdict,) = verdicts(runs(tmp_path, {"tolerance": [0.0, 1.0]}, random_weights=True))
    assert verdict.pays is None
    assert "do not show what it does to the answers" in verdict.text


def test_one_run(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"retriever": make_retriever, "model": Echo(), "out": tmp_path, **SMALL}
    (verdict,) = verdicts([evaluate("nq", tolerance=1.0, **knobs)])
    assert "of the searches" in verdict.text
    assert "--retriever plain" in verdict.text
    (verdict,) = verdicts([evaluate("nq", tolerance=0.0, **knobs)])
    assert verdict.pays is False


@pytest.mark.parametrize(
    ("quality", "questions", "pays", "words"),
    [
        (Interval(0.001, -0.015, 0.012), 100, True, "the same F1 within ±1.5 points: keep it."),
        (Interval(0.04, 0.01, 0.07), 100, True, "F1 4.0 points higher: keep it."),
        (Interval(-0.03, -0.09, 0.03), 100, None, "100 different questions are too few to show"),
        (Interval(-0.05, -0.08, -0.02), 100, False, "worse answers (F1 -5.0 points"),
        (None, 100, None, "do not show what it does to the answers"),
        # Answers that do not differ have an interval without a width, however few they are.
        (
            Interval(0.0, 0.0, 0.0),
            3,
            None,
            "±0.0 points, but 3 different questions are too few to show it: ask at least 100",
        ),
        (Interval(0.04, 0.01, 0.07), 99, None, "99 different questions are too few to show it"),
        (Interval(-0.05, -0.08, -0.02), 3, False, "worse answers (F1 -5.0 points"),
    ],
)
def test_quality_decides(
    quality: Interval | None, questions: int, pays: bool | None, words: str
) -> None:
    candidate = _Candidate("tolerance=0.3", 0.31, 0.0, quality, questions)
    verdict = _sentence(candidate, "tolerance=0", "F1")
    assert verdict.text.startswith("tolerance=0.3: 31% fewer searches than tolerance=0")
    assert words in verdict.text
    assert verdict.pays is pays


def test_interruptions_are_shown(tmp_path: Path) -> None:
    run = evaluate("nq", retriever=make_retriever, model=Echo(), out=tmp_path, **SMALL)
    broken = replace(run, summary={**run.summary, "breaks": [1, 7]})
    shown = StringIO()
    show([broken], Console(file=shown, width=200))
    assert f"{run.name}: interrupted after 1 answer and resumed; KV" in shown.getvalue()
    assert f"{run.name}: interrupted after 7 answers and resumed; KV" in shown.getvalue()
